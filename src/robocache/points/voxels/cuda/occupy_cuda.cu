#include "robocache/points/voxels/cuda/occupy_cuda.cuh"

#include <algorithm>

#include "robocache/core/workspace_parts.hpp"
#include "robocache/points/voxels/cuda/packed_cells_cuda.cuh"
#include "robocache/points/voxels/cuda/tile_plan_cuda.cuh"
#include "robocache/points/voxels/reduce_way.hpp"

namespace robocache::voxels_cuda {
namespace {

constexpr int kMarkThreads = 1024;
constexpr int kMergeThreads = 256;
constexpr int kMergeWords = 128;  // per block
static_assert(kMergeWords * 32 == kMergeThreads * 16);

// The bits of a grid, 32 cells per word. Both blocks of a pair hold the first `common` words. Of the other words, one
// block holds the even ones, the other block the odd ones.
struct BitPlan {
  int64_t rows;
  int words;
  int common;
  int pairs;
  uint32_t* bits;  // [pairs, words]

  __host__ __device__ int split_words() const { return words - common; }
  // Returns the number of words in one block's memory.
  __host__ __device__ int held() const { return common + split_words() / 2; }
};

// Access to the shared memory of the pair's other block. in_the_other() converts an address of this block to the other
// block's.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ uint32_t rank_in_pair() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ uint32_t in_the_other(const void* in_shared_memory) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(in_shared_memory))), "r"(rank_in_pair() ^ 1));
  return address;
}
__device__ void mark_in_the_other(uint32_t address, uint32_t bit) {
  asm volatile("red.relaxed.cluster.shared::cluster.or.b32 [%0], %1;" ::"r"(address), "r"(bit) : "memory");
}
__device__ uint4 load_from_the_other(uint32_t address) {
  uint4 four;
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(four.x), "=r"(four.y), "=r"(four.z), "=r"(four.w)
               : "r"(address));
  return four;
}
// After wait_for_pair, each block sees all that the other wrote to shared memory before arrive_at_pair.
__device__ void arrive_at_pair() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ void wait_for_pair() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
#endif

__device__ uint4 operator|(uint4 a, uint4 b) { return {a.x | b.x, a.y | b.y, a.z | b.z, a.w | b.w}; }

template <bool kFast>
__global__ void __launch_bounds__(kMarkThreads)
    mark_cells(const __grid_constant__ VoxelReduction call, const __grid_constant__ BitPlan plan,
               const __grid_constant__ FastGrid grid) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) uint32_t held[];
  const uint32_t rank = rank_in_pair();
  const uint32_t other = in_the_other(held);
  const auto common = static_cast<uint32_t>(plan.common);
  for (int i = threadIdx.x; i < plan.held() / 4; i += kMarkThreads) {
    reinterpret_cast<uint4*>(held)[i] = make_uint4(0, 0, 0, 0);
  }
  arrive_at_pair();
  wait_for_work_before();
  const int64_t step = int64_t{gridDim.x} * kMarkThreads * 4;
  int64_t row = (int64_t{blockIdx.x} * kMarkThreads + threadIdx.x) * 4;
  float next[12];  // the points that are being loaded
  const auto load = [&] {
    if (kFast && row < plan.rows) load_points(call, row, plan.rows, next);
  };
  load();
  wait_for_pair();
  while (row < plan.rows) {
    uint32_t cells[4];
    cells_of_rows<kFast>(call, grid, row, plan.rows, next, cells);
    row += step;
    load();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (cells[i] == kNoCell) continue;
      uint32_t word = cells[i] / 32;
      const uint32_t bit = 1u << cells[i] % 32;
      if (word >= common) {
        const bool is_own = (word - common) % 2 == rank;
        word = common + (word - common) / 2;
        if (!is_own) {
          mark_in_the_other(other + word * 4, bit);
          continue;
        }
      }
      if ((held[word] & bit) == 0) atomicOr(held + word, bit);  // the bit is usually set already
    }
  }
  arrive_at_pair();
  wait_for_pair();
  uint32_t* const bits = plan.bits + int64_t{blockIdx.x / 2} * plan.words;
  const uint32_t half = common / 8;  // half of the common words, in vectors of four words
