#include <optional>
#include <utility>
#include <vector>

#include "robocache/ffi/arguments.hpp"
#include "robocache/ffi/ffi.hpp"
#include "robocache/points/voxelize/voxelize.hpp"

namespace robocache::ffi {
namespace {

// points, features, lengths, batch_offsets
PointArguments point_arguments(const Args& args) {
  return {.points = args.tensor(0, "points"),
          .features = optional_tensor(args, 1, "features"),
          .lengths = optional_tensor(args, 2, "lengths"),
          .batch_offsets = optional_tensor(args, 3, "batch_offsets")};
}

// grid_min x, y, z; voxel_size x, y, z; grid_size x, y, z; fill; quantum
VoxelizeOptions voxelize_options(const Args& args, int i) {
  VoxelizeOptions options;
  options.grid_min = three_reals(args, i, "grid_min");
  options.voxel_size = three_reals(args, i + 3, "voxel_size");
  for (int axis = 0; axis < 3; ++axis) {
    options.grid_size[static_cast<size_t>(axis)] = args.integer(i + 6 + axis, "grid_size");
  }
  if (args.is_integer(i + 9)) {
    options.fill = args.integer(i + 9, "fill");
  } else {
    options.fill = args.real(i + 9, "fill");
  }
  options.quantum = optional_real(args, i + 10, "quantum");
  options.modes.clear();
  return options;
}

}  // namespace

// (points, features, lengths, batch_offsets, voxelize_options: 11, with dropped, modes, outs or 0, each mode, each out)
// -> what is made, outs and then dropped: nothing, an array, or Arrays
ROBOCACHE_FFI(voxelize_pointcloud, args, result) {
  const PointArguments arguments = point_arguments(args);
  VoxelizeOptions options = voxelize_options(args, 4);
  const bool with_dropped = args.boolean(15, "return_dropped");
  const auto modes = static_cast<int>(args.integer(16, "mode"));
  const auto given = static_cast<int>(args.integer(17, "out"));
  for (int i = 0; i < modes; ++i) options.modes.push_back(voxel_mode_from_name(args.string(18 + i, "mode")));
  std::vector<TensorView> outs;
  Arrays arrays;
  std::vector<std::optional<OwnedTensor>>& made = arrays.arrays;
  if (given > 0) {
    for (int i = 0; i < given; ++i) outs.push_back(args.tensor(18 + modes + i, "out"));
  } else {
    for (const TensorView& output : voxelize_outputs(arguments, options)) {
      made.push_back(OwnedTensor::allocate(output));
      outs.push_back(made.back()->view());
    }
  }
  const Device device = arguments.points.device;
  std::optional<TensorView> dropped;
  if (with_dropped) {
    made.push_back(OwnedTensor::allocate(voxelize_dropped(arguments)));
    dropped = made.back()->view();
  }
  const Workspace workspace(voxelize_workspace_bytes(arguments, options), device);
  voxelize_pointcloud(arguments, options, outs, current_stream(device), dropped, workspace.view);
  if (made.size() == 1) result.set(*std::move(made.front()));
  if (made.size() > 1) result.set_object(std::move(arrays));
}

// (mode, the features' dtype or None) -> the dtype of its out
ROBOCACHE_FFI(voxel_mode_dtype, args, result) {
  std::optional<DType> features;
  if (!args.is_none(1)) features = dtype_from_name(args.string(1, "features"));
  result.set(dtype_name(voxel_mode_dtype(voxel_mode_from_name(args.string(0, "mode")), features)));
}

// (points, features, lengths, batch_offsets, voxelize_options: 11, mode, out_gradient, made or None, features_gradient):
// adds to the last.
ROBOCACHE_FFI(voxelize_pointcloud_backward, args, result) {
  const PointArguments arguments = point_arguments(args);
  VoxelizeOptions options = voxelize_options(args, 4);
  options.modes.push_back(voxel_mode_from_name(args.string(15, "mode")));
  const Device device = arguments.points.device;
  const Workspace workspace(voxelize_gradient_workspace_bytes(arguments, options), device);
  voxelize_pointcloud_backward(arguments, options, args.tensor(16, "out_gradient"), optional_tensor(args, 17, "made"),
                               args.tensor(18, "features_gradient"), current_stream(device), workspace.view);
}

}  // namespace robocache::ffi
