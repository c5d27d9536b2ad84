// Occupancy alone of large clouds, in grids of up to some 2^21 cells: a bit for each cell in shared memory, where a block
// marks the cells of its rows; a second kernel puts the blocks' bits together.
//
// Blocks come in pairs of neighbouring multiprocessors. The two share the bits for which one block's shared memory has no
// room, and mark them in each other's; each pair writes its combined bits.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "robocache/points/voxels/reduce.hpp"

namespace robocache::voxels_cuda {

// Whether the call can go by bits on that device. It depends only on what decides the workspace's size.
bool goes_by_bits(const VoxelReduction& call, int device);

int64_t bits_workspace_bytes(const VoxelReduction& call, int device);

// Runs on that device, which is the current one. `dropped` has been zeroed; outputs need not be.
cudaError_t reduce_by_bits(const VoxelReduction& call, int device, cudaStream_t stream);

}  // namespace robocache::voxels_cuda
