#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "robocache/core/cpu_isa.hpp"
#include "robocache/core/thread_pool.hpp"
#include "robocache/ops/voxelize_sparse/sparse_call_cpu.hpp"

namespace robocache {
namespace {

constexpr int64_t kGrain = 16384;  // rows to look up that are worth waking a thread for
constexpr uint32_t kFree = UINT32_MAX;

// The rows of cloud b that are points, by their place in all arrays of rows.
RowRange rows_of_cloud(const Clouds& clouds, int64_t b) {
  const auto [begin, end] = points_of_cloud(clouds, b);
  const int64_t first = clouds.offsets != nullptr ? 0 : b * clouds.rows;
  return {first + begin, first + end};
}

// The memory of the numbering: the voxel of each row by order of insertion, or -1, and the first row of each.
struct Numbering {
  explicit Numbering(const SparseCall& call)
      : sizes(static_cast<SparseSizes*>(call.numbering)),
        number(reinterpret_cast<int32_t*>(sizes + 1)),
        first_row(number + row_count(call.clouds)) {}

  SparseSizes* sizes;
  int32_t* number;
  int32_t* first_row;
};

// Voxels by their cells, numbered in the order in which they were put in.
class VoxelTable {
 public:
  VoxelTable() : slots_(4096, kFree) {}

  void prefetch(uint64_t hash) const { __builtin_prefetch(&slots_[hash & (slots_.size() - 1)]); }

  // The voxel of that cell, or -1. Where it is new and may be inserted, its number is size() as it was.
  int64_t find_or_add(const SparseCell& cell, uint64_t hash, bool may_insert) {
    uint64_t at = hash & (slots_.size() - 1);
    for (; slots_[at] != kFree; at = (at + 1) & (slots_.size() - 1)) {
      if (cells_[slots_[at]] == cell) return slots_[at];
    }
    if (!may_insert) return -1;
    slots_[at] = static_cast<uint32_t>(cells_.size());
    cells_.push_back(cell);
    if (2 * cells_.size() > slots_.size()) grow();
    return static_cast<int64_t>(cells_.size()) - 1;
  }

  int64_t size() const { return static_cast<int64_t>(cells_.size()); }

 private:
  void grow() {
    slots_.assign(4 * slots_.size(), kFree);
    for (size_t number = 0; number < cells_.size(); ++number) {
      uint64_t at = hash_of(cells_[number]) & (slots_.size() - 1);
      while (slots_[at] != kFree) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = static_cast<uint32_t>(number);
    }
  }

  std::vector<uint32_t> slots_;
  std::vector<SparseCell> cells_;
};

}  // namespace

int64_t numbering_bytes_cpu(const SparseCall& call) {
  return static_cast<int64_t>(sizeof(SparseSizes)) + 2 * row_count(call.clouds) * static_cast<int64_t>(sizeof(int32_t));
}

namespace {

// Lets blocks of work that end in a step of their own order go through that step one after the other, whoever has them.
class InTurn {
 public:
  // Until the blocks before `block` are done, which is most often soon: a thread that sleeps takes longer to wake up.
  void wait(int64_t block) const {
    const auto soon = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
    for (;;) {
      const int64_t next = next_.load(std::memory_order_acquire);
      if (next >= block) return;
      if (std::chrono::steady_clock::now() < soon) {
        std::this_thread::yield();
      } else {
        next_.wait(next, std::memory_order_acquire);
      }
    }
  }

  // The step of a block, which is over when this ends, by an exception too.
  class Step {
   public:
    Step(InTurn& turns, int64_t block) : turns_(turns), block_(block) { turns.wait(block); }
    ~Step() {
      turns_.next_.store(block_ + 1, std::memory_order_release);
      turns_.next_.notify_all();
    }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    InTurn& turns_;
    int64_t block_;
  };

