#include "robocache/voxels/tiles_cuda.cuh"

#include <algorithm>
#include <bit>

#include "robocache/core/launch_cuda.cuh"
#include "robocache/voxels/rows_cuda.cuh"

namespace robocache {
namespace {

constexpr int kLineCells = 32;
constexpr uint32_t kNoPlace = 0xffff;  // of a record that only fills up

struct Tiling {
  int line_bits;  // 2^line_bits lines, of which some may lie beyond the last cell
  int row_bits;   // 2^row_bits lines to a tile
  uint32_t multiplier;
  uint32_t inverse;

  __host__ __device__ int tiles() const { return 1 << (line_bits - row_bits); }
  __host__ __device__ int tile_cells() const { return kLineCells << row_bits; }
  __host__ __device__ int place_bits() const { return row_bits + 5; }

  // Tile << place_bits | place in it.
  __device__ uint32_t permuted(uint32_t cell) const {
    return ((cell / kLineCells * multiplier) >> (32 - line_bits)) * kLineCells + cell % kLineCells;
  }
  // The first cell of a permuted line.
  __device__ int64_t line_start(uint32_t line) const {
    return int64_t{(line * inverse) & ((1u << line_bits) - 1)} * kLineCells;
  }
};

// What threads that share a cell put together; of up to 32 features at a time in shared memory, of all in global memory.
struct Merged {
  Word sum;
  Word coarse_sum;
  Word least;
  Word greatest;
  int32_t above;
  uint32_t marks;
  uint32_t first;
  uint32_t last;

  __device__ void clear() { *this = {0, 0, ~Word{0}, 0, kNoExponent, 0, ~0u, 0}; }
};

// A cell of at least kCrowd rows is left to warps of all blocks, kSegment rows to each.
constexpr uint32_t kCrowd = 32;
constexpr uint32_t kSegment = 256;

struct CrowdedCell {
  uint32_t cell;
  uint32_t start;  // in Plan::sorted
  uint32_t points;
  uint32_t first_segment;
  uint32_t merged;  // its place in Plan::merged, where it has several segments
};

// How a call is cut up.
struct Plan {
  int64_t rows;
  Tiling tiling;
  bool features;  // records name the row as well
  int threads;    // of the first kernel, which takes rows_per_thread each
  int rows_per_thread;
  int chunk;     // rows of a block: rows_per_thread * threads
  int chunks;    // blocks
  int capacity;  // records of a chunk, those that fill up included
  int listed;    // rows of a tile that are listed in shared memory; more go to the workspace
  bool whole;    // counts and occupancy can be written four at once

