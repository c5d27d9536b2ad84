#include <algorithm>

#include "robocache/voxels/tile_records_cuda.cuh"

namespace robocache {
namespace {

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

// Sorts the rows of a chunk by tile. A record is a place in its tile and, as a uint32, the row in its chunk << 16. Each
// tile's records are filled up to a multiple of four, so that four are read at once.
template <class Record, int kThreads, int kRows, bool kFast>
__global__ void __launch_bounds__(kThreads)
    deal_rows(const __grid_constant__ VoxelReduction call, const __grid_constant__ TilePlan plan,
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
  uint4* const to =
      reinterpret_cast<uint4*>(reinterpret_cast<Record*>(plan.records) + int64_t{blockIdx.x} * plan.capacity);
  for (int i = threadIdx.x; i < vectors; i += kThreads) to[i] = reinterpret_cast<const uint4*>(sorted)[i];
}

template <class Record, int kThreads, int kRows>
cudaError_t deal(const VoxelReduction& call, const TilePlan& plan, cudaStream_t stream) {
  const bool fast = is_fast(call);
  return launch_tile_kernel(fast ? deal_rows<Record, kThreads, kRows, true> : deal_rows<Record, kThreads, kRows, false>,
                            plan.chunks, kThreads, plan.bytes_to_deal(), stream, call, plan, fast_grid(call.grid));
}

}  // namespace

cudaError_t launch_deal_rows(const VoxelReduction& call, const TilePlan& plan, cudaStream_t stream) {
  // As dealing_threads and rows_of_chunk say.
  if (plan.features) {
    return plan.few ? deal<uint32_t, 1024, 4>(call, plan, stream) : deal<uint32_t, 1024, 16>(call, plan, stream);
  }
  return plan.few ? deal<uint16_t, 1024, 4>(call, plan, stream) : deal<uint16_t, 512, 16>(call, plan, stream);
}

}  // namespace robocache
