#include "robocache/points/voxels/reduce.hpp"

#include "robocache/core/backend.hpp"
#include "robocache/points/voxels/reduce_cpu.hpp"

namespace robocache {

DType reduced_dtype(VoxelMode mode, DType features) {
  if (is_floating(features)) return features;
  return mode == VoxelMode::kSum ? DType::kInt64 : mode == VoxelMode::kMean ? DType::kFloat32 : features;
}

int64_t reduce_workspace_bytes(const VoxelReduction& call, Device device) {
  if (!device.is_cuda()) return 0;  // the CPU allocates its memory itself: the size depends on the points of each tile
  using WorkspaceBytes = int64_t(const VoxelReduction*, int32_t device);
  static WorkspaceBytes* const workspace_bytes =
      reinterpret_cast<WorkspaceBytes*>(cuda_symbol("robocache_cuda_reduce_workspace_bytes"));
  return workspace_bytes(&call, device.index);
}

void reduce_into_voxels(const VoxelReduction& call, Device device, CudaStream stream) {
  if (!device.is_cuda()) return reduce_into_voxels_cpu(call);
  using Launch = int(const VoxelReduction*, int32_t device, void* stream);
  static Launch* const launch = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_reduce_into_voxels"));
  check_cuda(launch(&call, device.index, stream.handle), "voxelize");
}

}  // namespace robocache
