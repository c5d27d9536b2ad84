#include "robocache/points/voxelize_sparse/voxelize_sparse.hpp"

#include <cmath>
#include <limits>
#include <string>

#include "robocache/points/voxels/validate.hpp"

namespace robocache {

namespace {

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

int64_t checked_limit(const std::optional<int64_t>& number, const char* argument) {
  if (!number) return kUnlimited;
  if (*number < 1 || *number > kMost) {
    refuse(argument, ": expected 1 to 2^31 - 1, got ", std::to_string(*number));
  }
  return *number;
}

// Cells are computed from `point_range` rounded to the dtype of the points, but the number of cells from the unrounded
// one.
void set_range(const std::array<double, 6>& range, SparseCall& call) {
  for (size_t axis = 0; axis < 3; ++axis) {
    const double lower = range[axis];
    const double upper = range[axis + 3];
    if (!(std::isfinite(lower) && std::isfinite(upper) && lower <= upper)) {
      refuse("point_range: expected finite x0, y0, z0 and x1, y1, z1 that are not below them, got ", number_text(lower),
             " and ", number_text(upper));
    }
    const double cells = std::nearbyint((upper - lower) / call.grid.size[axis]);
    if (!(cells <= static_cast<double>(kMost))) {
      refuse("point_range: expected at most 2^31 - 1 cells along an axis, got ", number_text(cells));
    }
    call.grid.origin[axis] = lower;
    call.grid.shape[axis] = static_cast<int64_t>(cells);
    call.upper[axis] = upper;
  }
}

}  // namespace

SparseVoxels voxelize_sparse(const TensorView& points, const std::optional<TensorView>& features,
                             const SparseOptions& options, const Allocate& allocate, CudaStream stream,
                             const std::optional<TensorView>& lengths, const std::optional<TensorView>& batch_offsets) {
  const auto [batched, clouds, features_of_points] = check_points({points, features, lengths, batch_offsets});
  const Device device = points.device;
  check_row_count(clouds, device);

  SparseCall call{};
  call.clouds = clouds;
  for (size_t axis = 0; axis < 3; ++axis) call.grid.size[axis] = options.voxel_size[axis];
  check_voxel_size(call.grid.size, points.dtype);
  call.bounded = options.point_range.has_value();
  if (call.bounded) {
    set_range(*options.point_range, call);
    check_origin(call.grid.origin, "point_range", points.dtype);
  }
  call.batched = batched;
  call.order = options.order;
  call.coord_order = options.coord_order;
  call.max_voxels = checked_limit(options.max_voxels, "max_voxels");
  const int64_t capacity = checked_limit(options.capacity, "capacity");
  int64_t most_points = checked_limit(options.max_points_per_voxel, "max_points_per_voxel");
  const bool gathers = !options.reduce.has_value();
  const bool is_limited = most_points != kUnlimited;
  if (gathers && !is_limited && options.capacity) {
    refuse(
        "max_points_per_voxel: expected a number with reduce None and capacity: the call does not wait to learn the "
        "largest count");
  }
  call.largest_count = gathers && !is_limited;

  SparseVoxels result;
  if (options.capacity) {
    number_voxels(call, nullptr, allocate, device, stream);
    call.voxels = capacity;
    result.num_voxels = allocate(DType::kInt64, {});
    call.num_voxels = static_cast<int64_t*>(result.num_voxels->data);
  } else {
    SparseSizes sizes{};
    number_voxels(call, &sizes, allocate, device, stream);
    call.voxels = sizes.voxels;
    if (call.largest_count) most_points = sizes.largest_count;
  }

  result.coords = allocate(DType::kInt32, {call.voxels, batched ? 4 : 3});
  result.counts = allocate(DType::kInt32, {call.voxels});
  result.dropped = batched ? allocate(DType::kInt64, {clouds.count}) : allocate(DType::kInt64, {});
  const auto row_map = [&] {
    return points.ndim == 3 ? allocate(DType::kInt32, {clouds.count, clouds.rows})
                            : allocate(DType::kInt32, {clouds.rows});
  };
  result.kept = result.point_to_voxel = row_map();
  call.coords = static_cast<int32_t*>(result.coords.data);
  call.dropped = static_cast<int64_t*>(result.dropped.data);
  call.point_to_voxel = static_cast<int32_t*>(result.point_to_voxel.data);
  call.points_per_voxel = most_points;
  if (gathers) {
    result.rows_of_voxel = allocate(DType::kInt32, {call.voxels, most_points});
    call.rows_of_voxel = static_cast<int32_t*>(result.rows_of_voxel->data);
  } else if (is_limited) {
    result.kept = row_map();
    call.kept = static_cast<int32_t*>(result.kept.data);
  }
  if (gathers || is_limited) call.counts = static_cast<int32_t*>(result.counts.data);
  assign_points(call, allocate, device, stream);

  if (gathers) {
    const Features source = features ? features_of_points : columns_of(points, points.shape[points.ndim - 1]);
    result.features = gather_rows(clouds, source, call.rows_of_voxel, {call.voxels, most_points, source.count},
                                  allocate, device, stream);
  } else {
    const auto mode =  // SparseReduce has VoxelMode's modes from kSum on, in the same order
        static_cast<VoxelMode>(static_cast<int32_t>(VoxelMode::kSum) + static_cast<int32_t>(*options.reduce));
    result.features =
        reduce_rows(clouds, features_of_points, mode, static_cast<const int32_t*>(result.kept.data), call.voxels,
                    is_limited ? nullptr : static_cast<int32_t*>(result.counts.data), allocate, device, stream);
  }
  return result;
}

}  // namespace robocache