 private:
  std::atomic<int64_t> next_{0};
};

}  // namespace

// Cells are found on all threads, voxels are numbered by one at a time: the order of insertion is that of their first rows.
void number_voxels_cpu(const SparseCall& call) {
  constexpr int64_t kBlock = 4096;  // rows whose cells stay in the cache between the two
  constexpr int64_t kAhead = 16;    // rows until a slot that was asked for is there
  const Numbering made(call);
  VoxelTable table;
  CellsOfRows* const cells_of_rows = ROBOCACHE_SELECT_ISA(cells_of_rows);
  const int64_t all = row_count(call.clouds);
  const int64_t kept = std::min<int64_t>(int64_t{2} * num_threads(), (all + kBlock - 1) / kBlock);
  const auto cells = std::make_unique_for_overwrite<FoundCell[]>(static_cast<size_t>(std::min(kept * kBlock, all)));
  std::vector<int64_t> counts;
  int64_t last_row = 0;
  for (int64_t b = 0; b < call.clouds.count; ++b) {
    const auto [begin, end] = rows_of_cloud(call.clouds, b);
    std::fill(made.number + last_row, made.number + begin, -1);
    last_row = end;
    const int64_t most = call.max_voxels == kUnlimited ? kUnlimited : table.size() + call.max_voxels;
    const auto number_block = [&](int64_t first, int64_t size, const FoundCell* found) {
      int64_t number = -1;
      for (int64_t i = 0; i < size; ++i) {
        if (i + kAhead < size) table.prefetch(found[i + kAhead].hash);
        const FoundCell& f = found[i];
        const int64_t before = table.size();
        // In the order of a scan a point often lies where the one before it does.
        if (!f.inside) {
          number = -1;
        } else if (number < 0 || !(f.cell == found[i - 1].cell)) {
          number = table.find_or_add(f.cell, f.hash, before < most);
        }
        made.number[first + i] = static_cast<int32_t>(number);
        if (number == before) made.first_row[number] = static_cast<int32_t>(first + i);
        if (call.largest_count && number >= 0) {
          if (number == before) counts.push_back(0);
          ++counts[static_cast<size_t>(number)];
        }
      }
    };
    InTurn turns;
    bool numbered = true;  // all blocks so far: after an exception the table is left alone
    const int64_t from = begin;
    const int64_t rows = end - begin;
    const auto cloud = static_cast<int32_t>(b);
    parallel_for(rows, kBlock, [&](int64_t first, int64_t last) {
      const int64_t block = first / kBlock;
      FoundCell* const found = cells.get() + block % kept * kBlock;
      turns.wait(block - kept + 1);  // for the block whose cells were there
      cells_of_rows(call, cloud, from + first, last - first, found);
      const InTurn::Step step(turns, block);
      if (!std::exchange(numbered, false)) return;
      number_block(from + first, last - first, found);
      numbered = true;
    });
  }
  std::fill(made.number + last_row, made.number + all, -1);
  *made.sizes = {table.size(), counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end())};
}

SparseSizes sizes_cpu(const SparseCall& call) { return *Numbering(call).sizes; }

namespace {

// The cells of the voxels inserted first.
std::vector<SparseCell> cells_by_insertion(const SparseCall& call, const Numbering& numbering, int64_t voxels) {
  std::vector<SparseCell> cells(static_cast<size_t>(voxels));
  int64_t b = 0;  // they go cloud by cloud
  for (int64_t v = 0; v < voxels; ++v) {
    const int32_t row = numbering.first_row[v];
    while (rows_of_cloud(call.clouds, b).end <= row) ++b;
    SparseCell& cell = cells[static_cast<size_t>(v)];
    cell.cloud = static_cast<int32_t>(b);
    cell_of_row(call, row, cell);
  }
  return cells;
}

// The places of `voxels` voxels in the order of insertion, in the order that the call asks for.
std::vector<int32_t> sorted_insertions(const SparseCall& call, int64_t voxels, const std::vector<SparseCell>& cells) {
  struct Keyed {
    SparseKey key;
    int32_t insertion;
  };
  std::vector<Keyed> keyed(static_cast<size_t>(voxels));
  for (size_t i = 0; i < keyed.size(); ++i) keyed[i] = {sort_key(call.order, cells[i]), static_cast<int32_t>(i)};
  std::sort(keyed.begin(), keyed.end(), [](const Keyed& a, const Keyed& b) {
    return a.key.high != b.key.high ? a.key.high < b.key.high : a.key.low < b.key.low;
  });
  std::vector<int32_t> insertions(keyed.size());
  for (size_t i = 0; i < keyed.size(); ++i) insertions[i] = keyed[i].insertion;
  return insertions;
}

// The first P rows of each voxel.
void keep_first_rows(const SparseCall& call) {
  const int64_t most = call.points_per_voxel;
  std::vector<int32_t> counts(static_cast<size_t>(call.voxels), 0);
  if (call.rows_of_voxel != nullptr) std::fill_n(call.rows_of_voxel, call.voxels * most, -1);
  for (int64_t row = 0; row < row_count(call.clouds); ++row) {
    int32_t voxel = call.point_to_voxel[row];
    if (voxel >= 0) {
      int32_t& count = counts[static_cast<size_t>(voxel)];
      if (count == most) {
        voxel = -1;
      } else {
        if (call.rows_of_voxel != nullptr) call.rows_of_voxel[voxel * most + count] = static_cast<int32_t>(row);
        ++count;
      }
    }
    if (call.kept != nullptr) call.kept[row] = voxel;
  }
  if (call.counts != nullptr) std::copy(counts.begin(), counts.end(), call.counts);
}

void keep_random_rows(const SparseCall& call) {
  std::vector<uint64_t> least(static_cast<size_t>(call.voxels), UINT64_MAX);
  for (int64_t row = 0; row < row_count(call.clouds); ++row) {
    if (call.point_to_voxel[row] < 0) continue;
    uint64_t& of_voxel = least[static_cast<size_t>(call.point_to_voxel[row])];
    of_voxel = std::min(of_voxel, sample_priority(call.seed, row));
  }
  for (size_t voxel = 0; voxel < least.size(); ++voxel) {
    call.rows_of_voxel[voxel] = static_cast<int32_t>(least[voxel] & UINT32_MAX);
  }
}

}  // namespace

