// The plan of a call that reduces by tiles, and the functions that queue its steps on the stream.
#pragma once

#include <cstdint>

#include "robocache/core/launch_cuda.cuh"
#include "robocache/points/voxels/cuda/rows_cuda.cuh"

namespace robocache::voxels_cuda {

inline constexpr int kLineCells = 32;

struct Tiling {
  int line_bits;  // 2^line_bits lines; some may lie beyond the last cell
  int row_bits;   // 2^row_bits lines per tile
  uint32_t multiplier;
  uint32_t inverse;

  __host__ __device__ int tiles() const { return 1 << (line_bits - row_bits); }
  __host__ __device__ int tile_cells() const { return kLineCells << row_bits; }
  __host__ __device__ int index_bits() const { return row_bits + 5; }
  // Returns the key that fills padding.
  __device__ uint32_t padding() const { return 1u << index_bits(); }

  // Returns tile << index_bits | index in the tile.
  __device__ uint32_t permuted(uint32_t cell) const {
    return ((cell / kLineCells * multiplier) >> (32 - line_bits)) * kLineCells + cell % kLineCells;
  }
  __device__ int64_t line_start(uint32_t line) const {
    return int64_t{(line * inverse) & ((1u << line_bits) - 1)} * kLineCells;
  }
};

// The combined reduction of one feature, from the warps that share a cell with many rows.
struct Merged {
  Word sum;
  Word coarse_sum;
  Word least;
  Word greatest;
  int32_t above;
  uint32_t marks;
  uint32_t first;
  uint32_t last;

  __device__ void clear() { *this = {0, 0, ~Word{0}, 0, kNoExponent, 0, ~0u, 0}; }
};

// A cell whose rows are in TilePlan::sorted, from `start` on.
struct FilledCell {
  uint32_t cell;
  uint32_t start;
  uint32_t points;
};

// Warps of all blocks reduce a cell of at least kCrowd rows; each warp takes kPiece of the rows.
inline constexpr uint32_t kCrowd = 32;
inline constexpr uint32_t kPiece = 256;

struct CrowdedCell : FilledCell {
  uint32_t first_piece;
  uint32_t merged;  // index in TilePlan::merged, if the cell has several pieces
};

__host__ __device__ inline uint32_t pieces_of(uint32_t points) { return (points + kPiece - 1) / kPiece; }

// The addresses of a tile's keys, for kRuns chunks at a time. A run is the keys of one chunk, in groups of four; these
// groups are numbered across the runs.
inline constexpr int kRuns = 2048;
struct Runs {
  uint32_t ends[kRuns];     // one past the number of the run's last group
  uint32_t offsets[kRuns];  // offset of a group of four in TilePlan::keys, minus its number
};

// Bounds the indices when there are features: the memory of the runs is reused for the indices of a tile's cells.
inline constexpr int kMostIndexBits = 13;
static_assert(sizeof(uint16_t) << kMostIndexBits <= sizeof(Runs));

// The numbers of entries in the lists of a plan.
struct Filled {
  uint32_t rows;
  uint32_t few;  // in one tile
  uint32_t crowded;
  uint32_t pieces;
  uint32_t merged;
};

// A sample of a cloud's chunks. It shows whether neighbouring rows share cells, which decides between tiles and chunks
// (chunk_sums_cuda.cuh).
struct alignas(16) ScanOrder {
  static constexpr int kSamples = 64;

  struct Sample {
    uint32_t rows;
    uint32_t segments;
  } samples[kSamples];
  uint32_t tiles_serve;  // set if few neighbours share cells, or if chunks gave up
  uint32_t touched;      // number of touched cells

  // Whether neighbouring rows share cells. Whole warps call it.
  __device__ bool is_scan() const {
    const uint4 two = reinterpret_cast<const uint4*>(samples)[threadIdx.x % 32];
    return __reduce_add_sync(~0u, two.y + two.w) < __reduce_add_sync(~0u, two.x + two.z) / 2;
  }
};

// How a call is divided into chunks and tiles.
struct TilePlan {
  int64_t rows;
  Tiling tiling;
  bool has_features;  // keys then also contain the row
  bool has_few_rows;  // each thread then gets fewer, so that every multiprocessor gets some
  int chunk_rows;     // rows in a block of the first kernel
  int chunks;         // number of blocks
  int capacity;       // keys in a chunk, with padding
  int listed;         // the most rows of a tile that are sorted in shared memory; larger tiles use the workspace
  bool aligned;       // whether the outputs allow writes of 16 bytes

  // Parts of the workspace.
  char* keys;        // [chunks, capacity] uint16 or uint32
  uint32_t* table;   // [tiles, chunks] (first key / 4) << 16 | keys / 4
  uint32_t* sorted;  // [rows] by tile and cell
  Filled* filled;
  CrowdedCell* crowded;
  uint32_t* crowded_of_piece;
  uint32_t* crowded_of_merged;
  Merged* merged;               // [merged, F]
  const ScanOrder* scan_order;  // null: tiles do the whole call

  __device__ bool tiles_serve() const { return !scan_order || scan_order->tiles_serve; }

  // The bytes of a block's shared memory: to partition a chunk, and to reduce a tile.
  int64_t bytes_to_partition() const { return int64_t{capacity} * (has_features ? 4 : 2) + (tiling.tiles() + 1) * 4; }
  int64_t bytes_of_tile() const {
    const int64_t cells = tiling.tile_cells();
    return static_cast<int64_t>(sizeof(Runs)) + (has_features ? cells + listed : cells + 1) * 4;
  }
};

// The threads, and the rows, of a block that partitions rows.
inline int partition_threads(const TilePlan& plan) { return plan.has_few_rows || plan.has_features ? 1024 : 512; }
inline int rows_of_chunk(const TilePlan& plan) { return partition_threads(plan) * (plan.has_few_rows ? 4 : 16); }

// Returns the most shared memory that a block of these kernels can use on that device; 0 if the driver reports none.
int64_t most_shared_bytes(int device);

template <class... Parameters>
cudaError_t launch_tile_kernel(void (*kernel)(Parameters...), int blocks, int threads, int64_t shared_bytes,
                               cudaStream_t stream, const Parameters&... arguments) {
  if (shared_bytes > 47 * 1024) {  // leaves room for the kernels' own variables
    // All threads set the same number, because several may launch the kernel at the same time.
    int device = 0;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess) {
      code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(most_shared_bytes(device)));
    }
    if (code != cudaSuccess) return code;
  }
  return launch_overlapped(kernel, dim3(static_cast<unsigned>(blocks)), static_cast<unsigned>(threads),
                           static_cast<size_t>(shared_bytes), stream, arguments...);
}

// Sorts each chunk's rows by tile into plan.keys and plan.table.
cudaError_t launch_partition_rows(const VoxelReduction& call, const TilePlan& plan, cudaStream_t stream);

cudaError_t launch_count_tiles(const VoxelReduction& call, const TilePlan& plan, cudaStream_t stream);

// Computes all outputs if some need features, except in cells with many rows: launch_reduce_crowded computes those.
cudaError_t launch_reduce_tiles(const VoxelReduction& call, const TilePlan& plan, cudaStream_t stream);
cudaError_t launch_reduce_crowded(const VoxelReduction& call, const TilePlan& plan, int device, cudaStream_t stream);

}  // namespace robocache::voxels_cuda