  // Parts of the workspace.
  void* records;     // [chunks, capacity] uint16 or uint32
  uint32_t* table;   // [tiles, chunks] first record / 4 << 16 | records / 4
  uint32_t* sorted;  // [rows], for tiles with more than `listed`
  Word* taken;       // of `sorted`
  Word* crowds;      // crowded cells << 32 | their segments
  Word* merges;      // those of several segments
  CrowdedCell* crowded;
  uint32_t* crowded_of_segment;
  Merged* merged;  // [merges, F]
};

bool needs_features(VoxelMode mode) { return mode >= VoxelMode::kSum; }

bool any_features(const VoxelReduction& call) {
  return std::any_of(call.outputs, call.outputs + call.output_count,
                     [](const VoxelOutput& output) { return needs_features(output.mode); });
}

// Then a thread gets few, so that all multiprocessors get some.
bool has_few_rows(const VoxelReduction& call) { return row_count(call.clouds) <= int64_t{1} << 20; }

constexpr int kMostTileBits = 12;

Tiling tiling_for(int64_t cells, bool features, bool few) {
  const int64_t lines = (cells + kLineCells - 1) / kLineCells;
  Tiling tiling{};
  tiling.line_bits = std::max<int>(1, static_cast<int>(std::bit_width(static_cast<uint64_t>(lines - 1))));
  // With features a tile's rows are listed in shared memory: small tiles. Without, tiles as large as shared memory takes,
  // but enough of them for all multiprocessors.
  const int wanted = features ? 6 : 10;
  const int fewest = few ? 7 : 8;
  const int most = std::min(tiling.line_bits - 1, kMostTileBits);  // at least two lines to a tile
  const int tile_bits = std::clamp(tiling.line_bits - wanted, std::min(fewest, most), most);
  tiling.row_bits = tiling.line_bits - tile_bits;
  constexpr uint32_t kOdd = 0x9e3779b1u;  // 2^32 over the golden ratio: neighbours fall far apart
  tiling.multiplier = kOdd << (32 - tiling.line_bits);
  tiling.inverse = kOdd;
  for (int i = 0; i < 5; ++i) tiling.inverse *= 2 - kOdd * tiling.inverse;
  return tiling;
}

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

Plan plan_for(const VoxelReduction& call, int64_t& bytes) {
  Plan plan{};
  plan.rows = row_count(call.clouds);
  plan.features = any_features(call);
  const bool few = has_few_rows(call);
  plan.tiling = tiling_for(call.cells, plan.features, few);
  plan.threads = few ? 512 : 1024;
  plan.rows_per_thread = few ? 4 : 16;
  plan.chunk = plan.threads * plan.rows_per_thread;
  plan.chunks = static_cast<int>((plan.rows + plan.chunk - 1) / plan.chunk);
  plan.capacity = (plan.chunk + 3 * plan.tiling.tiles() + 7) / 8 * 8;
  plan.listed = 12288;
  plan.whole = std::all_of(call.outputs, call.outputs + call.output_count, [](const VoxelOutput& output) {
    return reinterpret_cast<uintptr_t>(output.data) % 16 == 0;
  });
  char* memory = static_cast<char*>(call.workspace);
  bytes = 0;
  const auto take = [&](auto*& part, int64_t wanted) {
    part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(memory + bytes);
    bytes += aligned(wanted);
  };
  char* records = nullptr;
  take(records, int64_t{plan.chunks} * plan.capacity * (plan.features ? 4 : 2));
  plan.records = records;
  take(plan.table, int64_t{plan.chunks} * plan.tiling.tiles() * 4);
  take(plan.sorted, plan.features ? plan.rows * 4 : 0);
  take(plan.taken, 8);
  take(plan.crowds, 8);
  take(plan.merges, 8);
  const int64_t crowded = plan.features ? plan.rows / kCrowd : 0;
  const int64_t merges = plan.features ? plan.rows / kSegment : 0;
  take(plan.crowded, crowded * static_cast<int64_t>(sizeof(CrowdedCell)));
  take(plan.crowded_of_segment, (crowded + merges) * 4);
  take(plan.merged, merges * call.features.count * static_cast<int64_t>(sizeof(Merged)));
  return plan;
}

// ---- Points to cells, four at a time ----

// What the cells of packed float32 points of one cloud are found with: the quotient by a multiplication, within `error`
// of the true one for a point in the grid; where that leaves a doubt of the cell, by the division.
struct FastGrid {
  float origin[3];
  float size[3];
  float inverse[3];
  float error;
  uint32_t shape[3];
};

constexpr int64_t kMostFastShape = 4096;

bool is_fast(const VoxelReduction& call) {
  const Clouds& clouds = call.clouds;
  if (call.cell_of_row || clouds.dtype != DType::kFloat32 || clouds.count != 1 || clouds.lengths || clouds.offsets ||
      clouds.row_stride != 3 || reinterpret_cast<uintptr_t>(clouds.points) % 16 != 0) {
    return false;
  }
  for (int axis = 0; axis < 3; ++axis) {
    const double size = call.grid.size[axis];
    if (call.grid.shape[axis] > kMostFastShape || !(size > 0x1p-100 && size < 0x1p100)) return false;
  }
  return true;
}

FastGrid fast_grid(const VoxelGrid& grid) {
  FastGrid fast{};
  for (int axis = 0; axis < 3; ++axis) {
    fast.origin[axis] = static_cast<float>(grid.origin[axis]);
    fast.size[axis] = static_cast<float>(grid.size[axis]);
    fast.inverse[axis] = 1 / fast.size[axis];
    fast.shape[axis] = static_cast<uint32_t>(grid.shape[axis]);
    // Three roundings of 2^-24 part the two quotients, and those of a point in or near the grid are below 4/3 of its shape.
    fast.error = std::max(fast.error, static_cast<float>(grid.shape[axis]) * 0x1p-22f);
  }
  return fast;
}

__device__ __noinline__ int32_t divided_coordinate(float p, float origin, float size) {
  const float quotient = floorf(__fdiv_rn(p - origin, size));
  return quotient >= 0 && quotient < 0x1p22f ? static_cast<int32_t>(quotient) : -1;
}

constexpr uint32_t kNoCell = ~0u;

// p: x, y, z of four points.
__device__ void cells_of(const FastGrid& grid, const float (&p)[12], uint32_t (&cells)[4]) {
  // Added to a number below 2^22 and rounded down, this leaves its floor in the low bits; all else comes out as no
  // coordinate of a grid.
  constexpr float kFloor = 0x1.8p23f;
  constexpr int32_t kFloorBits = 0x4b400000;
  int32_t coordinate[12];
  int32_t doubt = 0;
#pragma unroll
  for (int i = 0; i < 12; ++i) {
    const float from_origin = p[i] - grid.origin[i % 3];
    const int32_t low = __float_as_int(__fadd_rd(fmaf(from_origin, grid.inverse[i % 3], -grid.error), kFloor));
    const int32_t high = __float_as_int(__fadd_rd(fmaf(from_origin, grid.inverse[i % 3], grid.error), kFloor));
    doubt |= low ^ high;
    coordinate[i] = low - kFloorBits;
  }
  if (doubt) {
#pragma unroll
    for (int i = 0; i < 12; ++i) coordinate[i] = divided_coordinate(p[i], grid.origin[i % 3], grid.size[i % 3]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t x = coordinate[3 * i];
    const uint32_t y = coordinate[3 * i + 1];
    const uint32_t z = coordinate[3 * i + 2];
    const bool inside = (x < grid.shape[0]) & (y < grid.shape[1]) & (z < grid.shape[2]);
    cells[i] = inside ? (x * grid.shape[1] + y) * grid.shape[2] + z : kNoCell;
  }
}

// The cells of rows [row, row + 4), as far as they are below `end`.
template <bool kFast>
__device__ void cells_of_rows(const VoxelReduction& call, const FastGrid& grid, int64_t row, int64_t end,
                              uint32_t (&cells)[4]) {
  if constexpr (kFast) {
    const float* const points = static_cast<const float*>(call.clouds.points) + row * 3;
    float p[12];
    if (row + 4 <= end) {
      const float4* const from = reinterpret_cast<const float4*>(points);
      const float4 a = __ldcs(from);
      const float4 b = __ldcs(from + 1);
      const float4 c = __ldcs(from + 2);
      const float loaded[12] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w};
#pragma unroll
      for (int i = 0; i < 12; ++i) p[i] = loaded[i];
    } else {
#pragma unroll
      for (int i = 0; i < 12; ++i) p[i] = row + i / 3 < end ? points[i] : __int_as_float(0x7fffffff);
    }
    cells_of(grid, p, cells);
    if (call.dropped) {
      int dropped = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) dropped += row + i < end && cells[i] == kNoCell;
      if (dropped) atomicAdd(reinterpret_cast<Word*>(call.dropped), static_cast<Word>(dropped));
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t cell = row + i < end ? cell_of(call, row + i) : -1;
      cells[i] = cell < 0 ? kNoCell : static_cast<uint32_t>(cell);
    }
  }
}

// ---- Rows to tiles ----

// The sum over the lanes and warps before this one; `warp_sums` is scratch. All threads call it.
template <int kThreads>
__device__ uint32_t sum_before(uint32_t mine, uint32_t* warp_sums) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  uint32_t inclusive = mine;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, inclusive, d);
    if (lane >= d) inclusive += other;
  }
  if (lane == 31) warp_sums[warp] = inclusive;
  __syncthreads();
  const uint32_t before = __reduce_add_sync(~0u, lane < warp ? warp_sums[lane] : 0);
  static_assert(kThreads <= 1024);
  return before + inclusive - mine;
}

