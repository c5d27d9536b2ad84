// voxel_downsample: returns one point for each voxel that contains points.
//
//   points     [N, 3 + C]   float32 or float64; x, y, z first; outer strides are free
//   features   [N, F]       floats and integers; none: the columns 3.. of points are features and stay in the points
//
// A point's cell is floor((p - origin) / voxel_size) by true division in the dtype of the points (voxels/cell.hpp). A
// point is left out if it is not finite or more than 2^62 cells from the origin. If a cell is beyond int32, the call
// numbers the voxels a second time, with int64: this step then takes twice the time, and on CUDA waits for the device
// once more. Voxels are in the order of their first points. The point of a voxel is:
//   centroid  the mean of its points and of their features, in fixed point and rounded once (voxels/reduce.hpp);
//             integer features have float32 means
//   first     its first point in input order
//   random    one of its points, all equally likely: the point with the least sample_priority(seed, row)
//
// The bits are the same on every run, on the CPU and on CUDA. `random` depends only on the seed and the voxel's own
// rows, not on other points. On CUDA the call waits for the device once, to get the number of voxels. There may be up
// to 2^31 - 1 rows, on CUDA 2^30.
//
// Open3D's voxel_down_sample is `centroid` with float64 points and origin = their minimum - voxel_size / 2, but in
// another order.
//
// Throws ArgumentError or ArgumentTypeError, which name the argument, or DeviceError.
//
//   DownsampleOptions options;
//   options.voxel_size = {0.05, 0.05, 0.05};
//   const Downsampled result = voxel_downsample(points, std::nullopt, options, allocate, stream);   // [M, 3 + C]
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>

#include "robocache/points/voxelize_sparse/voxelize_sparse.hpp"

namespace robocache {

enum class DownsampleMethod : uint8_t { kCentroid, kFirst, kRandom };

template <>
inline constexpr std::string_view kNames<DownsampleMethod>[] = {"centroid", "first", "random"};

struct DownsampleOptions {
  std::array<double, 3> voxel_size{};  // along x, y, z in the unit of the points; positive and finite
  std::array<double, 3> origin{};
  DownsampleMethod method = DownsampleMethod::kCentroid;
  std::optional<int64_t> seed{};  // needed for `random`, refused for the others

  static constexpr auto fields() {
    using D = DownsampleOptions;
    return std::tuple(Field{"voxel_size", &D::voxel_size}, Field{"origin", &D::origin}, Field{"method", &D::method},
                      Field{"seed", &D::seed});
  }
};

struct Downsampled {
  TensorView points;                   // [M, 3 + C]; with features [M, 3]
  std::optional<TensorView> features;  // [M, F]
  TensorView point_to_voxel;           // int32 [N], -1 for points left out
  std::optional<TensorView> counts;    // int32 [M], the number of points in the voxel: for centroid only
  std::optional<TensorView> row;       // int32 [M], the row of each point: for first and random
};

Downsampled voxel_downsample(const TensorView& points, const std::optional<TensorView>& features,
                             const DownsampleOptions& options, const Allocate& allocate, CudaStream stream);

}  // namespace robocache
