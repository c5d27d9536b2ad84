// Sums and means of clouds in scan order, where neighbouring rows share cells. A block sorts a chunk of neighbouring
// rows by cell and copies their features to shared memory in the order of the rows. A segment is the chunk's rows of
// one cell; the block adds each segment to int64 sums in global memory in one step. Tiles instead would gather the
// features from scattered addresses.
//
// The device chooses between chunks and tiles by a sample of the chunks; the kernels of the other path return at once.
// Chunks handle the frequent cases. They give up if a feature is not finite, or if float32 cannot count its quanta:
// above 2^30 given quanta, or if a cell's own quantum is below 2^-126 (the cell's largest magnitude is then below about
// 2^-64). Tiles then do the whole call.
#pragma once

#include <cstdint>

#include "robocache/core/workspace_parts.hpp"
#include "robocache/points/voxels/cuda/tile_plan_cuda.cuh"

namespace robocache::voxels_cuda {

inline constexpr int kChunkThreads = 512;
inline constexpr int kChunkRows = 4 * kChunkThreads;
inline constexpr int kShare = 16;  // in rows; a group of threads takes kShare or kMostShare
inline constexpr int kMostShare = 32;
inline constexpr int kStarts = kChunkRows / kShare;

struct ChunkSums {
  int64_t rows;
  int chunks;
  float factor;  // 1 / the given quantum

  // Parts of the workspace.
  ScanOrder* scan_order;
  int64_t* dropped;   // [clouds]
  uint32_t* counts;   // [cells] number of rows; the bit kCleared is set once the cell's sums are 0
  uint32_t* touched;  // [cells] the cells with rows, in any order
  Word* sums;         // [cells, F] in quanta
  // For the cells' own quanta:
  uint32_t* largest;        // [cells, F] bits of the largest magnitude
  uint8_t* exponents;       // [cells, F] exponent of 1 / the quantum, biased as in float32
  uint16_t* ordered;        // [chunks, kChunkRows] row numbers in the chunk; bit 15 is set where a segment begins
  uint16_t* starts;         // [chunks, kStarts] Chunk::starts
  uint32_t* first_entries;  // [chunks, kChunkRows] Chunk::first_entries; only as many as there are segments
  uint32_t* totals;         // [chunks] segments << 16 | rows
};

// Whether a call that suits tiles may use chunks on that device. The answer depends only on the arguments that decide
// the workspace's size.
bool may_sum_by_chunks(const VoxelReduction& call, int device);

// Whether the call's memory is aligned for chunks.
bool has_fast_sums(const VoxelReduction& call, const TilePlan& tiles);

ChunkSums chunk_sums_for(const VoxelReduction& call, WorkspaceParts& parts);

// Launches the chunk kernels. The tile kernels must run after them: they read `scan_order`.
cudaError_t launch_chunk_sums(const VoxelReduction& call, const ChunkSums& plan, const TilePlan& tiles, int device,
                              cudaStream_t stream);

}  // namespace robocache::voxels_cuda