// Sorts the rows of a chunk by tile. A record is a place in its tile and, as a uint32, the row in its chunk << 16. Each
// tile's records are filled up to a multiple of four, so that four are read at once.
template <class Record, int kThreads, int kRows, bool kFast>
__global__ void __launch_bounds__(kThreads)
    deal_rows(const __grid_constant__ VoxelReduction call, const __grid_constant__ Plan plan,
              const __grid_constant__ FastGrid grid) {
  extern __shared__ __align__(16) unsigned char memory[];
  Record* const sorted = reinterpret_cast<Record*>(memory);
  uint32_t* const starts =
      reinterpret_cast<uint32_t*>(sorted + plan.capacity);  // counts, then starts; the last: no tile
  __shared__ uint32_t warp_sums[32];
  __shared__ uint32_t total;
  const int tiles = plan.tiling.tiles();
  const int place_bits = plan.tiling.place_bits();
  let_work_after_begin();
  for (int i = threadIdx.x; i <= tiles; i += kThreads) starts[i] = 0;
  wait_for_work_before();
  if (blockIdx.x == 0 && threadIdx.x == 0) *plan.taken = *plan.crowds = *plan.merges = 0;
  __syncthreads();

  const int64_t first = int64_t{blockIdx.x} * (kThreads * kRows);
  uint32_t places[kRows];  // tile << place_bits | place
  uint16_t ranks[kRows];   // among the rows of the tile
#pragma unroll
  for (int step = 0; step < kRows / 4; ++step) {
    uint32_t cells[4];
    cells_of_rows<kFast>(call, grid, first + (step * kThreads + threadIdx.x) * 4, plan.rows, cells);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t place =
          cells[i] == kNoCell ? static_cast<uint32_t>(tiles) << place_bits : plan.tiling.permuted(cells[i]);
      places[step * 4 + i] = place;
      ranks[step * 4 + i] = static_cast<uint16_t>(atomicAdd(&starts[place >> place_bits], 1));
    }
  }
  __syncthreads();

  const int per_thread = (tiles + kThreads - 1) / kThreads;
  const int begin = threadIdx.x * per_thread;
  const int end = min(tiles, begin + per_thread);
  uint32_t fours = 0;
  for (int i = begin; i < end; ++i) fours += (starts[i] + 3) / 4;
  uint32_t start = sum_before<kThreads>(fours, warp_sums);
  if (threadIdx.x == kThreads - 1) total = start + fours;
  for (int i = begin; i < end; ++i) {
    const uint32_t count = starts[i];
    const uint32_t filled = (count + 3) / 4;
    for (uint32_t k = count; k < filled * 4; ++k) sorted[start * 4 + k] = static_cast<Record>(~0u);
    plan.table[int64_t{i} * plan.chunks + blockIdx.x] = start << 16 | filled;
    starts[i] = start * 4;
    start += filled;
  }
  __syncthreads();

#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const uint32_t tile = places[i] >> place_bits;
    uint32_t record = places[i] & ((1u << place_bits) - 1);
    if (sizeof(Record) == 4) record |= ((i / 4 * kThreads + threadIdx.x) * 4 + i % 4) << 16;
    const uint32_t slot = starts[tile] + ranks[i];
    if (tile < static_cast<uint32_t>(tiles)) sorted[slot] = static_cast<Record>(record);
  }
  __syncthreads();

  const int vectors = static_cast<int>((total * 4 * sizeof(Record) + 15) / 16);
  uint4* const to = reinterpret_cast<uint4*>(static_cast<Record*>(plan.records) + int64_t{blockIdx.x} * plan.capacity);
  for (int i = threadIdx.x; i < vectors; i += kThreads) to[i] = reinterpret_cast<const uint4*>(sorted)[i];
}

// ---- The records of a tile ----

// Loads the tile's column of the table; returns how many records there are. All threads call it.
template <int kThreads>
__device__ uint32_t load_entries(const Plan& plan, uint32_t* entries, uint32_t* warp_sums) {
  uint32_t fours = 0;
  for (int i = threadIdx.x; i < plan.chunks; i += kThreads) {
    const uint32_t entry = plan.table[int64_t{blockIdx.x} * plan.chunks + i];
    entries[i] = entry;
    fours += entry & 0xffff;
  }
  fours = __reduce_add_sync(~0u, fours);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = fours;
  __syncthreads();
  const unsigned lane = threadIdx.x % 32;
  return __reduce_add_sync(~0u, lane < kThreads / 32 ? warp_sums[lane] : 0) * 4;
}

