// integrate_tsdf: adds measurements of range sensors to a grid of truncated signed distances, in place (rule 32 of
// docs/rules.md).
//
//   grid            [X, Y, Z]               float32 metres, positive in front of the surface; updated
//   weights         [X, Y, Z]               float32, the rays that have seen each voxel; updated. A voxel is unseen if
//                                           its weight is not above 0 (or NaN): its value in grid is ignored
//   points          [N, 3] or [K, N, 3]     float32 or float64, in the frame of the sensor; without intrinsics
//   depth           [H, W] or [K, H, W]     float32 metres, or uint16 with depth_scale; with intrinsics
//   T_world_sensor  [4, 4] or [K, 4, 4]     float64 or float32, on the CPU or on the grid's device: maps the sensor's
//                                           frame to the grid's
//   intrinsics      [3, 3] or [4], or       float64 or float32, on the CPU or on the grid's device: camera matrices
//                   [K, 3, 3] or [K, 4]     without skew, or fx, fy, cx, cy; depth along +z, x to the right, y down;
//                                           pixel centres at whole numbers
//   workspace       [N] or none             tsdf_workspace_bytes of memory, aligned to 16, with any content
//
// Strides are free. All tensors are on one device, except T_world_sensor and intrinsics. Voxel (i, j, k) has its centre
// v at grid_min + (i + 1/2, j + 1/2, k + 1/2) * voxel_size. All geometry is float64 and exactly reproducible.
//
// Points. A ray leaves the sensor at o, the translation of T, in the unit direction d of R p. Its range r is |R p|. It
// updates the voxels in which it has a positive length. It crosses a plane of an axis at (plane - o) / d; if d is 0 on
// that axis, it stays in the voxel with plane(i) <= o < plane(i + 1). In each voxel
//     sdf = r - (v - o).d
// A point that is not finite or has range 0 is no measurement.
//
// Depth images. A voxel's centre in the camera's frame is c = transpose(R) (v - o). Where c.z > 0, its pixel is
// round(fx c.x / c.z + cx), round(fy c.y / c.z + cy), ties to even. If that pixel measured a depth D (finite, above 0),
//     sdf = (D - c.z) * |c| / c.z
// An image measures a voxel at most once.
//
// The update. |sdf| <= truncation is a measurement. With space_carving, sdf > truncation also is a measurement, of
// +truncation. sdf < -truncation never is a measurement. A call adds all n measurements of a voxel at once, so their
// order does not matter: each is rounded to a multiple of a quantum, the power of two in (truncation / 2^32, truncation
// / 2^31], and added exactly to `sum`. Then, with each operation in float64 and rounded to float32 when stored,
//     grid    = (grid * weight + sum) / (weight + n)
//     weight  = min(weight + n, max_weight)
// The bits are the same on every run, with any number of threads, on the CPU and on CUDA.
//
// Sensors. A pose is rigid and finite: the last row is 0, 0, 0, 1, the columns are orthonormal to 1e-3, and it is no
// mirror image. Intrinsics are finite, with focal lengths above 0. On the CPU other numbers are refused. Numbers on a
// device are read when the work runs; a sensor with a wrong number is then ignored.
//
// The call queues work on `stream`, does not wait and allocates nothing. It touches only memory where rays pass; depth
// images touch only the voxels that they measure. On CUDA points take three kernels, and depth images take one, or two
// for large grids. If there are more than 8 sensors, or their numbers are in device memory, every 8 sensors take one
// more.
//
// Throws ArgumentError or ArgumentTypeError, which name the argument, or DeviceError, before anything is written.
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
  double truncation = 0;                   // in metres
  std::optional<double> depth_scale = {};  // metres per unit, 0.001 for millimetres; float32 may omit it: 1
  std::optional<double> max_weight = {};   // none: weights are not limited
  bool space_carving = false;

  static constexpr auto fields() {
    using T = TsdfOptions;
    return std::tuple(Field{"grid_min", &T::grid_min}, Field{"voxel_size", &T::voxel_size},
                      Field{"truncation", &T::truncation}, Field{"depth_scale", &T::depth_scale},
                      Field{"max_weight", &T::max_weight}, Field{"space_carving", &T::space_carving});
  }
};

// `measured` holds points if there are no intrinsics, else depth.
void integrate_tsdf(const TensorView& grid, const TensorView& weights, const TensorView& measured,
                    const TensorView& T_world_sensor, const std::optional<TensorView>& intrinsics,
                    const TsdfOptions& options, CudaStream stream,
                    const std::optional<TensorView>& workspace = std::nullopt);

// Returns the bytes of workspace for a call with these arguments. They depend only on shapes and devices. It throws
// nothing: the call reports wrong arguments.
int64_t tsdf_workspace_bytes(const TensorView& grid, const TensorView& measured, const TensorView& T_world_sensor,
                             const std::optional<TensorView>& intrinsics);

}  // namespace robocache
