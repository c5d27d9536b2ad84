// integrate_tsdf: adds measurements of range sensors to a grid of truncated signed distances, in place (rule 32 of
// docs/rules.md).
//
//   grid            [X, Y, Z]               float32 metres, positive in front of the surface; updated
//   weights         [X, Y, Z]               float32, rays that each voxel has seen; not above 0 (NaN too): unseen, and what
//                                           grid holds there does not count; updated
//   points          [N, 3] or [K, N, 3]     float32 or float64, in the frame of the sensor; without intrinsics
//   depth           [H, W] or [K, H, W]     float32 metres, or uint16 with depth_scale; with intrinsics
//   T_world_sensor  [4, 4] or [K, 4, 4]     float64 or float32 on the CPU or beside the grid: from each sensor to its frame
//   intrinsics      [3, 3] or [4], or       likewise: camera matrices without skew, or fx, fy, cx, cy; depth along +z, x to
//                   [K, 3, 3] or [K, 4]     the right, y down, pixel centres at whole numbers
//   workspace       [N] or none             tsdf_workspace_bytes of memory, aligned to 16; its content is free
//
// Strides are free; but for T_world_sensor and intrinsics all lies on one device. Voxel (i, j, k) has its centre v at
// grid_min + (i + 1/2, j + 1/2, k + 1/2) * voxel_size. All geometry is float64's, to the bit.
//
// Points. A ray leaves the sensor at o = T's translation in the unit direction d of R p; its range r is |R p|. It passes
// through the voxels in which it spends a positive length, between planes that it crosses at (plane - o) / d along each
// axis; where d is 0 it lies in the one with plane(i) <= o < plane(i + 1). In each of them
//     sdf = r - (v - o).d
// Not finite, or of range 0: no measurement.
//
// Depth images. A voxel's centre in the camera's frame is c = transpose(R) (v - o), its pixel round(fx c.x / c.z + cx),
// round(fy c.y / c.z + cy), midway to the even one, for c.z > 0. Where that pixel measured depth D (finite, above 0)
//     sdf = (D - c.z) * |c| / c.z
// At most one measurement a voxel and image.
//
// The update. |sdf| <= truncation is one, with space_carving also sdf > truncation, as +truncation; sdf < -truncation never.
// All n measurements of a voxel in one call count at once, whatever their order: rounded to multiples of a quantum, the
// power of two in (truncation / 2^32, truncation / 2^31], and added exactly to `sum`. Then, each operation in float64 and
// rounded to float32 when stored,
//     grid    = (grid * weight + sum) / (weight + n)
//     weight  = min(weight + n, max_weight)
// The same bits on every run, any number of threads, the CPU and CUDA.
//
// Sensors. A pose is rigid: finite, the last row 0, 0, 0, 1, columns orthonormal to 1e-3, no mirror; focal lengths are above
// 0, all is finite. On the CPU anything else is refused. Numbers that lie on a device are read there, when the work runs:
// a sensor of which any is wrong measures nothing then, and the others do.
//
// The call queues work on `stream`, does not wait and allocates nothing. It touches only memory where rays pass; depth
// images touch only the voxels that they measure. On CUDA points take three kernels, depth images one, or two for large
// grids. More than 8 sensors, and sensors in device memory, take one more for every 8.
//
// Throws ArgumentError, ArgumentTypeError (each names the argument), DeviceError; nothing is written then.
//
//   std::vector<float> grid(8), weights(8), points{0, 0, 1};
//   const std::vector<double> pose{1, 0, 0, 0.5, 0, 1, 0, 0.5, 0, 0, 1, 0, 0, 0, 0, 1};
//   const TensorView measured = TensorView::contiguous(points.data(), DType::kFloat32, {1, 3});
//   const TsdfOptions options{.voxel_size = {1, 1, 1}, .truncation = 1};
//   DeviceBuffer memory({}, tsdf_workspace_bytes(view of grid, measured, view of pose, std::nullopt));
//   integrate_tsdf(view of grid, view of weights, measured, view of pose {4, 4}, std::nullopt, options, CudaStream{},
//                  view of memory);
//   // voxel (0, 0, 0) holds 0.5 m of weight 1, voxel (0, 0, 1) -0.5 m
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>

#include "robocache/core/fields.hpp"
#include "robocache/core/tensor_view.hpp"

namespace robocache {

struct TsdfOptions {
  std::array<double, 3> grid_min = {};
  std::array<double, 3> voxel_size = {};
  double truncation = 0;                   // metres
  std::optional<double> depth_scale = {};  // metres a unit: 0.001 for millimetres; uint16 needs it, float32 is metres
  std::optional<double> max_weight = {};   // none: weights grow on
  bool space_carving = false;

  static constexpr auto fields() {
    using T = TsdfOptions;
    return std::tuple(Field{"grid_min", &T::grid_min}, Field{"voxel_size", &T::voxel_size},
                      Field{"truncation", &T::truncation}, Field{"depth_scale", &T::depth_scale},
                      Field{"max_weight", &T::max_weight}, Field{"space_carving", &T::space_carving});
  }
};

// `measured` is points where there are no intrinsics, else depth.
void integrate_tsdf(const TensorView& grid, const TensorView& weights, const TensorView& measured,
                    const TensorView& T_world_sensor, const std::optional<TensorView>& intrinsics,
                    const TsdfOptions& options, CudaStream stream,
                    const std::optional<TensorView>& workspace = std::nullopt);

// Bytes of workspace for a call with these arguments; they depend on shapes and devices alone. It throws nothing: the call
// reports wrong arguments.
int64_t tsdf_workspace_bytes(const TensorView& grid, const TensorView& measured, const TensorView& T_world_sensor,
                             const std::optional<TensorView>& intrinsics);

}  // namespace robocache