// Calls body(record, chunk) for the tile's records. `kLanes` neighbouring threads share a chunk's, four each at a time;
// loads of `kAhead` chunks are under way at once. Where
// `kShare`, a whole warp takes what is left of a long run: clouds in scan order fill a tile from few chunks.
template <class Record, int kThreads, int kLanes, int kAhead, bool kShare, class Body>
__device__ void for_each_record(const Plan& plan, const uint32_t* entries, Body body) {
  using Four = std::conditional_t<sizeof(Record) == 2, uint2, uint4>;
  constexpr int kGroups = kThreads / kLanes;
  const unsigned lane = threadIdx.x % kLanes;
  const auto each = [&](const Four& four, int chunk) {
    if constexpr (sizeof(Record) == 2) {
      body(four.x & 0xffff, chunk);
      body(four.x >> 16, chunk);
      body(four.y & 0xffff, chunk);
      body(four.y >> 16, chunk);
    } else {
      body(four.x, chunk);
      body(four.y, chunk);
      body(four.z, chunk);
      body(four.w, chunk);
    }
  };
  const auto load = [&](uint32_t entry, int chunk, unsigned i) {
    const Record* const of_chunk = static_cast<const Record*>(plan.records) + int64_t{chunk} * plan.capacity;
    return __ldcs(reinterpret_cast<const Four*>(of_chunk) + (entry >> 16) + i);
  };
  const int in_warp = threadIdx.x % 32 / kLanes;
  // All threads of a warp stay together.
  for (int base = threadIdx.x / kLanes; base - in_warp < plan.chunks; base += kGroups * kAhead) {
    Four fours[kAhead];
    uint32_t held[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int chunk = base + k * kGroups;
      held[k] = chunk < plan.chunks ? entries[chunk] : 0;
      if (lane < (held[k] & 0xffff)) fours[k] = load(held[k], chunk, lane);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int chunk = base + k * kGroups;
      const unsigned count = held[k] & 0xffff;
      if (lane < count) each(fours[k], chunk);
      const bool is_long = kShare && count > 4 * kLanes;
      for (unsigned i = lane + kLanes; i < count && !is_long; i += kLanes) each(load(held[k], chunk, i), chunk);
      if constexpr (kShare) {
        unsigned longer = __ballot_sync(~0u, lane == 0 && is_long);
        while (longer != 0) {
          const int leader = __ffs(longer) - 1;
          longer &= longer - 1;
          const uint32_t entry = __shfl_sync(~0u, held[k], leader);
          const int of_leader = __shfl_sync(~0u, chunk, leader);
          for (unsigned i = kLanes + threadIdx.x % 32; i < (entry & 0xffff); i += 32) {
            each(load(entry, of_leader, i), of_leader);
          }
        }
      }
    }
  }
}

// ---- Counts and occupancy ----

constexpr int kCountThreads = 1024;

// Counts are kept as 16 bits, two to a word, while the tile has too few rows to overflow them; else as 32 bits, one half
// of the tile after the other.
template <int kLanes>
__global__ void __launch_bounds__(kCountThreads, 2)
    count_tiles(const __grid_constant__ Plan plan, const __grid_constant__ Outputs outputs, int64_t cells) {
  extern __shared__ __align__(16) unsigned char memory[];
  uint32_t* const words = reinterpret_cast<uint32_t*>(memory);
  const int size = plan.tiling.tile_cells();
  uint32_t* const entries = words + size / 2;
  __shared__ uint32_t warp_sums[32];
  const auto clear = [&] {
    for (int i = threadIdx.x; i < size / 8; i += kCountThreads)
      reinterpret_cast<uint4*>(words)[i] = make_uint4(0, 0, 0, 0);
  };
  let_work_after_begin();
  clear();
  wait_for_work_before();
  const bool wide = load_entries<kCountThreads>(plan, entries, warp_sums) > 0xffff;
  int32_t* const counts = outputs.as<int32_t>(VoxelMode::kCount);
  bool* const occupancy = outputs.as<bool>(VoxelMode::kOccupancy);
  uint32_t* const bits = outputs.as<uint32_t>(VoxelMode::kOccupancyBits);
  for (int half = 0; half <= static_cast<int>(wide); ++half) {
    for_each_record<uint16_t, kCountThreads, kLanes, 4, false>(plan, entries, [&](uint32_t place, int) {
      if (place == kNoPlace) return;
      if (!wide) {
        atomicAdd(&words[place / 2], place % 2 ? 0x10000u : 1u);
      } else if (static_cast<int>(place >= size / 2) == half) {
        atomicAdd(&words[place % (size / 2)], 1u);
      }
    });
    __syncthreads();
    const auto count_at = [&](int i) { return wide ? words[i] : words[i / 2] >> (i % 2 * 16) & 0xffffu; };
    const int held = wide ? size / 2 : size;
    for (int i = threadIdx.x * 4; i < held; i += kCountThreads * 4) {
      const int place = half * held + i;
      const int64_t cell =
          plan.tiling.line_start((blockIdx.x << plan.tiling.row_bits) + place / kLineCells) + place % kLineCells;
      const uint32_t four[4] = {count_at(i), count_at(i + 1), count_at(i + 2), count_at(i + 3)};
      if (plan.whole && cell + 4 <= cells) {
        if (counts) reinterpret_cast<uint4*>(counts)[cell / 4] = make_uint4(four[0], four[1], four[2], four[3]);
        if (occupancy) {
          reinterpret_cast<uchar4*>(occupancy)[cell / 4] =
              make_uchar4(four[0] != 0, four[1] != 0, four[2] != 0, four[3] != 0);
        }
      } else {
        for (int k = 0; k < 4 && cell + k < cells; ++k) {
          if (counts) counts[cell + k] = static_cast<int32_t>(four[k]);
          if (occupancy) occupancy[cell + k] = four[k] != 0;
        }
      }
    }
    if (bits) {
      for (int i = threadIdx.x; i < held; i += kCountThreads) {
        const uint32_t word = __ballot_sync(~0u, count_at(i) != 0);
        const int64_t cell =
            plan.tiling.line_start((blockIdx.x << plan.tiling.row_bits) + (half * held + i) / kLineCells);
        if (i % kLineCells == 0 && cell < cells) bits[cell / kLineCells] = word;
      }
    }
    if (wide && half == 0) {
      __syncthreads();
      clear();
      __syncthreads();
    }
  }
}

