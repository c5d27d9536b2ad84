#include <array>
#include <optional>

#include "robocache/ffi/ffi.hpp"
#include "robocache/ops/integrate_tsdf/integrate_tsdf.hpp"

namespace robocache::ffi {
namespace {

std::optional<double> optional_real(const Args& args, int i, const char* name) {
  return args.is_none(i) ? std::nullopt : std::optional(args.real(i, name));
}

std::array<double, 3> three(const Args& args, int i, const char* name) {
  return {args.real(i, name), args.real(i + 1, name), args.real(i + 2, name)};
}

}  // namespace

// (grid, weights, points or depth, T_world_sensor, intrinsics or None, truncation, depth_scale, max_weight, space_carving,
//  grid_min x, y, z, voxel_size x, y, z)
ROBOCACHE_FFI(integrate_tsdf, args, result) {
  const TensorView grid = args.tensor(0, "grid");
  const auto intrinsics = args.is_none(4) ? std::nullopt : std::optional(args.tensor(4, "intrinsics"));
  const TensorView measured = args.tensor(2, intrinsics ? "depth" : "points");
  const TsdfOptions options{
      .grid_min = three(args, 9, "grid_min"),
      .voxel_size = three(args, 12, "voxel_size"),
      .truncation = args.real(5, "truncation"),
      .depth_scale = optional_real(args, 6, "depth_scale"),
      .max_weight = optional_real(args, 7, "max_weight"),
      .space_carving = args.boolean(8, "space_carving"),
  };
  std::optional<OwnedTensor> memory;
  if (const int64_t bytes = tsdf_workspace_bytes(grid, measured, intrinsics.has_value()); bytes > 0) {
    memory.emplace(OwnedTensor::allocate(DType::kUInt8, grid.device, {bytes}));
  }
  integrate_tsdf(grid, args.tensor(1, "weights"), measured, args.tensor(3, "T_world_sensor"), intrinsics, options,
                 memory ? std::optional(memory->view()) : std::nullopt, current_stream(grid.device));
}

}  // namespace robocache::ffi
