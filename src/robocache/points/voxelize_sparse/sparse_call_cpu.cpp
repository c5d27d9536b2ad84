#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "robocache/core/cpu_isa.hpp"
#include "robocache/core/thread_pool.hpp"
#include "robocache/points/voxelize_sparse/sparse_call_cpu.hpp"

namespace robocache {
namespace {

constexpr int64_t kGrain = 16384;  // the least rows for which waking a thread pays
constexpr uint32_t kFreeSlot = UINT32_MAX;

// Returns the valid rows of cloud b, numbered over all clouds. Rows after the cloud's length are not valid.
RowRange rows_of_cloud(const Clouds& clouds, int64_t b) {
  const auto [begin, end] = points_of_cloud(clouds, b);
  const int64_t first = clouds.offsets != nullptr ? 0 : b * clouds.rows;
  return {first + begin, first + end};
}

// Lays out the memory at call.numbering.
struct Numbering {
  explicit Numbering(const SparseCall& call)
      : sizes(static_cast<SparseSizes*>(call.numbering)),
        voxel_of_row(reinterpret_cast<int32_t*>(sizes + 1)),
        first_row_of_voxel(voxel_of_row + row_count(call.clouds)) {}

  SparseSizes* sizes;
  int32_t* voxel_of_row;  // [rows] the voxel's index in the order of insertion, or -1. Until number_voxels_cpu has
                          // finished, the memory holds its first_in_cell
  int32_t* first_row_of_voxel;  // [voxels]
};

// A hash table from cells to the first row in each.
class FirstRows {
 public:
  FirstRows() : slots_(1024, kFreeSlot) {}

  void prefetch(const RowCell& cell) const { __builtin_prefetch(&slots_[cell.hash & (slots_.size() - 1)]); }

  // Returns the first row in the cell. If the cell is new, adds it; its first row is then cell.row.
  int32_t find_or_add(const SparseCall& call, const RowCell& cell) {
    uint64_t slot = cell.hash & (slots_.size() - 1);
    for (; slots_[slot] != kFreeSlot; slot = (slot + 1) & (slots_.size() - 1)) {
      const RowCell& first = firsts_[slots_[slot]];
      if (same_cell(call, first.cell, first.row, cell.cell, cell.row)) return first.row;
    }
    slots_[slot] = static_cast<uint32_t>(firsts_.size());
    firsts_.push_back(cell);
    if (2 * firsts_.size() > slots_.size()) grow();
    return cell.row;
  }

 private:
  void grow() {
    slots_.assign(4 * slots_.size(), kFreeSlot);
    for (size_t number = 0; number < firsts_.size(); ++number) {
      uint64_t slot = firsts_[number].hash & (slots_.size() - 1);
      while (slots_[slot] != kFreeSlot) slot = (slot + 1) & (slots_.size() - 1);
      slots_[slot] = static_cast<uint32_t>(number);
    }
  }

  std::vector<uint32_t> slots_;
  std::vector<RowCell> firsts_;
};

constexpr int64_t kBlock = 16384;             // rows whose cells fit in a core's cache
constexpr int64_t kRound = int64_t{1} << 20;  // rows whose cells are in memory at a time
// A part has fewer rows than this on average, unless there would be more than 2^kMostPartBits parts.
constexpr int64_t kPartRows = 16384;
constexpr int kMostPartBits = 8;
constexpr uint32_t kAhead = 16;    // rows between a prefetch and its use
constexpr int32_t kSameCell = -2;  // in first_in_cell: the row is in the same cell as the previous row

// The cells of rows, divided into parts by their hashes: a cell is always in the same part. Each block of rows holds its
// parts one after another, and the rows of a part in order.
struct Parts {
  explicit Parts(int64_t rows)
      : bits(std::min<int>(std::bit_width(static_cast<uint64_t>(rows / kPartRows)), kMostPartBits)),
        cells(std::make_unique_for_overwrite<RowCell[]>(static_cast<size_t>(std::min(rows, kRound)))),
        begins(static_cast<size_t>((kRound / kBlock) * (count() + 1))) {}

  int64_t count() const { return int64_t{1} << bits; }
  int64_t part_of(const RowCell& cell) const { return static_cast<int64_t>(uint64_t{cell.hash} << bits >> 32); }

