// Computes occupancy alone of large clouds, in grids of up to about 2^21 cells. Each block keeps a bit per cell in
// shared memory and marks the cells of its rows. A second kernel combines the blocks' bits.
//
// Blocks come in pairs on neighbouring multiprocessors. If one block's shared memory is too small for all bits, each
// block of the pair holds a part of them and marks the others in its partner's memory. Each pair writes its combined
// bits.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "robocache/points/voxels/reduce.hpp"

namespace robocache::voxels_cuda {

// Whether the call can use bits on that device. The answer depends only on the arguments that decide the workspace's
// size.
bool goes_by_bits(const VoxelReduction& call, int device);

int64_t bits_workspace_bytes(const VoxelReduction& call, int device);

// Runs on that device, which must be the current one. `dropped` must be 0; the outputs may hold anything.
cudaError_t reduce_by_bits(const VoxelReduction& call, int device, cudaStream_t stream);

}  // namespace robocache::voxels_cuda
