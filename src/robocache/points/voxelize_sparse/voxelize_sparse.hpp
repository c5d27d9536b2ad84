// voxelize_sparse: finds the voxels that contain points, and the points in each. The grid itself is never stored.
//
// voxels/validate.hpp defines points, features, lengths and batch_offsets. The results, for M voxels in all clouds
// together:
//
//   coords          int32 [M, 3]      x, y, z or z, y, x; with [B, N, ...] or batch_offsets [M, 4], cloud first
//   features        [M, F]            with a reduce: mean, sum, min, max, first or last of the voxel's points
//                                     (voxels/reduce.hpp); integers have int64 sums and float32 means
//                   [M, P, F]         without: the points' own features in input order, then zeros. If `features` is
//                                     none, they are all columns of points
//   counts          int32 [M]         points in the voxel, at most max_points_per_voxel
//   point_to_voxel  int32 [N], [B, N] the voxel (a row of coords) of each point, or -1
//   dropped         int64 [], or [B]  points with -1: outside, not finite, or in a voxel beyond max_voxels or capacity
//   num_voxels      int64 []          only with `capacity`
//
// Cells. A point's cell is floor((p - origin) / voxel_size) by true division in the dtype of the points
// (voxels/cell.hpp). `point_range` is (x0, y0, z0, x1, y1, z1). Its lower corner is the origin, and the grid has
// round((upper - lower) / voxel_size) cells along each axis (in float64, ties to even). A point is outside if it lies
// beyond these cells, or at or beyond an upper end, even if the last cell extends farther. Without point_range the
// origin is 0, cells may be negative, and cells beyond int32 are outside.
//
// Limits. Voxels are inserted in the order of their first points. `max_voxels` keeps the first voxels of each cloud.
// `max_points_per_voxel` (P) keeps the first points of each voxel in input order; other points keep their voxel in
// point_to_voxel, but a reduce ignores them. Without it P is the largest count. `order` then sorts the voxels:
//   first   in the order of insertion, cloud by cloud     linear  by (cloud, x, y, z)
//   morton  by (cloud, Morton code): bit k of x + 2^31 is bit 3 k, of y + 2^31 bit 3 k + 1, of z + 2^31 bit 3 k + 2
//
// Without `capacity` the arrays have one row per voxel, and on CUDA the call waits for the device once to get the
// number of voxels. With `capacity` they have that many rows and the call does not wait, so it can be captured into a
// CUDA graph; num_voxels is the number of voxels found. Unused rows have coords -1, count 0 and features 0. If there
// are more voxels than fit, the last ones in the order of insertion are left out, as with max_voxels. Gathering with a
// capacity needs max_points_per_voxel.
//
// The bits are the same on every run, on the CPU and on CUDA, and depend only on the arguments. There may be up to 2^31
// - 1 rows, on CUDA 2^30. On CUDA work is queued on `stream`, and lengths and batch_offsets are clamped to the rows.
//
// These options give the same results as other libraries, for float32 and their voxel_size and point_range:
//   spconv PointToVoxel         reduce none, max_voxels, max_points_per_voxel, kZyx; point_to_voxel is its pc_voxel_id
//   mmcv hard Voxelization      the same; its coors do not begin with the cloud
//   mmcv dynamic Voxelization   coords[point_to_voxel], kZyx; a row of -1 for -1
//   mmcv DynamicScatter         reduce mean or max, order linear
//   a mean of all columns (HardSimpleVFE, MeanVFE): features = points, reduce mean
//
// Throws ArgumentError or ArgumentTypeError, which name the argument, or DeviceError.
//
//   std::vector<float> points{0.1f, 0.2f, 0.3f, 5, 5, 5, 0.4f, 0.2f, 0.1f};
//   std::vector<DeviceBuffer> memory;
//   const auto allocate = [&](DType dtype, std::initializer_list<int64_t> shape) {
//     TensorView view = TensorView::contiguous(nullptr, dtype, shape);
//     memory.emplace_back(Device{}, static_cast<size_t>(view.numel() * dtype_size(dtype)));
//     view.data = memory.back().data();
//     return view;
//   };
//   SparseOptions options;
//   options.voxel_size = {1, 1, 1};
//   const SparseVoxels result = voxelize_sparse(TensorView::contiguous(points.data(), DType::kFloat32, {3, 3}),
//                                               std::nullopt, options, allocate, CudaStream{});
//   // result.coords = {0, 0, 0, 5, 5, 5}, result.counts = {2, 1}, result.point_to_voxel = {0, 1, 0}
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>

#include "robocache/core/fields.hpp"
#include "robocache/core/tensor_view.hpp"
#include "robocache/points/voxelize_sparse/sparse_steps.hpp"
#include "robocache/points/voxels/reduce.hpp"
#include "robocache/points/voxels/validate.hpp"

namespace robocache {

template <>
inline constexpr std::string_view kNames<VoxelOrder>[] = {"first", "linear", "morton"};
template <>
inline constexpr std::string_view kNames<CoordOrder>[] = {"xyz", "zyx"};

// The modes that take features, in VoxelMode's order.
enum class SparseReduce : int32_t { kSum, kMean, kMin, kMax, kFirst, kLast };
template <>
inline constexpr std::string_view kNames<SparseReduce>[] = {"sum", "mean", "min", "max", "first", "last"};

struct SparseOptions {
  std::array<double, 3> voxel_size{};                  // along x, y, z in the unit of the points; positive and finite
  std::optional<std::array<double, 6>> point_range{};  // finite, with upper ends not below the lower ones
  std::optional<int64_t> max_voxels{};                 // 1 or more, like the next two options
  std::optional<int64_t> max_points_per_voxel{};
  std::optional<int64_t> capacity{};
  std::optional<SparseReduce> reduce = SparseReduce::kMean;  // none: gather
  VoxelOrder order = VoxelOrder::kFirst;
  CoordOrder coord_order = CoordOrder::kXyz;

  static constexpr auto fields() {
    using S = SparseOptions;
    return std::tuple(Field{"voxel_size", &S::voxel_size}, Field{"point_range", &S::point_range},
                      Field{"max_voxels", &S::max_voxels}, Field{"max_points_per_voxel", &S::max_points_per_voxel},
                      Field{"capacity", &S::capacity}, Field{"reduce", &S::reduce}, Field{"order", &S::order},
                      Field{"coord_order", &S::coord_order});
  }
};

struct SparseVoxels {
  TensorView coords;
  TensorView features;
  TensorView counts;
  TensorView point_to_voxel;
  TensorView dropped;
  std::optional<TensorView> num_voxels;
  // only with a reduce: point_to_voxel, but -1 for points beyond max_points_per_voxel
  TensorView kept;
  std::optional<TensorView> rows_of_voxel;  // only without a reduce: int32 [M, P], the row of each point, then -1
};

SparseVoxels voxelize_sparse(const TensorView& points, const std::optional<TensorView>& features,
                             const SparseOptions& options, const Allocate& allocate, CudaStream stream,
                             const std::optional<TensorView>& lengths = std::nullopt,
                             const std::optional<TensorView>& batch_offsets = std::nullopt);

}  // namespace robocache