void place_points_cpu(const SparseCall& call) {
  const Numbering numbering(call);
  const int64_t voxels = std::min(numbering.sizes->voxels, call.voxels);
  const std::vector<SparseCell> cells = cells_by_insertion(call, numbering, voxels);
  std::vector<int32_t> insertions;
  std::vector<int32_t> place(call.order == VoxelOrder::kFirst ? 0 : static_cast<size_t>(voxels));
  if (call.order != VoxelOrder::kFirst) insertions = sorted_insertions(call, voxels, cells);
  for (int64_t v = 0; v < voxels; ++v) {
    const auto insertion =
        insertions.empty() ? static_cast<size_t>(v) : static_cast<size_t>(insertions[static_cast<size_t>(v)]);
    write_coords(call, v, cells[insertion]);
    if (!insertions.empty()) place[insertion] = static_cast<int32_t>(v);
  }
  for (int64_t v = voxels; v < call.voxels; ++v) write_coords(call, v, {-1, -1, -1, -1});

  int64_t last_row = 0;
  for (int64_t b = 0; b < call.clouds.count; ++b) {
    const auto [begin, end] = rows_of_cloud(call.clouds, b);
    std::fill(call.point_to_voxel + last_row, call.point_to_voxel + begin, -1);
    last_row = end;
    std::atomic<int64_t> dropped = 0;
    const int64_t from = begin;
    parallel_for(end - begin, kGrain, [&](int64_t first, int64_t last) {
      int64_t missing = 0;
      for (int64_t row = from + first; row < from + last; ++row) {
        int32_t voxel = numbering.number[row];
        if (voxel >= voxels) voxel = -1;
        if (voxel >= 0 && !place.empty()) voxel = place[static_cast<size_t>(voxel)];
        call.point_to_voxel[row] = voxel;
        missing += voxel < 0;
      }
      dropped += missing;
    });
    if (call.dropped != nullptr) call.dropped[b] = dropped;
  }
  std::fill(call.point_to_voxel + last_row, call.point_to_voxel + row_count(call.clouds), -1);
  if (call.num_voxels != nullptr) *call.num_voxels = numbering.sizes->voxels;
  if (call.random) {
    keep_random_rows(call);
  } else if (call.points_per_voxel != kUnlimited) {
    keep_first_rows(call);
  }
}

void gather_rows_cpu(const GatherCall& call) {
  const auto bytes = static_cast<size_t>(call.columns * call.element_bytes);
  if (bytes == 0) return;
  parallel_for(call.count, kGrain / 4, [&](int64_t begin, int64_t end) {
    auto* out = static_cast<char*>(call.out) + begin * static_cast<int64_t>(bytes);
    for (int64_t i = begin; i < end; ++i, out += bytes) {
      if (call.row[i] < 0) {
        std::memset(out, 0, bytes);
      } else {
        const int64_t place = row_place(call.rows, call.cloud_stride, call.row_stride, call.row[i]);
        std::memcpy(out, static_cast<const char*>(call.data) + place * call.element_bytes, bytes);
      }
    }
  });
}

}  // namespace robocache
