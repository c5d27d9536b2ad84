// Chooses the path of the CUDA engine for a call (the CPU has one path). The results do not depend on the choice.
//
// No path can be left out without a loss. On random shapes (H100), the median call takes 1.8 times as long without
// kPacked and 1.4 times as long without kBits. Without kTiles the median is the same, but calls of many features or
// points take up to 4.7 times as long.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "robocache/points/voxels/reduce.hpp"

namespace robocache {

enum class ReduceWay : int32_t {
  kPacked,   // counts and occupancy of few points, by atomic operations
  kBits,     // occupancy alone of many points: a bit per cell in shared memory
  kTiles,    // rows partitioned into tiles of cells, or sums by chunks of neighbouring rows
  kAtomics,  // everything else, by atomic operations on arrays over all cells
};

// If the device lacks memory for a path, or arrays are not aligned, the next path is tried.

inline constexpr int64_t kFewRows = int64_t{1} << 20;

// For few points, direct atomic operations are faster than two kernels that partition first.
inline bool suits_packed(const VoxelReduction& call) {
  const int64_t rows = row_count(call.clouds);
  return call.by_grid && rows > 0 && rows <= kFewRows && call.cells < int64_t{1} << 31 &&
         !any_output(call, [](VoxelMode mode) { return mode != VoxelMode::kCount && mode != VoxelMode::kOccupancy; });
}

inline bool suits_bits(const VoxelReduction& call) {
  const int64_t rows = row_count(call.clouds);
  if (call.cells == 0 || call.cells > int64_t{1} << 24 || call.output_count == 0) return false;
  // For fewer points, tiles are faster than combining the bits of all blocks.
  if (rows <= kFewRows || rows < 2 * call.cells) return false;
  // A word of the result holds 32 voxels along z. It is also a word of 32 neighbouring cells, if no such word crosses the
  // end of a column.
  const bool cross_columns = call.grid.shape[2] % 32 != 0;
  return !any_output(call, [&](VoxelMode mode) {
    return mode != VoxelMode::kOccupancy && (mode != VoxelMode::kOccupancyBits || cross_columns);
  });
}

inline bool suits_tiles(const VoxelReduction& call) {
  const int64_t rows = row_count(call.clouds);
  if (rows == 0 || rows >= int64_t{1} << 31 || call.cells == 0 || call.cells >= int64_t{1} << 31) return false;
  if (any_output(call, takes_features)) {
    const Features& f = call.features;
    if (f.count == 0 || f.row_stride < 0 || f.row_stride >= int64_t{1} << 31) return false;
    if (f.count >= int64_t{1} << 23) return false;  // a line's bytes are counted in 32 bits
    // The rows of separate clouds have no common stride.
    const Clouds& clouds = call.clouds;
    if (!clouds.offsets && clouds.count > 1 && f.cloud_stride != clouds.rows * f.row_stride) return false;
  }
  const bool cross_columns = call.grid.shape[2] % 32 != 0;
  return !(cross_columns && any_output(call, [](VoxelMode mode) { return mode == VoxelMode::kOccupancyBits; }));
}

inline constexpr int kWide = 4;  // features in a vector

// Whether rows of features are whole vectors, at most 32 of them.
inline bool goes_wide(const Features& f) {
  return f.count % kWide == 0 && f.count <= int64_t{32} * kWide && f.row_stride % kWide == 0;
}

// Whether a call that suits tiles may use chunks. A sample on the device then decides which of the two is better.
// Means of 8 features of 10 million lidar points take 1.4 to 1.9 times as long by tiles.
inline bool suits_chunks(const VoxelReduction& call) {
  const Features& f = call.features;
  const bool has_sums =
      any_output(call, [](VoxelMode mode) { return mode == VoxelMode::kSum || mode == VoxelMode::kMean; });
  const bool has_others = any_output(call, [](VoxelMode mode) { return mode > VoxelMode::kMean; });
  if (!has_sums || has_others || !is_floating(f.dtype) || f.dtype == DType::kFloat64 || !goes_wide(f)) return false;
  if (call.quantum_exponent != kOwnQuantum && std::abs(call.quantum_exponent) > 126) return false;
  // For few rows, tiles alone are faster. Chunks need arrays over all cells, about the size of the features in float32.
  const int64_t rows = row_count(call.clouds);
  return rows > kFewRows && rows >= 4 * call.cells && call.cells * f.count < int64_t{1} << 32;
}

}  // namespace robocache
