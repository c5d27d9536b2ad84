// Code that the CUDA steps of sparse_steps.hpp share. Only *_cuda.cu files include it.
//
// A hash table of 64-bit slots finds the rows of a voxel. At first a slot is (tag, row): a tag of the voxel's cell, and
// the least row so far. Later it is (insertion, row): the voxel's index in the order of insertion, and its first row.
// Voxels are inserted in the order of their first rows.
#pragma once

#include <cstdint>

#include "robocache/core/launch_cuda.cuh"
#include "robocache/core/lengths.hpp"
#include "robocache/core/workspace_parts.hpp"
#include "robocache/points/voxelize_sparse/sparse_call.hpp"

namespace robocache::sparse_cuda {

inline constexpr Word kFreeSlot = ~Word{0};
inline constexpr uint32_t kNoSlot = ~0u;
inline constexpr uint32_t kNoRow = ~0u;  // -1 as int32
inline constexpr int kThreads = 256;
inline constexpr int kTile = 1024;  // rows that a block numbers at once
inline constexpr int kMostChunks = 1024;

struct DeviceSizes {
  SparseSizes sizes;
  int64_t inserted;  // voxels before max_voxels is applied
};

// The content of call.numbering after number_voxels.
struct Numbering {
  int64_t rows;
  int64_t most;      // the most voxels there can be
  int64_t slots;     // a power of two, at least 2 * most
  bool tag_is_cell;  // whether different cells always have different tags
  int64_t chunk;     // rows that one block numbers
  unsigned chunks;
  Word* table;               // [slots]
  uint32_t* slot_of_row;     // [rows]; kNoSlot for rows in no cell
  int32_t* first_row;        // [most]
  uint32_t* chunk_inserted;  // [chunks] voxels whose first rows are in the chunk
  DeviceSizes* sizes;
  int64_t* offsets;          // [clouds + 1] ascending; only for ragged clouds
  int32_t* inserted_before;  // [rows]; this and the next two exist if max_voxels limits several clouds
  int64_t* cloud_inserted;   // [clouds + 1] voxels before each cloud
  int64_t* cloud_voxels;     // [clouds + 1] voxels before each cloud, after max_voxels
  int32_t* counts;           // [most]; exists only if the largest count is requested
};

// If `bytes` is not null, sets it to the size of the numbering.
Numbering numbering_of(const SparseCall& call, int64_t* bytes);

// Returns the last i in [0, count) with ascending[i] <= value, or 0.
__device__ inline int64_t last_at_or_before(const int64_t* ascending, int64_t count, int64_t value) {
  int64_t low = 0;
  for (int64_t high = count; high - low > 1;) {
    const int64_t middle = (low + high) / 2;
    (ascending[middle] <= value ? low : high) = middle;
  }
  return low;
}

// Returns false for a row that is no point: beyond a length, before the first offset, or at or after the last one.
__device__ inline bool cloud_of_row(const SparseCall& call, const Numbering& n, int64_t row, int32_t& cloud) {
  const Clouds& clouds = call.clouds;
  cloud = 0;
  if (clouds.count == 0) return false;
  if (n.offsets != nullptr) {
    cloud = static_cast<int32_t>(last_at_or_before(n.offsets, clouds.count, row));
    return n.offsets[cloud] <= row && row < n.offsets[cloud + 1];
  }
  const auto rows = static_cast<uint32_t>(clouds.rows);
  if (clouds.count > 1) cloud = static_cast<int32_t>(static_cast<uint32_t>(row) / rows);
  return clouds.lengths == nullptr ||
         row - cloud * clouds.rows < length_at(clouds.lengths, clouds.lengths_dtype, cloud, 0);
}

__device__ inline uint32_t row_of_slot(Word slot) { return static_cast<uint32_t>(slot); }
__device__ inline uint32_t insertion_of_slot(Word slot) { return static_cast<uint32_t>(slot >> 32); }

// Returns the voxel, or -1 if max_voxels leaves it out.
__device__ inline int64_t voxel_of_insertion(const SparseCall& call, const Numbering& n, int64_t insertion,
                                             int32_t cloud) {
  if (n.cloud_inserted == nullptr) return insertion < call.max_voxels ? insertion : -1;
  const int64_t in_cloud = insertion - n.cloud_inserted[cloud];
  return in_cloud < call.max_voxels ? n.cloud_voxels[cloud] + in_cloud : -1;
}

__device__ inline int64_t insertion_of_voxel(const SparseCall& call, const Numbering& n, int64_t voxel) {
  if (n.cloud_inserted == nullptr) return voxel;
  const int64_t cloud = last_at_or_before(n.cloud_voxels, call.clouds.count, voxel);
  return n.cloud_inserted[cloud] + voxel - n.cloud_voxels[cloud];
}

}  // namespace robocache::sparse_cuda