  int bits;
  std::unique_ptr<RowCell[]> cells;
  std::vector<uint32_t> begins;  // [blocks, parts + 1], within the block
};

// Divides the rows [first, last), which are one block. For rows that go to no part, sets first_in_cell to kSameCell, or
// to -1 if they are in no cell.
void divide_block(const SparseCall& call, int64_t first, int64_t last, int32_t* first_in_cell, Parts& parts) {
  const auto block_cells = std::make_unique_for_overwrite<RowCell[]>(static_cast<size_t>(last - first));
  int64_t count = 0;
  int64_t b = 0;  // the first cloud that ends after `first`
  for (int64_t clouds = call.clouds.count; clouds > 0;) {
    const int64_t half = clouds / 2;
    const bool ends_later = rows_of_cloud(call.clouds, b + half).end > first;
    if (!ends_later) b += half + 1;
    clouds = ends_later ? half : clouds - half - 1;
  }
  for (; b < call.clouds.count; ++b) {
    const RowRange rows = rows_of_cloud(call.clouds, b);
    const int64_t begin = std::max(rows.begin, first);
    const int64_t in_cloud = std::min(rows.end, last) - begin;
    if (begin >= last) break;
    if (in_cloud <= 0) continue;
    ROBOCACHE_SELECT_ISA(cells_of_rows)(call, static_cast<int32_t>(b), begin, in_cloud, block_cells.get() + count);
    count += in_cloud;
  }
  const int64_t block = first % kRound / kBlock;
  uint32_t* const begins = parts.begins.data() + block * (parts.count() + 1);
  std::fill_n(begins, parts.count() + 1, 0u);
  std::fill(first_in_cell + first, first_in_cell + last, -1);
  // A row in the same cell as the previous row goes to no part. In scan order this is frequent.
  static_assert(kBlock <= UINT16_MAX + 1, "new_cells holds indices in a block");
  const auto new_cells = std::make_unique_for_overwrite<uint16_t[]>(static_cast<size_t>(count));
  int64_t new_cell_count = 0;
  for (int64_t i = 0; i < count; ++i) {
    const RowCell& current = block_cells[static_cast<size_t>(i)];
    const RowCell& previous = block_cells[static_cast<size_t>(std::max<int64_t>(i, 1) - 1)];
    const bool has_cell = current.row >= 0;
    bool is_repeat = has_cell & (current.row == previous.row + 1) & (current.cell == previous.cell);
    if (call.wide) is_repeat = is_repeat && same_cell(call, current.cell, current.row, previous.cell, previous.row);
    if (has_cell) first_in_cell[current.row] = is_repeat ? kSameCell : -1;
    new_cells[static_cast<size_t>(new_cell_count)] = static_cast<uint16_t>(i);
    new_cell_count += has_cell & !is_repeat;
    begins[parts.part_of(current)] += has_cell & !is_repeat;
  }
  uint32_t begin = 0;
  for (int64_t part = 0; part <= parts.count(); ++part) begin += std::exchange(begins[part], begin);
  RowCell* const cells = parts.cells.get() + block * kBlock;
  for (int64_t i = 0; i < new_cell_count; ++i) {
    const RowCell& cell = block_cells[new_cells[static_cast<size_t>(i)]];
    cells[begins[parts.part_of(cell)]++] = cell;
  }
  // Each entry of begins is now the end of its part, which is where the next part begins.
  std::copy_backward(begins, begins + parts.count(), begins + parts.count() + 1);
  begins[0] = 0;
}

// Whether a row has a cell in int64 but not in int32. Rows with a voxel have a cell in int32.
bool has_cell_beyond(const SparseCall& call, const int32_t* voxel_of_row) {
  std::atomic<bool> beyond = false;
  for (int64_t b = 0; b < call.clouds.count; ++b) {
    const RowRange rows = rows_of_cloud(call.clouds, b);
    parallel_for(rows.end - rows.begin, kGrain, [&](int64_t begin, int64_t end) {
      int64_t cell[3];
      for (int64_t row = rows.begin + begin; row < rows.begin + end; ++row) {
        if (voxel_of_row[row] >= 0) continue;
        SparseCell by_int32;
        if (wide_cell_of_row(call, row, cell) && !cell_of_row(call, row, by_int32)) beyond = true;
      }
    });
  }
  return beyond;
}

}  // namespace

int64_t numbering_bytes_cpu(const SparseCall& call) {
  return static_cast<int64_t>(sizeof(SparseSizes)) + 2 * row_count(call.clouds) * static_cast<int64_t>(sizeof(int32_t));
}

// Different parts have different cells, so each part is one thread's work: to find the first row in the cell of each
// row. Voxels are then numbered in the order of their first rows.
void number_voxels_cpu(const SparseCall& call) {
  const Numbering numbering(call);
  // [rows] the first row in the cell of each row, kSameCell, or -1 for rows in no cell. The loop that writes
  // numbering.voxel_of_row replaces each entry by the row's voxel, in the same memory.
  int32_t* const first_in_cell = numbering.voxel_of_row;
  const int64_t row_total = row_count(call.clouds);
  Parts parts(row_total);
  std::vector<FirstRows> first_rows(static_cast<size_t>(parts.count()));
  for (int64_t from = 0; from < row_total; from += kRound) {
    const int64_t rows = std::min(kRound, row_total - from);
    parallel_for(rows, kBlock, [&](int64_t begin, int64_t end) {
      divide_block(call, from + begin, from + end, first_in_cell, parts);
    });
    parallel_for(parts.count(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        FirstRows& table = first_rows[static_cast<size_t>(part)];
        for (int64_t block = 0; block * kBlock < rows; ++block) {
          const uint32_t* const begins = parts.begins.data() + block * (parts.count() + 1) + part;
          const RowCell* const cells = parts.cells.get() + block * kBlock;
          for (uint32_t i = begins[0]; i < begins[1]; ++i) {
            if (i + kAhead < begins[1]) table.prefetch(cells[i + kAhead]);
            first_in_cell[cells[i].row] = table.find_or_add(call, cells[i]);
          }
        }
      }
    });
  }

