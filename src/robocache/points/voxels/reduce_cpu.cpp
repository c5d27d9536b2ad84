// First, each block of rows is sorted into tiles of neighbouring cells. Blocks are independent and keep the order of
// their rows. Then one thread reduces a tile, with its rows from every block. A tile's sums fit into the cache, and the
// result does not depend on which thread it is.
#include "robocache/points/voxels/reduce_cpu.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "robocache/core/arguments.hpp"
#include "robocache/core/cpu_isa.hpp"
#include "robocache/core/thread_pool.hpp"

namespace robocache {
namespace {

constexpr int64_t kBlockRows = 65536;  // a row's index in its block takes 16 bits

template <class T>
using Buffer = std::unique_ptr<T[]>;

template <class T>
Buffer<T> uninitialized(int64_t count) {
  return std::make_unique_for_overwrite<T[]>(static_cast<size_t>(count));
}

// A domain is a set of cells whose rows are in no cell of another domain: the grid of one cloud, or all cells if the
// call has cell_of_row.
struct Domain {
  int64_t first_cell;  // index in the outputs
  int64_t cells;
  int64_t cloud;
  const char* points;          // with a grid: the first point of the domain
  const int32_t* cell_of_row;  // without a grid
  int64_t rows;
  RowAddresses features;
};

// At most 2^kMostTileBits tiles: a core can write to about this many streams at a time. A domain of more cells gets
// larger tiles instead.
constexpr int32_t kMostTileBits = 11;

int32_t tile_bits_of(int64_t cells) {
  const int32_t bits = static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(cells - 1, 1))));
  return std::max(std::clamp(bits - 9, 8, 16), bits - kMostTileBits);
}

// The rows of a domain, sorted by tile. Each block holds one tile after another; a tile's rows keep their order.
template <class Local>
struct Partition {
  int32_t tile_bits;
  int64_t tiles;
  int64_t blocks;
  Buffer<uint32_t> begins;  // [blocks, tiles + 1], index in the block
  Buffer<Local> cell;       // index in the tile
  Buffer<uint16_t> row;     // index in the block; null if no output needs rows
};

template <class Cell, class Local>
void partition_block(int64_t block, const Cell* cells, int64_t count, Partition<Local>& partition) {
  uint32_t* const begins = partition.begins.get() + block * (partition.tiles + 1);
  std::fill_n(begins, partition.tiles + 1, 0u);
  const auto tile_of = [&](Cell cell) { return static_cast<int64_t>(cell >> partition.tile_bits); };
  for (int64_t i = 0; i < count; ++i) {
    if (cells[i] != kNoCell<Cell>) ++begins[tile_of(cells[i])];
  }
  uint32_t begin = 0;
  for (int64_t tile = 0; tile <= partition.tiles; ++tile) begin += std::exchange(begins[tile], begin);
  // Each begin moves to the end of its tile, which is the begin of the next tile. The begins are shifted back below.
  const Cell mask = static_cast<Cell>((Cell{1} << partition.tile_bits) - 1);
  Local* const cell = partition.cell.get() + block * kBlockRows;
  uint16_t* const row = partition.row ? partition.row.get() + block * kBlockRows : nullptr;
  for (int64_t i = 0; i < count; ++i) {
    if (cells[i] == kNoCell<Cell>) continue;
    const uint32_t slot = begins[tile_of(cells[i])]++;
    cell[slot] = static_cast<Local>(cells[i] & mask);
    if (row != nullptr) row[slot] = static_cast<uint16_t>(i);
  }
  std::memmove(begins + 1, begins, static_cast<size_t>(partition.tiles) * sizeof(uint32_t));
  begins[0] = 0;
}

