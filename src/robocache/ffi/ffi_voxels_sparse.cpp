#include <optional>
#include <utility>
#include <vector>

#include "robocache/ffi/arguments.hpp"
#include "robocache/ffi/ffi.hpp"
#include "robocache/points/voxelize_sparse/voxel_downsample.hpp"
#include "robocache/points/voxelize_sparse/voxelize_sparse.hpp"

namespace robocache::ffi {
namespace {

// The memory of a call, from the caller's allocator. What the answer does not take is freed with this.
class Memory {
 public:
  explicit Memory(Device device) : device_(device) {}

  Allocate allocate() {
    return [this](DType dtype, std::initializer_list<int64_t> shape) {
      owned_.emplace_back(OwnedTensor::allocate(dtype, device_, shape));
      return owned_.back()->view();
    };
  }

  // The tensor of that view, once; nothing where there is no view, or where it is taken.
  std::optional<OwnedTensor> take(const std::optional<TensorView>& view) {
    if (!view) return std::nullopt;
    for (std::optional<OwnedTensor>& owned : owned_) {
      if (!owned) continue;
      const TensorView own = owned->view();
      if (own.data == view->data && own.dtype == view->dtype && own.ndim == view->ndim && own.shape == view->shape) {
        return std::exchange(owned, std::nullopt);
      }
    }
    return std::nullopt;
  }

 private:
  Device device_;
  std::vector<std::optional<OwnedTensor>> owned_;
};

}  // namespace

// (points, features, lengths, batch_offsets, voxel size: 3, max_voxels, max_points_per_voxel, capacity, reduce, order,
//  coord_order, point_range: 6 or nothing)
// -> coords, features, counts, point_to_voxel, dropped; num_voxels with a capacity; kept with a reduce and
//    max_points_per_voxel; rows_of_voxel without a reduce: each in its place, which is empty without it
ROBOCACHE_FFI(voxelize_sparse, args, result) {
  const TensorView points = args.tensor(0, "points");
  SparseOptions options;
  options.voxel_size = three_reals(args, 4, "voxel_size");
  options.max_voxels = optional_integer(args, 7, "max_voxels");
  options.max_points_per_voxel = optional_integer(args, 8, "max_points_per_voxel");
  options.capacity = optional_integer(args, 9, "capacity");
  options.reduce = args.is_none(10) ? std::nullopt : std::optional(sparse_reduce_from_name(args.string(10, "reduce")));
  options.order = voxel_order_from_name(args.string(11, "order"));
  options.coord_order = coord_order_from_name(args.string(12, "coord_order"));
  if (args.count() > 13) {
    options.point_range.emplace();
    for (int i = 0; i < 6; ++i) (*options.point_range)[static_cast<size_t>(i)] = args.real(13 + i, "point_range");
  }
  Memory memory(points.device);
  const SparseVoxels made = voxelize_sparse(points, optional_tensor(args, 1, "features"), options, memory.allocate(),
                                            current_stream(points.device), optional_tensor(args, 2, "lengths"),
                                            optional_tensor(args, 3, "batch_offsets"));
  Arrays arrays;
  const std::optional<TensorView> kept =
      options.reduce && options.max_points_per_voxel ? std::optional(made.kept) : std::nullopt;
  for (const std::optional<TensorView>& view :
       {std::optional(made.coords), std::optional(made.features), std::optional(made.counts),
        std::optional(made.point_to_voxel), std::optional(made.dropped), made.num_voxels, kept, made.rows_of_voxel}) {
    arrays.arrays.push_back(memory.take(view));
  }
  result.set_object(std::move(arrays));
}

// (points, features, voxel size: 3, origin: 3, method, seed)
// -> points; features where there are any; counts and point_to_voxel of a centroid; else the rows: each in its place
ROBOCACHE_FFI(voxel_downsample, args, result) {
  const TensorView points = args.tensor(0, "points");
  DownsampleOptions options;
  options.voxel_size = three_reals(args, 2, "voxel_size");
  options.origin = three_reals(args, 5, "origin");
  options.method = downsample_method_from_name(args.string(8, "method"));
  options.seed = optional_integer(args, 9, "seed");
  Memory memory(points.device);
  const Downsampled made = voxel_downsample(points, optional_tensor(args, 1, "features"), options, memory.allocate(),
                                            current_stream(points.device));
  Arrays arrays;
  const std::optional<TensorView> map = made.counts ? std::optional(made.point_to_voxel) : std::nullopt;
  for (const std::optional<TensorView>& view :
       {std::optional(made.points), made.features, made.counts, map, made.row}) {
    arrays.arrays.push_back(memory.take(view));
  }
  result.set_object(std::move(arrays));
}

}  // namespace robocache::ffi
