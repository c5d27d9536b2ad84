// voxelize_sparse: the voxels that points lie in, and what lies in each; the grid itself is never stored.
//
//   points          [N, 3 + C], or [B, N, 3 + C]   float32 or float64; x, y, z first; outer strides are free
//   features        [N, F], or [B, N, F], or none  floats and integers; none: with a reduce the columns 3.. of points
//   lengths         [B] or none       int32/int64: rows of each cloud [B, N, ...] that are points
//   batch_offsets   [B + 1] or none   int32/int64: rows [offsets[b], offsets[b + 1]) of [N, ...] are cloud b
//
// What comes out, M being the number of voxels, of all clouds together:
//
//   coords          int32 [M, 3]      x, y, z; or z, y, x. [M, 4] with the cloud in front for [B, N, ...] and batch_offsets
//   features        [M, F]            one row a voxel: mean, sum, min, max, first or last of its points (voxels/reduce.hpp);
//                                     of integers int64 sums and float32 means, else of the features' dtype
//                   [M, P, F]         without a reduce: the points themselves, in input order, zeros behind the last; of
//                                     `features`, or, where there are none, all columns of points
//   counts          int32 [M]         points in the voxel, at most max_points_per_voxel
//   point_to_voxel  int32 [N], [B, N] the voxel (a row of coords) of each point, or -1
//   dropped         int64 [], or [B]  points with -1: outside, not finite, or in a voxel beyond max_voxels or capacity
//   num_voxels      int64 []          with `capacity` alone
//
// Cells. floor((p - origin) / voxel_size) by true division in the points' type (voxels/cell.hpp). `point_range` is (x0, y0,
// z0, x1, y1, z1): the origin is its lower corner, and the grid has round((upper - lower) / voxel_size) cells along each
// axis (in float64, ties to even). A point beyond these cells is outside, and so is one at or beyond an upper end, where the
// last cell reaches farther. Without it the origin is 0, cells may be negative, and a cell that int32 cannot number is
// outside.
//
// Caps. Voxels are inserted in the order of their first points. `max_voxels` keeps the first of each cloud,
// `max_points_per_voxel` (P) the first points of each voxel in input order; points beyond P keep their voxel's number in
// the map, but take no part in a reduce. Without it P is the largest count. Caps come first, then `order` sorts:
//   first   in order of insertion, cloud by cloud     linear  by (cloud, x, y, z)
//   morton  by (cloud, Morton code), in which bit k of x + 2^31 is bit 3 k, of y + 2^31 bit 3 k + 1, of z + 2^31 bit 3 k + 2
//
// Without `capacity` the arrays are as long as there are voxels, and on CUDA the call waits for the device once, to learn
// how many. With it they have `capacity` rows and nothing waits, so that the call can be captured into a CUDA graph:
// num_voxels says how many voxels there are. Rows behind them have coords -1, count 0 and features 0. Where there are
// more than fit, the num_voxels - capacity inserted last are left out, as by max_voxels. Gathering takes
// max_points_per_voxel then.
//
// Everything is the same bits on every run, on the CPU and on CUDA, and depends on nothing but the arguments. At most
// 2^31 - 1 rows, on CUDA 2^30. There work is queued on `stream`; lengths and batch_offsets are cut to what there is.
//
// The same from others (their floats are float32): voxel_size and point_range as theirs,
//   spconv PointToVoxel         reduce none, max_voxels, max_points_per_voxel, kZyx; point_to_voxel is its pc_voxel_id
//   mmcv hard Voxelization      the same; its coors have no cloud in front
//   mmcv dynamic Voxelization   coords[point_to_voxel], kZyx; a row of -1 for -1
//   mmcv DynamicScatter         reduce mean or max, order linear
//   a mean of all columns (HardSimpleVFE, MeanVFE): features = points, reduce mean
//
// Throws ArgumentError, ArgumentTypeError (each names the argument), DeviceError.
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
//   const SparseVoxels result = voxelize_sparse(TensorView::contiguous(points.data(), DType::kFloat32, {3, 3}), std::nullopt,
//                                             options, allocate, CudaStream{});
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
struct EnumNames<VoxelOrder> {
  static constexpr std::string_view names[] = {"first", "linear", "morton"};
};
template <>
struct EnumNames<CoordOrder> {
  static constexpr std::string_view names[] = {"xyz", "zyx"};
};

// The modes that take features, in VoxelMode's order.
enum class SparseReduce : int32_t { kSum, kMean, kMin, kMax, kFirst, kLast };
template <>
struct EnumNames<SparseReduce> {
  static constexpr std::string_view names[] = {"sum", "mean", "min", "max", "first", "last"};
};

struct SparseOptions {
  std::array<double, 3> voxel_size{};                  // the points' unit, along x, y, z; positive and finite
  std::optional<std::array<double, 6>> point_range{};  // finite, upper not below lower
  std::optional<int64_t> max_voxels{};                 // 1 or more, and so the next two
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
  TensorView kept;                          // of a reduce: point_to_voxel, but -1 beyond max_points_per_voxel
  std::optional<TensorView> rows_of_voxel;  // int32 [M, P] of a gather: the row of each point, -1 behind the last
};

SparseVoxels voxelize_sparse(const TensorView& points, const std::optional<TensorView>& features,
                             const SparseOptions& options, const Allocate& allocate, CudaStream stream,
                             const std::optional<TensorView>& lengths = std::nullopt,
                             const std::optional<TensorView>& batch_offsets = std::nullopt);

}  // namespace robocache