template <class Cell>
int64_t find_cells(const VoxelReduction& call, const Domain& domain, int64_t first, int64_t count, Cell* cells) {
  if (!call.by_grid) {
    for (int64_t i = 0; i < count; ++i) {
      const int32_t cell = domain.cell_of_row[first + i];
      cells[i] = cell < 0 ? kNoCell<Cell> : static_cast<Cell>(cell);
    }
    return 0;
  }
  const int64_t row_bytes = call.clouds.row_stride * dtype_size(call.clouds.dtype);
  CellsOfPoints<Cell>* const find = [] {
    if constexpr (sizeof(Cell) == 4) {
      return ROBOCACHE_SELECT_ISA(cells_of_points);
    } else {
      return ROBOCACHE_SELECT_ISA(wide_cells_of_points);
    }
  }();
  return find(domain.points + first * row_bytes, row_bytes, call.clouds.dtype, count, call.grid, cells);
}

template <class Cell, class Local>
Partition<Local> partition(const VoxelReduction& call, const Domain& domain, bool with_rows) {
  Partition<Local> result;
  result.tile_bits = tile_bits_of(domain.cells);
  result.tiles = ((domain.cells - 1) >> result.tile_bits) + 1;
  result.blocks = (domain.rows + kBlockRows - 1) / kBlockRows;
  result.begins = uninitialized<uint32_t>(result.blocks * (result.tiles + 1));
  result.cell = uninitialized<Local>(domain.rows);
  if (with_rows) result.row = uninitialized<uint16_t>(domain.rows);
  std::atomic<int64_t> dropped{0};
  parallel_for(result.blocks, 1, [&](int64_t begin, int64_t end) {
    const auto cells = uninitialized<Cell>(std::min(kBlockRows, domain.rows));
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlockRows;
      const int64_t count = std::min(kBlockRows, domain.rows - first);
      dropped += find_cells(call, domain, first, count, cells.get());
      partition_block(block, cells.get(), count, result);
    }
  });
  if (call.dropped != nullptr) call.dropped[domain.cloud] = dropped;
  return result;
}

// Writes the bits of the tile's cells into words of 32 cells along z. The first and last word may share bits with
// neighbouring tiles. The words must be cleared already.
void write_bits(const VoxelGrid& grid, const Domain& domain, int64_t first, int64_t cells, const bool* occupied,
                uint32_t* words) {
  const int64_t depth = grid.shape[2];
  const int64_t words_deep = (depth + 31) / 32;
  words += domain.cloud * grid.shape[0] * grid.shape[1] * words_deep;
  for (int64_t cell = 0; cell < cells;) {
    const int64_t column = (first + cell) / depth;
    const int64_t z = (first + cell) % depth;
    const int64_t end = std::min({cells, cell + depth - z, cell + 32 - z % 32});
    uint32_t bits = 0;
    for (int64_t c = cell; c < end; ++c) bits |= static_cast<uint32_t>(occupied[c]) << ((z + c - cell) % 32);
    if (bits != 0) {
      std::atomic_ref<uint32_t>(words[column * words_deep + z / 32]).fetch_or(bits, std::memory_order_relaxed);
    }
    cell = end;
  }
}

struct TileOutputs {
  explicit TileOutputs(const VoxelReduction& call)
      : occupancy(Outputs(call).as<bool>(VoxelMode::kOccupancy)),
        bits(Outputs(call).as<uint32_t>(VoxelMode::kOccupancyBits)),
        count(Outputs(call).as<int32_t>(VoxelMode::kCount)),
        has_features(any_output(call, takes_features)) {}

  bool* occupancy;
  uint32_t* bits;
  int32_t* count;
  bool has_features;  // whether an output needs features
};

// The memory that a thread reuses for one tile after another.
struct TileMemory {
  Buffer<uint32_t> starts;
  Buffer<bool> occupied;
  Buffer<uint32_t> rows;
  int64_t rows_capacity = 0;
};