// ---- Features ----

constexpr int kFeatureThreads = 512;

struct Wanted {
  bool sums;
  bool looks;  // a sum needs to know the largest before
  bool extremes;
  bool ends;  // first or last
};

// The rows of a cell, as those threads see them that share it: thread `index` of `step` takes every step-th.
struct CellRows {
  const uint32_t* rows;
  uint32_t points;
  uint32_t index;
  uint32_t step;
};

// A group is 2^lane_bits neighbouring threads that take a feature each.
struct Group {
  int lane_bits;

  __device__ unsigned lanes() const { return 1u << lane_bits; }
  __device__ unsigned lane() const { return threadIdx.x & (lanes() - 1); }
  __device__ unsigned of_block() const { return threadIdx.x >> lane_bits; }
  __device__ unsigned of_warp() const { return threadIdx.x % 32 >> lane_bits; }
  __device__ unsigned per(unsigned threads) const { return threads >> lane_bits; }
};

constexpr int kHeld = 8;  // values of a thread that are loaded at once

template <class T>
struct FeatureColumn {
  const T* first;
  uint32_t row_stride;

  __device__ FeatureWork<T> operator[](uint32_t row) const {
    return to_feature_work(first[static_cast<uint64_t>(row) * row_stride]);
  }
};

// Loads the first of a thread's values, as many as there are.
template <class T>
__device__ void load_values(const CellRows& cell, const FeatureColumn<T>& column, FeatureWork<T> (&values)[kHeld]) {
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const uint32_t at = cell.index + k * cell.step;
    if (at < cell.points) values[k] = column[cell.rows[at]];
  }
}

// Calls body(value) for each of a thread's rows; `values` holds the first, and keeps them where that is all.
template <class T, class Body>
__device__ void for_each_value(const CellRows& cell, const FeatureColumn<T>& column, FeatureWork<T> (&values)[kHeld],
                               Body body) {
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (cell.index + k * cell.step < cell.points) body(values[k]);
  }
  uint32_t at = cell.index + kHeld * cell.step;
  if (at >= cell.points) return;
  for (; at + (kHeld - 1) * cell.step < cell.points; at += kHeld * cell.step) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) values[k] = column[cell.rows[at + k * cell.step]];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) body(values[k]);
  }
  for (; at < cell.points; at += cell.step) body(column[cell.rows[at]]);
  load_values(cell, column, values);
}

// A feature of a cell, and the first and last of its rows, as far as one thread has seen them or several put together.
template <class T>
struct Found : CellFeature<T> {
  uint32_t first = ~0u;
  uint32_t last = 0;

  // Puts together what the groups of a warp found; every group gets it.
  __device__ void merge_in_warp(unsigned lanes) {
    for (unsigned d = lanes; d < 32; d *= 2) {
      this->sum += __shfl_xor_sync(~0u, this->sum, d);
      this->coarse_sum += __shfl_xor_sync(~0u, this->coarse_sum, d);
      this->above = max(this->above, __shfl_xor_sync(~0u, this->above, d));
      this->marks |= __shfl_xor_sync(~0u, this->marks, d);
      this->least = min(this->least, __shfl_xor_sync(~0u, this->least, d));
      this->greatest = max(this->greatest, __shfl_xor_sync(~0u, this->greatest, d));
      first = min(first, __shfl_xor_sync(~0u, first, d));
      last = max(last, __shfl_xor_sync(~0u, last, d));
    }
  }

  __device__ void merge_into(Merged& merged) const {
    if (this->sum) atomicAdd(&merged.sum, static_cast<Word>(this->sum));
    if (this->coarse_sum) atomicAdd(&merged.coarse_sum, static_cast<Word>(this->coarse_sum));
    atomicMin(&merged.least, static_cast<Word>(this->least));
    atomicMax(&merged.greatest, static_cast<Word>(this->greatest));
    atomicMax(&merged.above, this->above);
    if (this->marks) atomicOr(&merged.marks, this->marks);
    atomicMin(&merged.first, first);
    atomicMax(&merged.last, last);
  }

  __device__ void take(const Merged& merged) {
    this->sum = static_cast<int64_t>(merged.sum);
    this->coarse_sum = static_cast<int64_t>(merged.coarse_sum);
    this->least = static_cast<typename CellFeature<T>::Key>(merged.least);
    this->greatest = static_cast<typename CellFeature<T>::Key>(merged.greatest);
    this->above = merged.above;
    this->marks = merged.marks;
    first = merged.first;
    last = merged.last;
  }

