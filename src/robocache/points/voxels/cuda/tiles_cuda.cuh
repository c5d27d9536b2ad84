// The fast path of the CUDA engine. It partitions rows into tiles of cells, and one block reduces each tile in shared
// memory. It needs no array over all cells except the outputs, which are written once. Warps of all blocks share the
// cells with many rows. Occupancy alone of large clouds uses bits instead (occupy_cuda.cuh), and sums of many rows in
// scan order may use chunks (chunk_sums_cuda.cuh).
//
// A line is 32 cells. A multiplication permutes the lines, and a tile is a run of permuted lines. Clouds fill
// neighbouring cells unevenly; the permutation spreads neighbours over the tiles.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "robocache/points/voxels/reduce.hpp"

namespace robocache::voxels_cuda {

// Whether the outputs allow writes of 16 bytes.
bool outputs_aligned(const VoxelReduction& call);

// Whether the call can use tiles on that device; other calls use global atomic operations. The answer depends only on
// the arguments that decide the workspace's size.
bool goes_by_tiles(const VoxelReduction& call, int device);

int64_t tiles_workspace_bytes(const VoxelReduction& call, int device);

// Runs on that device, which must be the current one. `dropped` must be 0; other outputs may hold anything.
cudaError_t reduce_by_tiles(const VoxelReduction& call, int device, cudaStream_t stream);

}  // namespace robocache::voxels_cuda