template <class Local, class Visit>
void visit_tile(const Partition<Local>& rows, int64_t tile, const Visit& visit) {
  for (int64_t block = 0; block < rows.blocks; ++block) {
    const uint32_t* const begins = rows.begins.get() + block * (rows.tiles + 1) + tile;
    const Local* const cell = rows.cell.get() + block * kBlockRows;
    for (uint32_t i = begins[0]; i < begins[1]; ++i) visit(block, i, cell[i]);
  }
}

template <class Local>
void reduce_one_tile(const VoxelReduction& call, const TileOutputs& outputs, const Domain& domain,
                     const Partition<Local>& rows, int64_t tile, TileMemory& memory) {
  const int64_t tile_cells = int64_t{1} << rows.tile_bits;
  const int64_t first = tile << rows.tile_bits;  // index in the domain
  const int64_t cells = std::min(tile_cells, domain.cells - first);
  const int64_t first_cell = domain.first_cell + first;  // index in the outputs
  bool* occupied = outputs.occupancy ? outputs.occupancy + first_cell : nullptr;
  if (outputs.bits != nullptr && occupied == nullptr) {
    if (!memory.occupied) memory.occupied = uninitialized<bool>(tile_cells);
    occupied = memory.occupied.get();
  }

  if (outputs.has_features) {
    // Sorts rows by cell: counts them, then writes each row at the begin of its cell, which moves on towards the next
    // cell's begin.
    if (!memory.starts) memory.starts = uninitialized<uint32_t>(tile_cells + 1);
    uint32_t* const starts = memory.starts.get();
    std::fill_n(starts, cells + 1, 0u);
    visit_tile(rows, tile, [&](int64_t, uint32_t, Local cell) { ++starts[cell]; });
    if (outputs.count != nullptr) std::copy_n(starts, cells, outputs.count + first_cell);
    if (occupied != nullptr) {
      for (int64_t c = 0; c < cells; ++c) occupied[c] = starts[c] != 0;
    }
    uint32_t row_total = 0;
    for (int64_t c = 0; c <= cells; ++c) row_total += std::exchange(starts[c], row_total);
    if (row_total > memory.rows_capacity) {
      memory.rows_capacity = row_total + row_total / 4;
      memory.rows = uninitialized<uint32_t>(memory.rows_capacity);
    }
    visit_tile(rows, tile, [&](int64_t block, uint32_t index, Local cell) {
      const int64_t row = block * kBlockRows + rows.row[block * kBlockRows + index];
      memory.rows[starts[cell]++] = static_cast<uint32_t>(row);
    });
    std::memmove(starts + 1, starts, static_cast<size_t>(cells) * sizeof(uint32_t));
    starts[0] = 0;
    ReduceTile* const reduce = ROBOCACHE_SELECT_ISA(reduce_tile);
    reduce(call, {first_cell, cells, starts, memory.rows.get(), domain.features});
  } else if (outputs.count != nullptr) {
    int32_t* const count = outputs.count + first_cell;
    std::fill_n(count, cells, 0);
    visit_tile(rows, tile, [&](int64_t, uint32_t, Local cell) { ++count[cell]; });
    if (occupied != nullptr) {
      for (int64_t c = 0; c < cells; ++c) occupied[c] = count[c] != 0;
    }
  } else if (occupied != nullptr) {
    std::fill_n(occupied, cells, false);
    visit_tile(rows, tile, [&](int64_t, uint32_t, Local cell) { occupied[cell] = true; });
  }
  if (outputs.bits != nullptr) write_bits(call.grid, domain, first, cells, occupied, outputs.bits);
}

template <class Cell, class Local>
void reduce_domain_as(const VoxelReduction& call, const TileOutputs& outputs, const Domain& domain) {
  const Partition<Local> rows = partition<Cell, Local>(call, domain, outputs.has_features);
  if (call.output_count == 0) return;
  // Tiles have very different numbers of points, so a thread takes a new tile whenever it finishes one. Small tiles are
  // taken several at a time.
  const int64_t grain = std::clamp<int64_t>(rows.tiles / (int64_t{16} * num_threads()), 1, 16);
  parallel_for(rows.tiles, grain, [&](int64_t begin, int64_t end) {
    TileMemory memory;
    for (int64_t tile = begin; tile < end; ++tile) reduce_one_tile(call, outputs, domain, rows, tile, memory);
  });
}

