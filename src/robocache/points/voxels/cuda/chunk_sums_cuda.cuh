// Sums and means of clouds in scan order, whose neighbouring rows share cells: a block sorts a chunk of neighbouring
// rows by cell, copies their features to shared memory in their order, and adds the chunk's rows of a cell, a segment, to
// int64 sums in memory in one step. Tiles would gather the features from anywhere.
//
// The device chooses between the two ways from a sample of the chunks; the kernels of the other return at once. This way
// does what most calls need. It gives up if a feature is not finite, or if float32 cannot count its quanta: above 2^30 given
// quanta, or if a cell's own quantum is below 2^-126, that is its largest magnitude below some 2^-64. Then tiles do it all.
#pragma once

#include <cstdint>

#include "robocache/core/workspace_parts.hpp"
#include "robocache/points/voxels/cuda/tile_plan_cuda.cuh"

namespace robocache::voxels_cuda {

inline constexpr int kChunkThreads = 512;
inline constexpr int kChunkRows = 4 * kChunkThreads;
inline constexpr int kShare = 16;  // rows: a group of threads takes so many or kMostShare
inline constexpr int kMostShare = 32;
inline constexpr int kStarts = kChunkRows / kShare;

struct ChunkSums {
  int64_t rows;
  int chunks;
  float factor;  // 1 / the quantum that was given

  // Parts of the workspace.
  ScanOrder* scan_order;
  int64_t* dropped;   // [clouds]
  uint32_t* counts;   // [cells] rows; with them kCleared, once the cell's sums are 0
  uint32_t* touched;  // [cells] those with rows, in any order
  Word* sums;         // [cells, F] in quanta
  // For quanta of the cells' own:
  uint32_t* largest;   // [cells, F] bits of the largest magnitude
  uint8_t* exponents;  // [cells, F] of 1 / the quantum, biased as float32 has it
  uint16_t* ordered;   // [chunks, kChunkRows] numbers of rows in their chunk, with bit 15 where a segment begins
  uint16_t* starts;    // [chunks, kStarts] as Chunk has them
  uint32_t* places;    // [chunks, kChunkRows] as Chunk has them, of its segments alone
  uint32_t* totals;    // [chunks] segments << 16 | rows
};

// Whether a call that suits tiles may go this way on that device. It depends only on what decides the workspace's size.
bool may_sum_by_chunks(const VoxelReduction& call, int device);

// Whether its memory is aligned for this way.
bool has_fast_sums(const VoxelReduction& call, const TilePlan& tiles);

ChunkSums chunk_sums_for(const VoxelReduction& call, WorkspaceParts& parts);

// The tiles' kernels run after it, and read `scan_order`.
cudaError_t launch_chunk_sums(const VoxelReduction& call, const ChunkSums& plan, const TilePlan& tiles, int device,
                              cudaStream_t stream);

}  // namespace robocache::voxels_cuda
