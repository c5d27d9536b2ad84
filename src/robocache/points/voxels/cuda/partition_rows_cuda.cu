#include "robocache/points/voxels/cuda/packed_cells_cuda.cuh"
#include "robocache/points/voxels/cuda/tile_keys_cuda.cuh"

namespace robocache::voxels_cuda {
namespace {

// Sorts the rows of a chunk by tile. A key is a cell's index in its tile; a uint32 key also has the row's number in its
// chunk, in the upper 16 bits. The keys of each tile are padded to a multiple of four, because readers load four at
// once.
template <class Key, int kThreads, int kRows, bool kFast>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads)
    partition_rows(const __grid_constant__ VoxelReduction call, const __grid_constant__ TilePlan plan,
                   const __grid_constant__ FastGrid grid) {
  extern __shared__ __align__(16) unsigned char memory[];
  Key* const sorted = reinterpret_cast<Key*>(memory);
  // For each tile its number of rows, later its start; then the number of rows in no tile.
  uint32_t* const starts = reinterpret_cast<uint32_t*>(sorted + plan.capacity);
  __shared__ uint32_t warp_sums[32];
  __shared__ uint32_t total;
  const int tiles = plan.tiling.tiles();
  const int index_bits = plan.tiling.index_bits();
  let_work_after_begin();
  for (int i = threadIdx.x; i <= tiles; i += kThreads) starts[i] = 0;
  wait_for_work_before();
  if (!plan.tiles_serve()) return;
  if (blockIdx.x == 0 && threadIdx.x == 0) *plan.filled = {};
  __syncthreads();

  constexpr int kSteps = kRows / 4;
  constexpr int kAhead = kSteps > 2 ? 2 : kSteps;  // steps whose points are being loaded
  const int64_t first = int64_t{blockIdx.x} * (kThreads * kRows) + threadIdx.x * 4;
  float points[kAhead][12];
  const auto load = [&](int step) {
    if (kFast && step < kSteps) load_points(call, first + step * (kThreads * 4), plan.rows, points[step % kAhead]);
  };
  for (int step = 0; step < kAhead; ++step) load(step);
  uint32_t indices[kRows];  // tile << index_bits | index of the cell in the tile
  uint16_t ranks[kRows];    // index among the rows of the tile
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    uint32_t cells[4];
    cells_of_rows<kFast>(call, grid, first + step * (kThreads * 4), plan.rows, points[step % kAhead], cells);
    load(step + kAhead);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t index =
          cells[i] == kNoCell ? static_cast<uint32_t>(tiles) << index_bits : plan.tiling.permuted(cells[i]);
      indices[step * 4 + i] = index;
      ranks[step * 4 + i] = static_cast<uint16_t>(atomicAdd(&starts[index >> index_bits], 1));
    }
  }
  __syncthreads();

  const int per_thread = (tiles + kThreads - 1) / kThreads;
  const int begin = threadIdx.x * per_thread;
  const int end = min(tiles, begin + per_thread);
  uint32_t fours = 0;
  for (int i = begin; i < end; ++i) fours += (starts[i] + 3) / 4;
  uint32_t start = sum_before<kThreads>(fours, warp_sums);
  if (threadIdx.x == kThreads - 1) total = start + fours;
  for (int i = begin; i < end; ++i) {
    const uint32_t count = starts[i];
    const uint32_t filled = (count + 3) / 4;
    for (uint32_t k = count; k < filled * 4; ++k) sorted[start * 4 + k] = static_cast<Key>(plan.tiling.padding());
    plan.table[int64_t{i} * plan.chunks + blockIdx.x] = start << 16 | filled;
    starts[i] = start * 4;
    start += filled;
  }
  __syncthreads();

#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const uint32_t tile = indices[i] >> index_bits;
    uint32_t key = indices[i] & ((1u << index_bits) - 1);
    if (sizeof(Key) == 4) key |= ((i / 4 * kThreads + threadIdx.x) * 4 + i % 4) << 16;
    const uint32_t slot = starts[tile] + ranks[i];
    if (tile < static_cast<uint32_t>(tiles)) sorted[slot] = static_cast<Key>(key);
  }
  __syncthreads();

  const int vectors = static_cast<int>((total * 4 * sizeof(Key) + 15) / 16);
  uint4* const to = reinterpret_cast<uint4*>(reinterpret_cast<Key*>(plan.keys) + int64_t{blockIdx.x} * plan.capacity);
  for (int i = threadIdx.x; i < vectors; i += kThreads) to[i] = reinterpret_cast<const uint4*>(sorted)[i];
}

template <class Key, int kThreads, int kRows>
cudaError_t partition(const VoxelReduction& call, const TilePlan& plan, cudaStream_t stream) {
  const bool fast = is_fast(call);
  return launch_tile_kernel(
      fast ? partition_rows<Key, kThreads, kRows, true> : partition_rows<Key, kThreads, kRows, false>, plan.chunks,
      kThreads, plan.bytes_to_partition(), stream, call, plan, fast_grid(call.grid));
}

}  // namespace

cudaError_t launch_partition_rows(const VoxelReduction& call, const TilePlan& plan, cudaStream_t stream) {
  // The last two template arguments are partition_threads and the rows per thread.
  if (plan.has_features) {
    return plan.has_few_rows ? partition<uint32_t, 1024, 4>(call, plan, stream)
                             : partition<uint32_t, 1024, 16>(call, plan, stream);
  }
  return plan.has_few_rows ? partition<uint16_t, 1024, 4>(call, plan, stream)
                           : partition<uint16_t, 512, 16>(call, plan, stream);
}

}  // namespace robocache::voxels_cuda
