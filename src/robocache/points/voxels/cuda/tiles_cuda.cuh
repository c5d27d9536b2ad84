// The fast way of the CUDA engine: rows are partitioned into tiles of cells, and each tile is worked out by one block in shared
// memory: no array over all cells but the outputs, which are written once. Cells with many rows are left to warps of all
// blocks. Occupancy alone of large clouds goes by bits instead (occupy_cuda.cuh), and sums of many rows in scan order may go
// another way before (chunk_sums_cuda.cuh).
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

// Whether the call can go by tiles on that device; the rest takes global atomic operations. Depends on what sizes the
// workspace alone.
bool goes_by_tiles(const VoxelReduction& call, int device);

// Of a call that has gone by tiles, whether its sums went by chunks instead. Waits for the device.
cudaError_t went_by_chunks(const VoxelReduction& call, int device, cudaStream_t stream, bool& it_did);

int64_t tiles_workspace_bytes(const VoxelReduction& call, int device);

// On that device, the current one. `dropped` has been zeroed; no other output has to be.
cudaError_t reduce_by_tiles(const VoxelReduction& call, int device, cudaStream_t stream);

}  // namespace robocache::voxels_cuda