  // Everything but the sum.
  __device__ void look_at(const CellRows& rows, const FeatureColumn<T>& column, const Wanted& wanted,
                          FeatureWork<T> (&values)[kHeld]) {
    if (wanted.looks || wanted.extremes) {
      for_each_value(rows, column, values, [&](FeatureWork<T> value) {
        if (wanted.looks) this->look(value);
        if (wanted.extremes) this->compare(value);
      });
      if (wanted.looks && !this->settled()) {
        for_each_value(rows, column, values, [&](FeatureWork<T> value) { this->look_closely(value); });
      }
    }
    if (wanted.ends) {
      for (uint32_t i = rows.index; i < rows.points; i += rows.step) {
        first = min(first, rows.rows[i]);
        last = max(last, rows.rows[i]);
      }
    }
  }

  // The sum, once what the cell's quantum goes by is known; `points` are all of the cell's.
  __device__ void add_up(const VoxelReduction& call, const CellRows& rows, uint32_t points,
                         const FeatureColumn<T>& column, FeatureWork<T> (&values)[kHeld]) {
    const Quantum<FeatureWork<T>> quantum(this->quantum(call, points));
    if (call.quantum_exponent == kOwnQuantum) {
      for_each_value(rows, column, values, [&](FeatureWork<T> value) { this->add_own(value, quantum); });
    } else {
      for_each_value(rows, column, values, [&](FeatureWork<T> value) { this->add_given(value, quantum); });
    }
  }

  __device__ void write_all(const VoxelReduction& call, const Outputs& outputs, const FeatureColumn<T>& column,
                            int64_t place, uint32_t points) const {
    this->write(call, outputs, place, points);
    T* const firsts = outputs.as<T>(VoxelMode::kFirst);
    T* const lasts = outputs.as<T>(VoxelMode::kLast);
    if (firsts) firsts[place] = from_feature_work<T>(column[first]);
    if (lasts) lasts[place] = from_feature_work<T>(column[last]);
  }
};

template <class T>
__device__ FeatureColumn<T> column_of(const VoxelReduction& call, int64_t feature) {
  return {static_cast<const T*>(call.features.data) + feature, static_cast<uint32_t>(call.features.row_stride)};
}

enum class Team { kGroup, kWarp };

// One cell by a group, or by all groups of a warp.
template <class T, Team kTeam>
__device__ void reduce_cell(const VoxelReduction& call, const Outputs& outputs, const Wanted& wanted,
                            const CellRows& rows, int64_t cell, Group group) {
  const int64_t count = call.features.count;
  if (rows.points == 0) {
    const CellFeature<T> nothing;
    for (int64_t f = group.lane(); f < count; f += group.lanes()) nothing.write(call, outputs, cell * count + f, 0);
    return;
  }
  for (int64_t base = 0; base < count; base += group.lanes()) {
    const int64_t wished = base + group.lane();
    const int64_t f = min(wished, count - 1);  // threads beyond the last go along with it, for the merges
    const FeatureColumn<T> column = column_of<T>(call, f);
    Found<T> found;
    FeatureWork<T> values[kHeld];
    load_values(rows, column, values);
    found.look_at(rows, column, wanted, values);
    if constexpr (kTeam == Team::kWarp) found.merge_in_warp(group.lanes());
    if (wanted.sums) {
      found.add_up(call, rows, rows.points, column, values);
      if constexpr (kTeam == Team::kWarp) found.merge_in_warp(group.lanes());
    }
    const bool writes = wished < count && (kTeam == Team::kGroup || threadIdx.x % 32 < group.lanes());
    if (writes) found.write_all(call, outputs, column, cell * count + f, rows.points);
  }
}

// ---- Crowded cells ----
//
// A warp takes a cell of one segment as a whole. Of the others' segments it first looks for what the cell's quantum goes
// by, then, in another kernel, adds up; both are put together in global memory.

// By one thread.
__device__ void announce_crowded(const VoxelReduction& call, const Plan& plan, CrowdedCell cell) {
  const uint32_t segments = (cell.points + kSegment - 1) / kSegment;
  const Word before = atomicAdd(plan.crowds, Word{1} << 32 | segments);
  const auto crowded = static_cast<uint32_t>(before >> 32);
  cell.first_segment = static_cast<uint32_t>(before);
  if (segments > 1) {
    cell.merged = static_cast<uint32_t>(atomicAdd(plan.merges, Word{1}));
    Merged* const merged = plan.merged + cell.merged * call.features.count;
    for (int64_t f = 0; f < call.features.count; ++f) merged[f].clear();
  }
  plan.crowded[crowded] = cell;
  for (uint32_t i = 0; i < segments; ++i) plan.crowded_of_segment[cell.first_segment + i] = crowded;
}

constexpr int kCrowdThreads = 128;