#pragma unroll 4
  for (uint32_t i = rank * half + threadIdx.x; i < (rank + 1) * half; i += kMarkThreads) {
    reinterpret_cast<uint4*>(bits)[i] = reinterpret_cast<const uint4*>(held)[i] | load_from_the_other(other + i * 16);
  }
  for (int i = threadIdx.x; i < plan.split_words() / 2; i += kMarkThreads)
    bits[common + 2 * i + rank] = held[common + i];
  // Waits until the other block has read this block's words.
  asm volatile("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// Spreads the bits of four cells to a byte each.
__device__ uint32_t spread(uint32_t four) { return (four & 1) | (four & 2) << 7 | (four & 4) << 14 | (four & 8) << 21; }

// Combines the bits of all pairs.
__global__ void __launch_bounds__(kMergeThreads)
    write_occupied(const __grid_constant__ BitPlan plan, bool* occupancy, uint32_t* bits, int64_t cells, bool aligned) {
  constexpr int kWarps = kMergeThreads / 32;
  __shared__ uint4 parts[kWarps][32];
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int first = static_cast<int>(blockIdx.x) * kMergeWords;
  wait_for_work_before();
  uint4 four = make_uint4(0, 0, 0, 0);
#pragma unroll 8
  for (int pair = warp; pair < plan.pairs; pair += kWarps) {
    four = four | __ldcs(reinterpret_cast<const uint4*>(plan.bits + int64_t{pair} * plan.words + first) + lane);
  }
  parts[warp][lane] = four;
  __syncthreads();
  // Each word has two threads.
  const int index = static_cast<int>(threadIdx.x / 2);
  uint32_t word = 0;
#pragma unroll
  for (int k = 0; k < kWarps; ++k) word |= reinterpret_cast<const uint32_t*>(parts[k])[index];
  const int64_t cell = (int64_t{first} + index) * 32 + threadIdx.x % 2 * 16;
  if (cell >= cells) return;
  if (bits && threadIdx.x % 2 == 0) bits[first + index] = word;
  if (!occupancy) return;
  word >>= threadIdx.x % 2 * 16;
  if (aligned && cell + 16 <= cells) {
    *reinterpret_cast<uint4*>(occupancy + cell) = {spread(word), spread(word >> 4), spread(word >> 8),
                                                   spread(word >> 12)};
  } else {
    for (int i = 0; i < 16 && cell + i < cells; ++i) occupancy[cell + i] = word >> i & 1;
  }
}

BitPlan plan_for(const VoxelReduction& call, int device) {
  BitPlan plan{};
  plan.rows = row_count(call.clouds);
  plan.words = static_cast<int>((call.cells + kMergeWords * 32 - 1) / (kMergeWords * 32)) * kMergeWords;
  const auto room = static_cast<int>(most_shared_bytes(device) / 4);
  plan.common = std::clamp((2 * room - plan.words) / 8 * 8, 0, plan.words);
  plan.pairs = multiprocessors(device) / 2;
  return plan;
}

}  // namespace

bool goes_by_bits(const VoxelReduction& call, int device) {
  if (!suits_bits(call)) return false;
  const BitPlan plan = plan_for(call, device);
  // A mark in the other block's memory takes longer, so too many of them do not pay off.
  if (plan.pairs == 0 || plan.split_words() / 2 > plan.words / 8) return false;
  const DeviceGuard guard(device);
  return guard.code() == cudaSuccess && runs_code_for_90(reinterpret_cast<const void*>(mark_cells<true>), device);
}

int64_t bits_workspace_bytes(const VoxelReduction& call, int device) {
  const BitPlan plan = plan_for(call, device);
  return int64_t{plan.pairs} * plan.words * 4;
}

cudaError_t reduce_by_bits(const VoxelReduction& call, int device, cudaStream_t stream) {
  BitPlan plan = plan_for(call, device);
  plan.bits = static_cast<uint32_t*>(call.workspace);
  const auto kernel = is_fast(call) ? mark_cells<true> : mark_cells<false>;
  // All threads set the same number, because several may launch the kernel at the same time.
  cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(most_shared_bytes(device)));
  if (code != cudaSuccess) return code;
  code = launch_clusters(kernel, 2, dim3(static_cast<unsigned>(2 * plan.pairs)), kMarkThreads,
                         static_cast<size_t>(plan.held()) * 4, stream, call, plan, fast_grid(call.grid));
  if (code != cudaSuccess) return code;
  const Outputs outputs(call);
  const auto blocks = static_cast<unsigned>(plan.words / kMergeWords);
  void* const occupancy = outputs[VoxelMode::kOccupancy];
  return launch_overlapped(write_occupied, dim3(blocks), kMergeThreads, 0, stream, plan, static_cast<bool*>(occupancy),
                           static_cast<uint32_t*>(outputs[VoxelMode::kOccupancyBits]), call.cells,
                           reinterpret_cast<uintptr_t>(occupancy) % 16 == 0);
}

}  // namespace robocache::voxels_cuda
