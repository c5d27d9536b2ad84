// What the CUDA steps of sparse_steps.hpp share. Included by *_cuda.cu alone.
//
// Rows of one voxel meet in a hash table of 64-bit slots. While voxels are sought a slot is (tag, row): the tag is of the
// voxel's cell, the row the least that has come by. Later it is (birth, row): the number of the voxel in the order of
// births, and the row it was born with.
#pragma once

#include <cstdint>

#include "robocache/core/launch_cuda.cuh"
#include "robocache/core/lengths.hpp"
#include "robocache/core/workspace_parts.hpp"
#include "robocache/ops/voxelize_sparse/sparse_call.hpp"

namespace robocache {

using Word = unsigned long long;  // what atomic operations on 64 bits take
inline constexpr Word kFreeSlot = ~Word{0};
inline constexpr uint32_t kNoSlot = ~0u;
inline constexpr uint32_t kNoRow = ~0u;  // -1 as int32
inline constexpr int kThreads = 256;
inline constexpr int kTile = 1024;  // rows that a block numbers at once
inline constexpr int kMostChunks = 1024;

struct DeviceSizes {
  SparseSizes sizes;
  int64_t births;  // voxels before max_voxels
};

// What number_voxels leaves in call.numbering.
struct Numbering {
  int64_t rows;
  int64_t most;      // births there can be
  int64_t slots;     // a power of two, at least twice that
  bool tag_is_cell;  // tags differ where cells do
  int64_t chunk;     // rows that one block numbers
  unsigned chunks;
  Word* table;             // [slots]
  uint32_t* slot_of_row;   // [rows], kNoSlot for rows that are in no cell
  int32_t* first_row;      // [most]
  uint32_t* chunk_births;  // [chunks]
  DeviceSizes* sizes;
  int64_t* offsets;        // [clouds + 1] ascending; of ragged clouds alone
  int32_t* births_before;  // [rows] and so the next two: where max_voxels is of several clouds
  int64_t* cloud_births;   // [clouds + 1] births before each cloud
  int64_t* cloud_voxels;   // [clouds + 1] those of them that max_voxels lets through
  int32_t* counts;         // [most] where the largest count is asked for
};

// `bytes`, if not null, gets the size of it.
Numbering numbering_of(const SparseCall& call, int64_t* bytes);

inline unsigned blocks_of(int64_t items, int threads = kThreads) {
  return static_cast<unsigned>((items + threads - 1) / threads);
}

// The last i in [0, count) with ascending[i] <= value, or 0.
__device__ inline int64_t last_at_or_before(const int64_t* ascending, int64_t count, int64_t value) {
  int64_t low = 0;
  for (int64_t high = count; high - low > 1;) {
    const int64_t middle = (low + high) / 2;
    (ascending[middle] <= value ? low : high) = middle;
  }
  return low;
}

// False for a row that is no point: past a length, or before the first offset or behind the last.
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
__device__ inline uint32_t birth_of_slot(Word slot) { return static_cast<uint32_t>(slot >> 32); }

// The voxel in the order of births, or -1 where max_voxels turned it away.
__device__ inline int64_t voxel_of_birth(const SparseCall& call, const Numbering& n, int64_t birth, int32_t cloud) {
  if (n.cloud_births == nullptr) return birth < call.max_voxels ? birth : -1;
  const int64_t in_cloud = birth - n.cloud_births[cloud];
  return in_cloud < call.max_voxels ? n.cloud_voxels[cloud] + in_cloud : -1;
}

__device__ inline int64_t birth_of_voxel(const SparseCall& call, const Numbering& n, int64_t voxel) {
  if (n.cloud_births == nullptr) return voxel;
  const int64_t cloud = last_at_or_before(n.cloud_voxels, call.clouds.count, voxel);
  return n.cloud_births[cloud] + voxel - n.cloud_voxels[cloud];
}

}  // namespace robocache
