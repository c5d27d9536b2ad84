// Maps points to cells, four at a time. Packed float32 points of one cloud take fewer instructions than the scalar
// rule, and get the same cells.
#pragma once

#include <algorithm>
#include <cstdint>

#include "robocache/points/voxels/cuda/rows_cuda.cuh"

namespace robocache::voxels_cuda {

// The numbers that find the cells of packed float32 points of one cloud. A multiplication gives the quotient to within
// `error` for a point in the grid. If that leaves the cell in doubt, the division decides.
struct FastGrid {
  float origin[3];
  float size[3];
  float inverse[3];
  float error;
  uint32_t shape[3];
};

inline constexpr int64_t kMostCellsPerAxis = 4096;

inline bool is_fast(const VoxelReduction& call) {
  const Clouds& clouds = call.clouds;
  if (!call.by_grid || clouds.dtype != DType::kFloat32 || clouds.count != 1 || clouds.lengths || clouds.offsets ||
      clouds.row_stride != 3 || reinterpret_cast<uintptr_t>(clouds.points) % 16 != 0) {
    return false;
  }
  for (int axis = 0; axis < 3; ++axis) {
    const double size = call.grid.size[axis];
    if (call.grid.shape[axis] > kMostCellsPerAxis || !(size > 0x1p-100 && size < 0x1p100)) return false;
  }
  return true;
}

inline FastGrid fast_grid(const VoxelGrid& grid) {
  FastGrid fast{};
  for (int axis = 0; axis < 3; ++axis) {
    fast.origin[axis] = static_cast<float>(grid.origin[axis]);
    fast.size[axis] = static_cast<float>(grid.size[axis]);
    fast.inverse[axis] = 1 / fast.size[axis];
    fast.shape[axis] = static_cast<uint32_t>(grid.shape[axis]);
    // The quotients by division and by multiplication differ by at most three roundings, each of 2^-24 of the quotient.
    // For a point in or near the grid they are below 4/3 of its shape: together 2^-22 of the shape.
    fast.error = std::max(fast.error, static_cast<float>(grid.shape[axis]) * 0x1p-22f);
  }
  return fast;
}

static __device__ __noinline__ int32_t divided_coordinate(float p, float origin, float size) {
  const float quotient = floorf(__fdiv_rn(p - origin, size));
  return quotient >= 0 && quotient < 0x1p22f ? static_cast<int32_t>(quotient) : -1;
}

inline constexpr uint32_t kNoCell = ~0u;

// `p` holds x, y, z of four points.
__device__ inline void cells_of(const FastGrid& grid, const float (&p)[12], uint32_t (&cells)[4]) {
  // The sum of kFloor and a number below 2^22, rounded down, has the number's floor in its low bits. Other numbers give
  // no coordinate of a grid.
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

// Loads x, y, z of rows [row, row + 4) of packed points; NaN for rows from `end` on.
__device__ inline void load_points(const VoxelReduction& call, int64_t row, int64_t end, float (&p)[12]) {
  const float* const points = static_cast<const float*>(call.clouds.points) + row * 3;
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
}

__device__ inline void count_dropped(const VoxelReduction& call, int64_t row, int64_t end, const uint32_t (&cells)[4]) {
  if (!call.dropped) return;
  int dropped = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) dropped += row + i < end && cells[i] == kNoCell;
  if (dropped) atomicAdd(reinterpret_cast<Word*>(call.dropped), static_cast<Word>(dropped));
}

// Finds the cells of those rows of [row, row + 4) that are below `end`. With kFast, `p` holds their points.
template <bool kFast>
__device__ void cells_of_rows(const VoxelReduction& call, const FastGrid& grid, int64_t row, int64_t end,
                              const float (&p)[12], uint32_t (&cells)[4]) {
  if constexpr (kFast) {
    cells_of(grid, p, cells);
    count_dropped(call, row, end, cells);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t cell = row + i < end ? cell_of(call, row + i) : -1;
      cells[i] = cell < 0 ? kNoCell : static_cast<uint32_t>(cell);
    }
  }
}

}  // namespace robocache::voxels_cuda
