// Chooses the way of the CUDA engine for a call (the CPU has one way). No result depends on it, but tests check which way a
// cloud went.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "robocache/points/voxels/reduce.hpp"

namespace robocache {

enum class ReduceWay : int32_t {
  kPacked,   // counts and occupancy of few points, by atomic operations at once
  kBits,     // occupancy alone of many: a bit a cell in shared memory
  kChunks,   // sums of many rows in scan order, a chunk of neighbouring rows at a time
  kTiles,    // rows partitioned into tiles of cells
  kAtomics,  // all else, by atomic operations on arrays over all cells
};

// ---- What sizes say: whether a way would serve. ----
// If the device lacks room for it, or memory is not aligned, a later way is taken.

inline constexpr int64_t kFewRows = int64_t{1} << 20;

template <class Is>
bool any_output(const VoxelReduction& call, Is is) {
  return std::any_of(call.outputs, call.outputs + call.output_count,
                     [&](const VoxelOutput& output) { return is(output.mode); });
}

// Few points reach their cells sooner than two kernels could partition them.
inline bool suits_packed(const VoxelReduction& call) {
  const int64_t rows = row_count(call.clouds);
  return call.by_grid && rows > 0 && rows <= kFewRows && call.cells < int64_t{1} << 31 &&
         !any_output(call, [](VoxelMode mode) { return mode != VoxelMode::kCount && mode != VoxelMode::kOccupancy; });
}

inline bool suits_bits(const VoxelReduction& call) {
  const int64_t rows = row_count(call.clouds);
  if (call.cells == 0 || call.cells > int64_t{1} << 24 || call.output_count == 0) return false;
  // Tiles mark fewer points sooner than the bits of all blocks could be combined.
  if (rows <= kFewRows || rows < 2 * call.cells) return false;
  // A word of 32 voxels along z is one of 32 cells where none straddles the ends of z.
  const bool straddles = call.grid.shape[2] % 32 != 0;
  return !any_output(call, [&](VoxelMode mode) {
    return mode != VoxelMode::kOccupancy && (mode != VoxelMode::kOccupancyBits || straddles);
  });
}

inline bool suits_tiles(const VoxelReduction& call) {
  const int64_t rows = row_count(call.clouds);
  if (rows == 0 || rows >= int64_t{1} << 31 || call.cells == 0 || call.cells >= int64_t{1} << 31) return false;
  if (any_output(call, takes_features)) {
    const Features& f = call.features;
    if (f.count == 0 || f.row_stride < 0 || f.row_stride >= int64_t{1} << 31) return false;
    if (f.count >= int64_t{1} << 23) return false;  // a line's bytes are numbers of 32 bits
    // Rows of clouds that lie apart have no stride of their own.
    const Clouds& clouds = call.clouds;
    if (!clouds.offsets && clouds.count > 1 && f.cloud_stride != clouds.rows * f.row_stride) return false;
  }
  const bool straddles = call.grid.shape[2] % 32 != 0;
  return !(straddles && any_output(call, [](VoxelMode mode) { return mode == VoxelMode::kOccupancyBits; }));
}

// Whether rows of features are whole vectors, at most 32 of them.
inline constexpr int kWide = 4;
inline bool goes_wide(const Features& f) {
  return f.count % kWide == 0 && f.count <= int64_t{32} * kWide && f.row_stride % kWide == 0;
}

// For calls that suit tiles: a sample on the device decides which of the two is better.
inline bool suits_chunks(const VoxelReduction& call) {
  const Features& f = call.features;
  const bool sums =
      any_output(call, [](VoxelMode mode) { return mode == VoxelMode::kSum || mode == VoxelMode::kMean; });
  const bool others = any_output(call, [](VoxelMode mode) { return mode > VoxelMode::kMean; });
  if (!sums || others || !is_floating(f.dtype) || f.dtype == DType::kFloat64 || !goes_wide(f)) return false;
  if (call.quantum_exponent != kOwnQuantum && std::abs(call.quantum_exponent) > 126) return false;
  // Few rows are quicker by tiles alone. The price is arrays over all cells: about the size of the features in float32.
  const int64_t rows = row_count(call.clouds);
  return rows > kFewRows && rows >= 4 * call.cells && call.cells * f.count < int64_t{1} << 32;
}

// ---- What was done. ----

// The way that a call to reduce_into_voxels went; its workspace must be unchanged since. Waits for the device.
ReduceWay reduce_way_taken(const VoxelReduction& call, int32_t device, CudaStream stream);

}  // namespace robocache