  // [rows] the voxel of each row that is the first in its cell; -1 for other rows and beyond max_voxels.
  const auto voxel_of_first = std::make_unique_for_overwrite<int32_t[]>(static_cast<size_t>(row_total));
  int64_t voxels = 0;
  for (int64_t b = 0; b < call.clouds.count; ++b) {
    const auto [begin, end] = rows_of_cloud(call.clouds, b);
    const int64_t most = call.max_voxels == kUnlimited ? kUnlimited : voxels + call.max_voxels;
    for (int64_t row = begin; row < end; ++row) {
      const bool kept = (first_in_cell[row] == row) & (voxels < most);
      voxel_of_first[static_cast<size_t>(row)] = kept ? static_cast<int32_t>(voxels) : -1;
      numbering.first_row_of_voxel[voxels] = static_cast<int32_t>(row);
      voxels += kept;
    }
  }
  parallel_for(row_total, kBlock, [&](int64_t begin, int64_t end) {
    int32_t voxel = -1;  // the first row of a block is never kSameCell
    for (int64_t row = begin; row < end; ++row) {
      const int32_t first = first_in_cell[row];
      if (first != kSameCell) voxel = first < 0 ? -1 : voxel_of_first[static_cast<size_t>(first)];
      numbering.voxel_of_row[row] = voxel;
    }
  });
  int64_t largest = 0;
  if (call.largest_count) {
    std::vector<int64_t> counts(static_cast<size_t>(voxels));
    for (int64_t row = 0; row < row_total; ++row) {
      const int32_t voxel = numbering.voxel_of_row[row];
      if (voxel >= 0) largest = std::max(largest, ++counts[static_cast<size_t>(voxel)]);
    }
  }
  *numbering.sizes = {voxels, largest, !call.bounded && !call.wide && has_cell_beyond(call, numbering.voxel_of_row)};
}

SparseSizes sizes_cpu(const SparseCall& call) { return *Numbering(call).sizes; }

