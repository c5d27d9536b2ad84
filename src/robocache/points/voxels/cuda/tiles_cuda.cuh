// The fast way of the CUDA engine: rows are partitioned into tiles of cells, and one block reduces each tile in shared
// memory. It needs no array over all cells except the outputs, which are written once. Warps of all blocks share the cells
// with many rows. Occupancy alone of large clouds goes by bits instead (occupy_cuda.cuh), and sums of many rows in scan
// order may go by chunks (chunk_sums_cuda.cuh).
//
// Cells come in lines of 32. The lines are permuted by a multiplication, so that neighbours in space, which clouds fill
// unevenly, spread over the tiles; a tile is a run of permuted lines.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "robocache/points/voxels/reduce.hpp"

namespace robocache::voxels_cuda {

// Whether outputs can be written 16 bytes at once.
bool outputs_aligned(const VoxelReduction& call);

// Whether the call can go by tiles on that device; other calls take global atomic operations. It depends only on what
// decides the workspace's size.
bool goes_by_tiles(const VoxelReduction& call, int device);

// Whether the sums of a call that suits tiles went by chunks. Waits for the device.
cudaError_t went_by_chunks(const VoxelReduction& call, int device, cudaStream_t stream, bool& it_did);

int64_t tiles_workspace_bytes(const VoxelReduction& call, int device);

// Runs on that device, which is the current one. `dropped` has been zeroed; other outputs need not be.
cudaError_t reduce_by_tiles(const VoxelReduction& call, int device, cudaStream_t stream);

}  // namespace robocache::voxels_cuda