template <class T, bool kAdd>
__global__ void __launch_bounds__(kCrowdThreads)
    reduce_crowded(const __grid_constant__ VoxelReduction call, const __grid_constant__ Plan plan,
                   const __grid_constant__ Outputs outputs, const __grid_constant__ Wanted wanted, Group group) {
  wait_for_work_before();
  const auto segments = static_cast<uint32_t>(*plan.crowds);
  constexpr unsigned kWarps = kCrowdThreads / 32;
  for (uint32_t segment = blockIdx.x * kWarps + threadIdx.x / 32; segment < segments; segment += gridDim.x * kWarps) {
    const CrowdedCell cell = plan.crowded[plan.crowded_of_segment[segment]];
    const uint32_t begin = (segment - cell.first_segment) * kSegment;
    const CellRows rows{plan.sorted + cell.start + begin, min(kSegment, cell.points - begin), group.of_warp(),
                        group.per(32)};
    if (cell.points <= kSegment) {
      if (!kAdd) reduce_cell<T, Team::kWarp>(call, outputs, wanted, rows, cell.cell, group);
      continue;
    }
    for (int64_t base = 0; base < call.features.count; base += group.lanes()) {
      const int64_t wished = base + group.lane();
      const int64_t f = min(wished, call.features.count - 1);
      Merged& merged = plan.merged[cell.merged * call.features.count + f];
      const FeatureColumn<T> column = column_of<T>(call, f);
      Found<T> found;
      FeatureWork<T> values[kHeld];
      load_values(rows, column, values);
      if constexpr (kAdd) {
        found.above = merged.above;
        found.add_up(call, rows, cell.points, column, values);
      } else {
        found.look_at(rows, column, wanted, values);
      }
      found.merge_in_warp(group.lanes());
      if (threadIdx.x % 32 < group.lanes() && wished < call.features.count) found.merge_into(merged);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kCrowdThreads)
    write_merged(const __grid_constant__ VoxelReduction call, const __grid_constant__ Plan plan,
                 const __grid_constant__ Outputs outputs) {
  wait_for_work_before();
  const int64_t count = call.features.count;
  const int64_t places = static_cast<int64_t>(*plan.crowds >> 32) * count;
  const int64_t step = int64_t{gridDim.x} * kCrowdThreads;
  for (int64_t i = int64_t{blockIdx.x} * kCrowdThreads + threadIdx.x; i < places; i += step) {
    const CrowdedCell cell = plan.crowded[i / count];
    if (cell.points <= kSegment) continue;
    const int64_t f = i % count;
    Found<T> found;
    found.take(plan.merged[cell.merged * count + f]);
    found.write_all(call, outputs, column_of<T>(call, f), cell.cell * count + f, cell.points);
  }
}

// Sorts a tile's rows by cell, then takes the cells one by one.
template <class T>
__global__ void __launch_bounds__(kFeatureThreads, 2)
    reduce_tiles(const __grid_constant__ VoxelReduction call, const __grid_constant__ Plan plan,
                 const __grid_constant__ Outputs outputs, const __grid_constant__ Wanted wanted, Group group) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int size = plan.tiling.tile_cells();
  uint32_t* const ends =
      reinterpret_cast<uint32_t*>(memory);  // [size] counts, then starts, then ends of cells in `rows`
  uint32_t* const listed = ends + size;
  uint32_t* const entries = listed + plan.listed;
  __shared__ uint32_t warp_sums[32];
  __shared__ Word reserved;
  __shared__ bool crowds;
  __shared__ uint32_t tile_rows;
  for (int i = threadIdx.x; i < size; i += kFeatureThreads) ends[i] = 0;
  if (threadIdx.x == 0) {
    crowds = false;
  }
  wait_for_work_before();
  load_entries<kFeatureThreads>(plan, entries, warp_sums);
  for_each_record<uint32_t, kFeatureThreads, 4, 4, true>(plan, entries, [&](uint32_t record, int) {
    if ((record & 0xffff) != kNoPlace) atomicAdd(&ends[record & 0xffff], 1u);
  });
  __syncthreads();
  {
    const int per_thread = (size + kFeatureThreads - 1) / kFeatureThreads;
    const int begin = threadIdx.x * per_thread;
    const int end = min(size, begin + per_thread);
    uint32_t sum = 0;
    for (int i = begin; i < end; ++i) sum += ends[i];
    uint32_t start = sum_before<kFeatureThreads>(sum, warp_sums);
    for (int i = begin; i < end; ++i) {
      const uint32_t count = ends[i];
      ends[i] = start;
      start += count;
      if (count >= kCrowd) crowds = true;
    }
    if (threadIdx.x == kFeatureThreads - 1) tile_rows = start;
  }
  __syncthreads();
  const bool in_global_memory = crowds || tile_rows > static_cast<uint32_t>(plan.listed);
  if (threadIdx.x == 0 && in_global_memory) reserved = atomicAdd(plan.taken, Word{tile_rows});
  __syncthreads();
  uint32_t* const rows = in_global_memory ? plan.sorted + reserved : listed;
  for_each_record<uint32_t, kFeatureThreads, 4, 4, true>(plan, entries, [&](uint32_t record, int chunk) {
    if ((record & 0xffff) == kNoPlace) return;
    rows[atomicAdd(&ends[record & 0xffff], 1u)] = static_cast<uint32_t>(chunk) * plan.chunk + (record >> 16);
  });
  __syncthreads();

  int32_t* const counts = outputs.as<int32_t>(VoxelMode::kCount);
  bool* const occupancy = outputs.as<bool>(VoxelMode::kOccupancy);
  uint32_t* const bits = outputs.as<uint32_t>(VoxelMode::kOccupancyBits);
  const auto start_of = [&](int place) { return place ? ends[place - 1] : 0; };
  const auto cell_at = [&](int place) {
    return plan.tiling.line_start((blockIdx.x << plan.tiling.row_bits) + place / kLineCells) + place % kLineCells;
  };
  if (counts || occupancy || bits) {
    for (int place = threadIdx.x; place < size; place += kFeatureThreads) {
      const uint32_t points = ends[place] - start_of(place);
      const uint32_t word = __ballot_sync(~0u, points != 0);
      const int64_t cell = cell_at(place);
      if (cell >= call.cells) continue;
      if (counts) counts[cell] = static_cast<int32_t>(points);
      if (occupancy) occupancy[cell] = points != 0;
      if (bits && place % kLineCells == 0) bits[cell / kLineCells] = word;
    }
  }
  for (int place = group.of_block(); place < size; place += group.per(kFeatureThreads)) {
    const int64_t cell = cell_at(place);
    if (cell >= call.cells) continue;
    const uint32_t start = start_of(place);
    const uint32_t points = ends[place] - start;
    if (points < kCrowd) {
      reduce_cell<T, Team::kGroup>(call, outputs, wanted, {rows + start, points, 0, 1}, cell, group);
    } else if (group.lane() == 0) {
      announce_crowded(call, plan,
                       {static_cast<uint32_t>(cell), static_cast<uint32_t>(reserved) + start, points, 0, 0});
    }
  }
}

// ---- Launches ----

template <class... Parameters>
cudaError_t launch(void (*kernel)(Parameters...), int blocks, int threads, int64_t shared_bytes, cudaStream_t stream,
                   const Parameters&... arguments) {
  if (shared_bytes > 48 * 1024) {
    const cudaError_t code =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (code != cudaSuccess) return code;
  }
  return launch_overlapped(kernel, dim3(static_cast<unsigned>(blocks)), static_cast<unsigned>(threads),
                           static_cast<size_t>(shared_bytes), stream, arguments...);
}

template <class Record, int kThreads, int kRows>
cudaError_t deal(const VoxelReduction& call, const Plan& plan, cudaStream_t stream) {
  const int64_t bytes = plan.capacity * static_cast<int64_t>(sizeof(Record)) + (plan.tiling.tiles() + 1) * 4;
  const bool fast = is_fast(call);
  return launch(fast ? deal_rows<Record, kThreads, kRows, true> : deal_rows<Record, kThreads, kRows, false>,
                plan.chunks, kThreads, bytes, stream, call, plan, fast_grid(call.grid));
}

}  // namespace

