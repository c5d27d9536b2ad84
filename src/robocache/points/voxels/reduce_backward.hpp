// The gradient of reduce_into_voxels with respect to the features, for one mode. With sum, every point of a voxel gets
// the voxel's gradient; with mean, every point gets that gradient divided by the number of points. With min, max, first
// and last, one point gets it; of points that tie, the first. Nothing is added across points, so the bits do not depend
// on the order of the work.
#pragma once

#include <cstdint>
#include <type_traits>

#include "robocache/core/device.hpp"
#include "robocache/core/order_key.hpp"
#include "robocache/points/voxels/cell.hpp"
#include "robocache/points/voxels/clouds.hpp"
#include "robocache/points/voxels/feature.hpp"
#include "robocache/points/voxels/reduce.hpp"

namespace robocache {

struct VoxelGradient {
  Clouds clouds;
  Features features;  // of floats
  VoxelGrid grid;
  int64_t cells;  // number of cells of all clouds
  VoxelMode mode;
  const void* out_gradient;  // [cells, F] of the features' dtype, dense
  const void* result;        // for min, max: the call's result, like out_gradient; for mean: its counts, int32 [cells]
  int32_t* chosen;           // for min, max, first, last: [cells, F] the row, in its cloud, that gets the gradient
  // [rows of all clouds, F], dense: float64 for float64 features, else float32; the gradient is added here
  void* features_gradient;
};

// Whether one point of a voxel gets the gradient of that mode.
ROBOCACHE_HD bool goes_to_one(VoxelMode mode) { return mode >= VoxelMode::kMin; }

// Returns the initial value of `chosen`. Any row that may take the gradient replaces it: the least, or for `last` the
// greatest.
ROBOCACHE_HD int32_t no_row(VoxelMode mode) { return mode == VoxelMode::kLast ? -1 : INT32_MAX; }

template <class T>
using FeatureGradient = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Whether a feature may get its voxel's gradient. `entry` is cell * F + f.
template <class T>
ROBOCACHE_HD bool may_take(const VoxelGradient& call, T feature, int64_t entry) {
  if (call.mode != VoxelMode::kMin && call.mode != VoxelMode::kMax) return true;
  // The comparison is that of min and max: -0 differs from 0, and NaN equals NaN.
  return min_key(to_feature_work(feature)) == min_key(to_feature_work(static_cast<const T*>(call.result)[entry]));
}

// Returns the gradient of a row. `row` is its number in its cloud.
template <class T>
ROBOCACHE_HD FeatureGradient<T> gradient_of(const VoxelGradient& call, int64_t row, int64_t cell, int64_t entry) {
  if (goes_to_one(call.mode) && call.chosen[entry] != row) return 0;
  const auto gradient = static_cast<double>(to_feature_work(static_cast<const T*>(call.out_gradient)[entry]));
  if (call.mode != VoxelMode::kMean) return static_cast<FeatureGradient<T>>(gradient);
  return static_cast<FeatureGradient<T>>(gradient /
                                         static_cast<double>(static_cast<const int32_t*>(call.result)[cell]));
}

// Queues the work on `stream` and does not wait. The caller has checked the call.
void reduce_into_voxels_backward(const VoxelGradient& call, Device device, CudaStream stream);

}  // namespace robocache
