// voxelize_pointcloud: reduces points into a dense grid of voxels, with any number of results in one pass.
//
//   points         [N, 3 + C] or [B, N, 3 + C]   float32 or float64: x, y, z; C columns of features where none are given
//   features       [N, F] or [B, N, F], or none  float64/32/16, bfloat16, bool, integers of 8 to 32 bits, int64
//   lengths        [B] or none                   int32/int64: the points of each cloud that exist; with [B, N, ...]
//   batch_offsets  [B + 1] or none               int32/int64: cloud b has rows [offsets[b], offsets[b + 1]); with [N, ...]
//   outs           one for each mode             [X, Y, Z], [X, Y, Z, F], with a leading B where there is one; dense
//   dropped        [B], or [] for one cloud      int64: points in no voxel; or none
//   workspace      [bytes]                       voxelize_workspace_bytes of it, aligned to 256; none where that is 0
//
// The columns of a row of points or features lie side by side, other strides are free (0 included); lengths and offsets are
// dense; all tensors lie on one device. Units are the caller's, metres as a rule. A cloud has at most 2^31 - 1 points.
//
// Which voxel. floor((p - grid_min) / voxel_size) along each axis, by true division, in the type of the points:
// grid_min and voxel_size are rounded to float32 for float32 points, as numpy does; float64 points (UTM coordinates) take
// float64 throughout. A point outside the grid or not finite is in no voxel, and is counted in `dropped`.
//
//   mode             dtype                                  of a voxel
//   occupancy        bool                                   whether it has points
//   occupancy_bits   uint32 [X, Y, ceil(Z / 32)]            the same, z in word z / 32, bit z % 32; bits past Z are 0
//   count            int32                                  how many points
//   sum              features', of integers int64           see below
//   mean             features', of integers float32         the sum divided by the points, both exact, rounded once
//   min, max         features'                              -0 is below +0; NaN where one is NaN
//   first, last      features'                              of the point that comes first, or last, in its cloud
//
// A voxel without points holds `fill` (rounded to the dtype) in mean, min, max, first and last, else 0.
//
// Sums are in fixed point, so that they do not depend on the order of the points: fixed_point.hpp says with which quantum,
// how exact and what of NaN and infinities. `quantum` (a power of two that the features' dtype holds) takes the place of
// each voxel's own and spares the look at all features that finds it; where a sum of its multiples is beyond int64, sum
// and mean are NaN. Sums of int64 wrap; their mean is then NaN. `first` and `last` depend on the order, nothing else does.
//
// A voxel's bits depend on its own points alone. They are the same on every run, thread count, GPU, and on the CPU.
//
// The call queues work on `stream` and does not wait; on CUDA it allocates nothing. Throws ArgumentError, ArgumentTypeError
// (each names the argument), DeviceError.
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
  std::array<int64_t, 3> grid_size = {};                   // voxels along x, y, z; 0 and more
  std::vector<VoxelMode> modes = {VoxelMode::kOccupancy};  // each once
  std::variant<int64_t, double> fill = int64_t{0};         // whole and in range where an integer output takes it
  std::optional<double> quantum = {};                      // with sum or mean of floats

  static constexpr auto fields() {
    using V = VoxelizeOptions;
    return std::tuple(Field{"grid_min", &V::grid_min}, Field{"voxel_size", &V::voxel_size},
                      Field{"grid_size", &V::grid_size}, Field{"mode", &V::modes}, Field{"fill", &V::fill},
                      Field{"quantum", &V::quantum});
  }
};

// The dtype of that mode's out, for features of `features` or none. Throws ArgumentError where the mode needs them.
DType voxel_mode_dtype(VoxelMode mode, std::optional<DType> features);

// The outputs that each mode needs, as dense views without memory.
std::vector<TensorView> voxelize_outputs(const PointArguments& arguments, const VoxelizeOptions& options);

// The view that `dropped` must have.
TensorView voxelize_dropped(const PointArguments& arguments);

int64_t voxelize_workspace_bytes(const PointArguments& arguments, const VoxelizeOptions& options);

void voxelize_pointcloud(const PointArguments& arguments, const VoxelizeOptions& options,
                         const std::vector<TensorView>& outs, CudaStream stream,
                         const std::optional<TensorView>& dropped = std::nullopt,
                         const std::optional<TensorView>& workspace = std::nullopt);

// The checked call that the engine gets; voxels/reduce_way.hpp says which way it takes.
VoxelReduction voxelize_reduction(const PointArguments& arguments, const VoxelizeOptions& options,
                                  const std::vector<TensorView>& outs, const std::optional<TensorView>& dropped,
                                  const std::optional<TensorView>& workspace);

// Adds the gradient by the features, from the gradient by the output of one mode that takes features.
// voxels/reduce_backward.hpp says which points get it.
//
//   arguments          as of the call, with features of floats
//   options            as of the call, `modes` the one mode
//   out_gradient       as the mode's out
//   made               of mean the call's counts, of min and max its out; else none
//   features_gradient  [N, F] or [B, N, F], dense: float64 for float64 features, else float32
//   workspace          voxelize_gradient_workspace_bytes of it; none where that is 0
//
// Queued like the call itself; the same bits on every run, on the CPU and on CUDA.
int64_t voxelize_gradient_workspace_bytes(const PointArguments& arguments, const VoxelizeOptions& options);

void voxelize_pointcloud_backward(const PointArguments& arguments, const VoxelizeOptions& options,
                                  const TensorView& out_gradient, const std::optional<TensorView>& made,
                                  const TensorView& features_gradient, CudaStream stream,
                                  const std::optional<TensorView>& workspace = std::nullopt);

}  // namespace robocache
