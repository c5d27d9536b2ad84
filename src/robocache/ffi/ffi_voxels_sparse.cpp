#include <optional>
#include <utility>
#include <vector>

#include "robocache/ffi/arguments.hpp"
#include "robocache/ffi/ffi.hpp"
#include "robocache/ops/voxelize_sparse/voxel_downsample.hpp"
#include "robocache/ops/voxelize_sparse/voxelize_sparse.hpp"

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

  // Moves the tensor of that view into `arrays`, once; nothing where there is no view, or where it is taken.
  void move_to(Arrays& arrays, const std::optional<TensorView>& view) {
    if (!view) return;
    for (std::optional<OwnedTensor>& owned : owned_) {
      if (!owned) continue;
      const TensorView own = owned->view();
      if (own.data == view->data && own.dtype == view->dtype && own.ndim == view->ndim && own.shape == view->shape) {
        arrays.arrays.push_back(*std::exchange(owned, std::nullopt));
        return;
      }
    }
  }

 private:
  Device device_;
  std::vector<std::optional<OwnedTensor>> owned_;
};

}  // namespace

// (points, features, lengths, batch_offsets, voxel size: 3, max_voxels, max_points_per_voxel, capacity, reduce, order,
//  coord_order, point_range: 6 or nothing)
// -> coords, features, counts, point_to_voxel, dropped; num_voxels with a capacity; kept with a reduce and
//    max_points_per_voxel; rows_of_voxel without a reduce
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
  for (const TensorView& view : {made.coords, made.features, made.counts, made.point_to_voxel, made.dropped}) {
    memory.move_to(arrays, view);
  }
  memory.move_to(arrays, made.num_voxels);
  if (options.reduce && options.max_points_per_voxel) memory.move_to(arrays, made.kept);
  memory.move_to(arrays, made.rows_of_voxel);
  result.set_object(std::move(arrays));
}

// (points, features, voxel size: 3, origin: 3, method, seed)
// -> points; features where there are any; counts and point_to_voxel of a centroid, else the rows
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
  memory.move_to(arrays, made.points);
  memory.move_to(arrays, made.features);
  memory.move_to(arrays, made.counts);
  if (made.counts) memory.move_to(arrays, made.point_to_voxel);
  memory.move_to(arrays, made.row);
  result.set_object(std::move(arrays));
}

}  // namespace robocache::ffi
