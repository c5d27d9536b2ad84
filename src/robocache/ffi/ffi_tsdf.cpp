#include <optional>

#include "robocache/ffi/arguments.hpp"
#include "robocache/ffi/ffi.hpp"
#include "robocache/points/integrate_tsdf/integrate_tsdf.hpp"

namespace robocache::ffi {

// (grid, weights, points or depth, T_world_sensor, intrinsics or None, truncation, depth_scale, max_weight, space_carving,
//  grid_min x, y, z, voxel_size x, y, z)
ROBOCACHE_FFI(integrate_tsdf, args, result) {
  const TensorView grid = args.tensor(0, "grid");
  const auto intrinsics = optional_tensor(args, 4, "intrinsics");
  const TensorView measured = args.tensor(2, intrinsics ? "depth" : "points");
  const TsdfOptions options{
      .grid_min = three_reals(args, 9, "grid_min"),
      .voxel_size = three_reals(args, 12, "voxel_size"),
      .truncation = args.real(5, "truncation"),
      .depth_scale = optional_real(args, 6, "depth_scale"),
      .max_weight = optional_real(args, 7, "max_weight"),
      .space_carving = args.boolean(8, "space_carving"),
  };
  const TensorView pose = args.tensor(3, "T_world_sensor");
  const Workspace workspace(tsdf_workspace_bytes(grid, measured, pose, intrinsics), grid.device);
  integrate_tsdf(grid, args.tensor(1, "weights"), measured, pose, intrinsics, options, current_stream(grid.device),
                 workspace.view);
}

}  // namespace robocache::ffi