namespace {

// Returns the cells of the first `voxels` voxels in the order of insertion.
std::vector<SparseCell> cells_by_insertion(const SparseCall& call, const Numbering& numbering, int64_t voxels) {
  std::vector<SparseCell> cells(static_cast<size_t>(voxels));
  int64_t b = 0;  // voxels are ordered by cloud
  for (int64_t v = 0; v < voxels; ++v) {
    const int32_t row = numbering.first_row_of_voxel[v];
    while (rows_of_cloud(call.clouds, b).end <= row) ++b;
    SparseCell& cell = cells[static_cast<size_t>(v)];
    cell.cloud = static_cast<int32_t>(b);
    cell_of_row(call, row, cell);
  }
  return cells;
}

// Sorts voxels in the order that the call requests: returns for each its index in the order of insertion. `cells` has
// their cells in the order of insertion.
std::vector<int32_t> sorted_indices(const SparseCall& call, int64_t voxels, const std::vector<SparseCell>& cells) {
  struct Keyed {
    SparseKey key;
    int32_t insertion_index;
  };
  std::vector<Keyed> keyed(static_cast<size_t>(voxels));
  for (size_t i = 0; i < keyed.size(); ++i) keyed[i] = {sort_key(call.order, cells[i]), static_cast<int32_t>(i)};
  std::sort(keyed.begin(), keyed.end(), [](const Keyed& a, const Keyed& b) {
    return a.key.high != b.key.high ? a.key.high < b.key.high : a.key.low < b.key.low;
  });
  std::vector<int32_t> insertion_indices(keyed.size());
  for (size_t i = 0; i < keyed.size(); ++i) insertion_indices[i] = keyed[i].insertion_index;
  return insertion_indices;
}

// Keeps of each voxel the first call.points_per_voxel rows. call.point_to_voxel gives the voxel of each row.
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

// Keeps one row of each voxel, that with the least priority.
void keep_random_rows(const SparseCall& call) {
  std::vector<uint64_t> least(static_cast<size_t>(call.voxels), UINT64_MAX);
  for (int64_t row = 0; row < row_count(call.clouds); ++row) {
    if (call.point_to_voxel[row] < 0) continue;
    uint64_t& least_of_voxel = least[static_cast<size_t>(call.point_to_voxel[row])];
    least_of_voxel = std::min(least_of_voxel, sample_priority(call.seed, row));
  }
  for (size_t voxel = 0; voxel < least.size(); ++voxel) {
    // The lower half of a priority is its row.
    call.rows_of_voxel[voxel] = static_cast<int32_t>(least[voxel] & UINT32_MAX);
  }
}

}  // namespace

void assign_points_cpu(const SparseCall& call) {
  const Numbering numbering(call);
  const int64_t voxels = std::min(numbering.sizes->voxels, call.voxels);
  const bool needs_cells = call.coords != nullptr || call.order != VoxelOrder::kFirst;
  const std::vector<SparseCell> cells = cells_by_insertion(call, numbering, needs_cells ? voxels : 0);
  std::vector<int32_t> insertion_indices;
  std::vector<int32_t> voxel_of_insertion_index(call.order == VoxelOrder::kFirst ? 0 : static_cast<size_t>(voxels));
  if (call.order != VoxelOrder::kFirst) insertion_indices = sorted_indices(call, voxels, cells);
  for (int64_t v = 0; v < std::ssize(cells); ++v) {
    const auto insertion_index = insertion_indices.empty()
                                     ? static_cast<size_t>(v)
                                     : static_cast<size_t>(insertion_indices[static_cast<size_t>(v)]);
    write_coords(call, v, cells[insertion_index]);
    if (!insertion_indices.empty()) voxel_of_insertion_index[insertion_index] = static_cast<int32_t>(v);
  }
  for (int64_t v = voxels; v < call.voxels; ++v) write_coords(call, v, {-1, -1, -1, -1});

  int64_t assigned_end = 0;
  for (int64_t b = 0; b < call.clouds.count; ++b) {
    const auto [begin, end] = rows_of_cloud(call.clouds, b);
    std::fill(call.point_to_voxel + assigned_end, call.point_to_voxel + begin, -1);
    assigned_end = end;
    std::atomic<int64_t> dropped = 0;
    const int64_t from = begin;
    parallel_for(end - begin, kGrain, [&](int64_t first, int64_t last) {
      int64_t dropped_rows = 0;
      for (int64_t row = from + first; row < from + last; ++row) {
        int32_t voxel = numbering.voxel_of_row[row];
        if (voxel >= voxels) voxel = -1;
        if (voxel >= 0 && !voxel_of_insertion_index.empty())
          voxel = voxel_of_insertion_index[static_cast<size_t>(voxel)];
        call.point_to_voxel[row] = voxel;
        dropped_rows += voxel < 0;
      }
      dropped += dropped_rows;
    });
    if (call.dropped != nullptr) call.dropped[b] = dropped;
  }
  std::fill(call.point_to_voxel + assigned_end, call.point_to_voxel + row_count(call.clouds), -1);
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
        const int64_t offset = row_offset(call.rows, call.cloud_stride, call.row_stride, call.row[i]);
        std::memcpy(out, static_cast<const char*>(call.data) + offset * call.element_bytes, bytes);
      }
    }
  });
}

}  // namespace robocache
