// A chunk of neighbouring rows in a block's shared memory, sorted by cell.
#pragma once

#include <cstdint>

#include "robocache/points/voxels/cuda/chunk_sums_cuda.cuh"
#include "robocache/points/voxels/cuda/packed_cells_cuda.cuh"
#include "robocache/points/voxels/cuda/tile_keys_cuda.cuh"

namespace robocache::voxels_cuda {

inline constexpr int kSlabFeatures = 8;            // that a chunk handles at once
inline constexpr int kChunkBlocks = 2;             // per multiprocessor
inline constexpr uint32_t kCleared = 0x80000000u;  // a bit of ChunkSums::counts

__device__ inline uint32_t hash_of(uint32_t cell, int bits) { return cell * 0x9e3779b1u >> (32 - bits); }

// An entry of Chunk::ordered: the row's offset in shared memory, and whether a segment begins at this row. The second
// bit is not set at multiples of kMostShare rows, where groups of any size begin their share.
struct OrderedRow {
  uint32_t bits;

  __device__ OrderedRow(uint32_t offset, bool begins) : bits(offset | (begins ? 1u << 31 : 0)) {}
  __device__ explicit OrderedRow(uint32_t all) : bits(all) {}
  __device__ uint32_t offset() const { return bits & 0x7fffffff; }
  __device__ bool begins() const { return static_cast<int32_t>(bits) < 0; }
};

struct Chunk {
  static constexpr int kSlotBits = 11;
  static constexpr int kSlots = 1 << kSlotBits;
  static_assert(kSlots >= kChunkRows);
  static constexpr int kSlotsPerThread = kSlots / kChunkThreads;

  union {
    // A hash table of the chunk's cells.
    struct {
      uint32_t cells[kSlots];
      uint32_t tallies[kSlots];  // number of rows; later segment << 16 | index of the cell's first row in `ordered`
    } table;
    // For each sorted row: the biased exponents of 1 / the quantum.
    uint8_t exponents[kChunkRows][kSlabFeatures];
  };
  uint32_t ordered[kChunkRows];        // rows by segment, as OrderedRow; unused entries hold the row of zeros
  uint16_t starts[kStarts];            // the segment of the first row of each kShare rows of `ordered`
  uint32_t first_entries[kChunkRows];  // for each segment: cell * F
  uint32_t warp_sums[32];
  uint32_t segments;
  uint32_t rows;  // rows that lie in a cell

  // All threads call each of these functions.

  __device__ void clear() {
    static_assert(kSlots == 4 * kChunkThreads);
    reinterpret_cast<uint4*>(table.cells)[threadIdx.x] = make_uint4(kNoCell, kNoCell, kNoCell, kNoCell);
    reinterpret_cast<uint4*>(table.tallies)[threadIdx.x] = make_uint4(0, 0, 0, 0);
  }

  // Sets the entries of four neighbouring rows of each thread: (rank among the rows of the cell) << 16 | slot, or
  // kNoCell.
  __device__ void tally(const uint32_t (&cells)[4], uint32_t (&entries)[4]) {
    uint32_t previous[4];
    bool is_searching[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      entries[i] = hash_of(cells[i], kSlotBits);
      is_searching[i] = cells[i] != kNoCell;
    }
    do {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (is_searching[i]) previous[i] = atomicCAS(&table.cells[entries[i]], kNoCell, cells[i]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        is_searching[i] = is_searching[i] && previous[i] != kNoCell && previous[i] != cells[i];
        if (is_searching[i]) entries[i] = (entries[i] + 1) % kSlots;
      }
    } while (is_searching[0] | is_searching[1] | is_searching[2] | is_searching[3]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (cells[i] != kNoCell) previous[i] = atomicAdd(&table.tallies[entries[i]], 1u);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) entries[i] = cells[i] == kNoCell ? kNoCell : previous[i] << 16 | entries[i];
  }

  // Sorts by the cells of four neighbouring rows of each thread. Row i will be at slab + i * row_bytes. Calls count(k,
  // cell, rows) for each segment; it is the k-th of its thread.
  template <class Count>
  __device__ void sort(const uint32_t (&cells)[4], uint32_t features, uint32_t slab, uint32_t row_bytes, Count count) {
    uint32_t entries[4];
    tally(cells, entries);
    __syncthreads();
    const uint4 four = reinterpret_cast<const uint4*>(table.tallies)[threadIdx.x];
    const uint32_t tallies[kSlotsPerThread] = {four.x, four.y, four.z, four.w};
    uint32_t sum = 0;  // segments << 16 | rows
#pragma unroll
    for (int k = 0; k < kSlotsPerThread; ++k) sum += tallies[k] | (tallies[k] ? 1u << 16 : 0);
    uint32_t before = sum_before<kChunkThreads>(sum, warp_sums);
    if (threadIdx.x == kChunkThreads - 1) {
      rows = (before + sum) & 0xffff;
      segments = (before + sum) >> 16;
    }
#pragma unroll
    for (int k = 0; k < kSlotsPerThread; ++k) {
      if (tallies[k] == 0) continue;
      const uint32_t cell = table.cells[threadIdx.x * kSlotsPerThread + k];
      count(k, cell, tallies[k]);
      first_entries[before >> 16] = cell * features;
      table.tallies[threadIdx.x * kSlotsPerThread + k] = before;
      before += tallies[k] | 1u << 16;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (entries[i] == kNoCell) continue;
      const uint32_t segment = table.tallies[entries[i] & 0xffff];
      const uint32_t rank = entries[i] >> 16;
      const uint32_t index = (segment & 0xffff) + rank;
      ordered[index] = OrderedRow(slab + (threadIdx.x * 4 + i) * row_bytes, rank == 0 && index % kMostShare != 0).bits;
      if (index % kShare == 0) starts[index / kShare] = static_cast<uint16_t>(segment >> 16);
    }
    const OrderedRow zeros(slab + kChunkRows * row_bytes, false);
    for (uint32_t i = rows + threadIdx.x; i < kChunkRows; i += kChunkThreads) ordered[i] = zeros.bits;
  }
};

}  // namespace robocache::voxels_cuda
