// Occupancy alone of large clouds, in grids of up to some 2^21 cells: a bit for each cell in shared memory, where a block
// marks the cells of its rows; a second kernel puts the blocks' bits together.
//
// Blocks come in pairs of neighbouring multiprocessors. The bits that one's shared memory has no room for are shared out
// between the two, and marked there from both; each pair leaves its bits put together.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "robocache/points/voxels/reduce.hpp"

namespace robocache::voxels_cuda {

// Whether the call can go by bits on that device. Depends on what sizes the workspace alone.
bool goes_by_bits(const VoxelReduction& call, int device);

int64_t bits_workspace_bytes(const VoxelReduction& call, int device);

// On that device, the current one. `dropped` has been zeroed; no output has to be.
cudaError_t reduce_by_bits(const VoxelReduction& call, int device, cudaStream_t stream);

}  // namespace robocache::voxels_cuda
