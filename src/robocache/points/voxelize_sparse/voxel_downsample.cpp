#include "robocache/points/voxelize_sparse/voxel_downsample.hpp"

#include "robocache/points/voxels/validate.hpp"

namespace robocache {

Downsampled voxel_downsample(const TensorView& points, const std::optional<TensorView>& features,
                             const DownsampleOptions& options, const Allocate& allocate, CudaStream stream) {
  if (points.ndim == 3) {
    refuse("points: expected [N, 3] or more columns, got ", shape_string(points));
  }
  const auto [batched, clouds, features_of_points] = check_points({points, features});
  const Device device = points.device;
  check_row_count(clouds, device);
  const bool is_random = options.method == DownsampleMethod::kRandom;
  if (is_random && !options.seed) refuse("seed: expected an int for method 'random'");
  if (!is_random && options.seed) {
    refuse("seed: goes with method 'random', got ", std::to_string(*options.seed), " with '",
           options.method == DownsampleMethod::kFirst ? "first" : "centroid", "'");
  }

  SparseCall call{};
  call.clouds = clouds;
  for (size_t axis = 0; axis < 3; ++axis) {
    call.grid.size[axis] = options.voxel_size[axis];
    call.grid.origin[axis] = options.origin[axis];
  }
  check_origin(call.grid.origin, "origin", points.dtype);
  check_voxel_size(call.grid.size, points.dtype);
  call.order = VoxelOrder::kFirst;
  call.max_voxels = kUnlimited;
  SparseSizes sizes{};
  number_voxels(call, &sizes, allocate, device, stream);
  if (sizes.beyond) {
    call.wide = true;
    number_voxels(call, &sizes, allocate, device, stream);
  }

  Downsampled result;
  const bool is_centroid = options.method == DownsampleMethod::kCentroid;
  result.point_to_voxel = allocate(DType::kInt32, {clouds.rows});
  call.voxels = sizes.voxels;
  call.point_to_voxel = static_cast<int32_t*>(result.point_to_voxel.data);
  call.points_per_voxel = is_centroid ? kUnlimited : 1;
  if (is_centroid) {
    result.counts = allocate(DType::kInt32, {sizes.voxels});
  } else {
    result.row = allocate(DType::kInt32, {sizes.voxels});
    call.rows_of_voxel = static_cast<int32_t*>(result.row->data);
    call.random = is_random;
    call.seed = static_cast<uint64_t>(options.seed.value_or(0));
  }
  assign_points(call, allocate, device, stream);

  const auto one_per_voxel = [&](const Features& source, int32_t* counts) {
    return is_centroid ? reduce_rows(clouds, source, VoxelMode::kMean, call.point_to_voxel, sizes.voxels, counts,
                                     allocate, device, stream)
                       : gather_rows(clouds, source, call.rows_of_voxel, {sizes.voxels, source.count}, allocate, device,
                                     stream);
  };
  result.points = one_per_voxel(columns_of(points, features ? 3 : points.shape[1]),
                                is_centroid ? static_cast<int32_t*>(result.counts->data) : nullptr);
  if (features) result.features = one_per_voxel(features_of_points, nullptr);
  return result;
}

}  // namespace robocache