bool goes_by_tiles(const VoxelReduction& call) {
  const int64_t rows = row_count(call.clouds);
  if (rows == 0 || rows >= int64_t{1} << 31 || call.cells == 0 || call.cells >= int64_t{1} << 31) return false;
  const bool features = any_features(call);
  if (features) {
    const Features& f = call.features;
    if (f.count == 0 || f.row_stride < 0 || f.row_stride >= int64_t{1} << 31) return false;
    // Rows of clouds that lie apart have no stride of their own.
    if (!call.clouds.offsets && call.clouds.count > 1 && f.cloud_stride != call.clouds.rows * f.row_stride)
      return false;
  }
  for (int32_t i = 0; i < call.output_count; ++i) {
    // A word of 32 voxels along z is a line where lines do not straddle the ends of z.
    if (call.outputs[i].mode == VoxelMode::kOccupancyBits && call.grid.shape[2] % kLineCells != 0) return false;
  }
  const Tiling tiling = tiling_for(call.cells, features, has_few_rows(call));
  // The most that shared memory takes: 2^15 cells to count, and lists of rows beside 2^13.
  return tiling.row_bits <= (features ? 8 : 10);
}

int64_t tiles_workspace_bytes(const VoxelReduction& call) {
  int64_t bytes = 0;
  plan_for(call, bytes);
  return bytes;
}

cudaError_t reduce_by_tiles(const VoxelReduction& call, cudaStream_t stream) {
  int64_t bytes = 0;
  const Plan plan = plan_for(call, bytes);
  const Outputs outputs(call);
  const bool few = plan.rows_per_thread == 4;
  if (!plan.features) {
    const cudaError_t code =
        few ? deal<uint16_t, 512, 4>(call, plan, stream) : deal<uint16_t, 1024, 16>(call, plan, stream);
    if (code != cudaSuccess) return code;
    return launch(few ? count_tiles<4> : count_tiles<8>, plan.tiling.tiles(), kCountThreads,
                  plan.tiling.tile_cells() * 2 + plan.chunks * 4, stream, plan, outputs, call.cells);
  }
  cudaError_t code = few ? deal<uint32_t, 512, 4>(call, plan, stream) : deal<uint32_t, 1024, 16>(call, plan, stream);
  if (code != cudaSuccess) return code;
  Wanted wanted{};
  wanted.sums = outputs[VoxelMode::kSum] || outputs[VoxelMode::kMean];
  wanted.looks = wanted.sums && is_floating(call.features.dtype) && call.quantum_exponent == kOwnQuantum;
  wanted.extremes = outputs[VoxelMode::kMin] || outputs[VoxelMode::kMax];
  wanted.ends = outputs[VoxelMode::kFirst] || outputs[VoxelMode::kLast];
  const auto widest = static_cast<unsigned>(std::min<int64_t>(call.features.count, 32));
  const Group group{static_cast<int>(std::bit_width(widest - 1))};
  const int64_t size = plan.tiling.tile_cells();
  return with_feature_type(call.features.dtype, [&](auto type) {
    using T = decltype(type);
    cudaError_t launched =
        launch(reduce_tiles<T>, plan.tiling.tiles(), kFeatureThreads, size * 4 + plan.listed * 4 + plan.chunks * 4,
               stream, call, plan, outputs, wanted, group);
    if (launched != cudaSuccess || plan.rows < kCrowd) return launched;
    constexpr int kBlocks = 132 * 16;
    launched = launch(reduce_crowded<T, false>, kBlocks, kCrowdThreads, 0, stream, call, plan, outputs, wanted, group);
    if (launched != cudaSuccess || plan.rows <= kSegment) return launched;
    if (wanted.sums) {
      launched = launch(reduce_crowded<T, true>, kBlocks, kCrowdThreads, 0, stream, call, plan, outputs, wanted, group);
      if (launched != cudaSuccess) return launched;
    }
    return launch(write_merged<T>, kBlocks / 16, kCrowdThreads, 0, stream, call, plan, outputs);
  });
}

}  // namespace robocache