void reduce_domain(const VoxelReduction& call, const TileOutputs& outputs, const Domain& domain) {
  if (domain.cells == 0) {
    if (call.dropped != nullptr) call.dropped[domain.cloud] = domain.rows;
  } else if (tile_bits_of(domain.cells) <= 16) {
    reduce_domain_as<uint32_t, uint16_t>(call, outputs, domain);
  } else if (domain.cells < std::numeric_limits<uint32_t>::max()) {
    reduce_domain_as<uint32_t, uint32_t>(call, outputs, domain);
  } else {
    reduce_domain_as<uint64_t, uint32_t>(call, outputs, domain);
  }
}

Domain domain_of_cloud(const VoxelReduction& call, int64_t cloud) {
  const Clouds& clouds = call.clouds;
  Domain domain{};
  domain.cells = call.grid.shape[0] * call.grid.shape[1] * call.grid.shape[2];
  domain.first_cell = cloud * domain.cells;
  domain.cloud = cloud;
  const auto [first, end] = points_of_cloud(clouds, cloud);
  domain.rows = end - first;
  domain.points = static_cast<const char*>(clouds.points) +
                  (cloud * clouds.cloud_stride + first * clouds.row_stride) * dtype_size(clouds.dtype);
  const Features& features = call.features;
  const int64_t size = dtype_size(features.dtype);
  domain.features.base =
      static_cast<const char*>(features.data) + (cloud * features.cloud_stride + first * features.row_stride) * size;
  domain.features.row_bytes = features.row_stride * size;
  return domain;
}

Domain domain_of_cells(const VoxelReduction& call) {
  Domain domain{};
  domain.cells = call.cells;
  domain.cell_of_row = call.cell_of_row;
  domain.rows = row_count(call.clouds);
  if (domain.rows > std::numeric_limits<uint32_t>::max()) {
    refuse("points: on the CPU expected at most 2^32 - 1 rows in all, got ", std::to_string(domain.rows));
  }
  const Features& features = call.features;
  const int64_t size = dtype_size(features.dtype);
  domain.features.base = static_cast<const char*>(features.data);
  domain.features.row_bytes = features.row_stride * size;
  const Clouds& clouds = call.clouds;
  if (!clouds.offsets && clouds.count > 1 && features.cloud_stride != clouds.rows * features.row_stride) {
    domain.features.rows_per_cloud = std::max<int64_t>(clouds.rows, 1);
    domain.features.cloud_bytes = features.cloud_stride * size;
  }
  return domain;
}

}  // namespace

void reduce_into_voxels_cpu(const VoxelReduction& call) {
  const TileOutputs outputs(call);
  if (!call.by_grid) return reduce_domain(call, outputs, domain_of_cells(call));
  if (outputs.bits != nullptr) {
    const VoxelGrid& grid = call.grid;
    const int64_t words = call.clouds.count * grid.shape[0] * grid.shape[1] * ((grid.shape[2] + 31) / 32);
    parallel_for(words, 1 << 16,
                 [&](int64_t begin, int64_t end) { std::fill(outputs.bits + begin, outputs.bits + end, 0u); });
  }
  const auto reduce_clouds = [&](int64_t begin, int64_t end) {
    for (int64_t cloud = begin; cloud < end; ++cloud) reduce_domain(call, outputs, domain_of_cloud(call, cloud));
  };
  // If there are enough clouds for all threads, each thread takes whole clouds; the inner loops then run on that thread
  // alone.
  if (call.clouds.count >= int64_t{2} * num_threads()) {
    parallel_for(call.clouds.count, 1, reduce_clouds);
  } else {
    reduce_clouds(0, call.clouds.count);
  }
}

}  // namespace robocache
