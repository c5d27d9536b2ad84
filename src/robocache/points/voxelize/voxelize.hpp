// voxelize_pointcloud: reduces points into a dense grid of voxels, with one or more results in one pass.
//
//   arguments  points, features, lengths and batch_offsets, as voxels/validate.hpp defines them
//   outs       one for each mode            [X, Y, Z] or [X, Y, Z, F], with a leading B for batches; dense
//   dropped    [B], or [] for one cloud     int64: points in no voxel; or none
//   workspace  [bytes]                      voxelize_workspace_bytes of it, aligned to 256; none if that is 0
//
// All tensors are on one device. The unit is the caller's, usually metres. A cloud has at most 2^31 - 1 points.
//
// A point's voxel is floor((p - grid_min) / voxel_size) along each axis, by true division, in the dtype of the points:
// for float32 points, grid_min and voxel_size are rounded to float32, as numpy does; float64 points (UTM coordinates)
// use float64 throughout. A point that is outside the grid or not finite is in no voxel, and is counted in `dropped`.
//
//   mode             dtype                                  value of a voxel
//   occupancy        bool                                   whether it has points
//   occupancy_bits   uint32 [X, Y, ceil(Z / 32)]            the same, z in word z / 32, bit z % 32; bits past Z are 0
//   count            int32                                  how many points
//   sum              features', of integers int64           see below
//   mean             features', of integers float32         the sum divided by the points, both exact, rounded once
//   min, max         features'                              -0 is below +0; NaN if any is NaN
//   first, last      features'                              features of the cloud's first or last point in the voxel
//
// A voxel without points holds `fill` (rounded to the dtype) in mean, min, max, first and last, else 0.
//
// Sums are in fixed point, so they do not depend on the order of the points. fixed_point.hpp defines their quantum,
// their error, and the results for NaN and infinities. `quantum`, a power of two in the features' dtype, replaces each
// voxel's own quantum; this saves a pass over the features. If a sum in quanta exceeds int64, sum and mean are NaN.
// Sums of int64 wrap, and their mean is then NaN. Only `first` and `last` depend on the order of the points.
//
// A voxel's result depends only on its own points. Its bits are the same on every run, with any number of threads, on
// any GPU and on the CPU.
//
// The call queues work on `stream` and does not wait; on CUDA it allocates nothing. Throws ArgumentError or
// ArgumentTypeError, which name the argument, or DeviceError.
//
//   std::vector<float> points{0.1f, 0.2f, 0.3f,  0.4f, 0.1f, 0.2f,  -1, 0, 0};
//   std::vector<int32_t> counts(2 * 2 * 2);
//   int64_t dropped = 0;
//   voxelize_pointcloud({.points = TensorView::contiguous(points.data(), DType::kFloat32, {3, 3})},
//                       {.grid_min = {0, 0, 0}, .voxel_size = {0.5, 0.5, 0.5}, .grid_size = {2, 2, 2},
//                        .modes = {VoxelMode::kCount}},
//                       {TensorView::contiguous(counts.data(), DType::kInt32, {2, 2, 2})},
//                       CudaStream{}, TensorView::contiguous(&dropped, DType::kInt64, {}));  // counts[0] = 2, dropped = 1
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <variant>
#include <vector>

#include "robocache/core/tensor_view.hpp"
#include "robocache/points/voxels/reduce.hpp"
#include "robocache/points/voxels/validate.hpp"

namespace robocache {

struct VoxelizeOptions {
  std::array<double, 3> grid_min = {};
  std::array<double, 3> voxel_size = {};                   // positive
  std::array<int64_t, 3> grid_size = {};                   // voxels along x, y, z; may be 0
  std::vector<VoxelMode> modes = {VoxelMode::kOccupancy};  // each at most once
  std::variant<int64_t, double> fill = int64_t{0};         // whole and in range if an output of integers uses it
  std::optional<double> quantum = {};                      // only for sum or mean of floats

  static constexpr auto fields() {
    using V = VoxelizeOptions;
    return std::tuple(Field{"grid_min", &V::grid_min}, Field{"voxel_size", &V::voxel_size},
                      Field{"grid_size", &V::grid_size}, Field{"mode", &V::modes}, Field{"fill", &V::fill},
                      Field{"quantum", &V::quantum});
  }
};

// Returns the dtype of a mode's output, for features of dtype `features` or none. Throws ArgumentError if the mode
// needs features.
DType voxel_mode_dtype(VoxelMode mode, std::optional<DType> features);

// Returns the outputs of the modes as dense views without memory.
std::vector<TensorView> voxelize_outputs(const PointArguments& arguments, const VoxelizeOptions& options);

// Returns the view that `dropped` must have.
TensorView voxelize_dropped(const PointArguments& arguments);

int64_t voxelize_workspace_bytes(const PointArguments& arguments, const VoxelizeOptions& options);

void voxelize_pointcloud(const PointArguments& arguments, const VoxelizeOptions& options,
                         const std::vector<TensorView>& outs, CudaStream stream,
                         const std::optional<TensorView>& dropped = std::nullopt,
                         const std::optional<TensorView>& workspace = std::nullopt);

// Returns the checked call that the engine gets; voxels/reduce_way.hpp chooses its path.
VoxelReduction voxelize_reduction(const PointArguments& arguments, const VoxelizeOptions& options,
                                  const std::vector<TensorView>& outs, const std::optional<TensorView>& dropped,
                                  const std::optional<TensorView>& workspace);

// Adds the gradient with respect to the features, from the gradient of the output of one mode that takes features.
// voxels/reduce_backward.hpp defines which points get it.
//
//   arguments          those of the call, with features of floats
//   options            those of the call; `modes` is the one mode
//   out_gradient       like the mode's out
//   forward            for mean, the call's counts; for min and max, its out; else none
//   features_gradient  [N, F] or [B, N, F], dense: float64 for float64 features, else float32
//   workspace          voxelize_gradient_workspace_bytes of it; none if that is 0
//
// The work is queued like the call's own. The bits are the same on every run, on the CPU and on CUDA.
int64_t voxelize_gradient_workspace_bytes(const PointArguments& arguments, const VoxelizeOptions& options);

void voxelize_pointcloud_backward(const PointArguments& arguments, const VoxelizeOptions& options,
                                  const TensorView& out_gradient, const std::optional<TensorView>& forward,
                                  const TensorView& features_gradient, CudaStream stream,
                                  const std::optional<TensorView>& workspace = std::nullopt);

}  // namespace robocache
