// Functions that the threads of a block call together: they read the keys of its tile, and turn counts into offsets.
#pragma once

#include <cstdint>
#include <type_traits>

#include "robocache/points/voxels/cuda/tile_plan_cuda.cuh"

namespace robocache::voxels_cuda {

// Returns the sum of `value` over all threads before this one; `warp_sums` is scratch. All threads call it.
template <int kThreads>
__device__ uint32_t sum_before(uint32_t value, uint32_t* warp_sums) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  uint32_t inclusive = value;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, inclusive, d);
    if (lane >= d) inclusive += other;
  }
  if (lane == 31) warp_sums[warp] = inclusive;
  __syncthreads();
  const uint32_t before = __reduce_add_sync(~0u, lane < warp ? warp_sums[lane] : 0);
  static_assert(kThreads <= 1024);
  return before + inclusive - value;
}

// Returns the run that holds the group of four with that number, which must be below the last end.
__device__ inline int run_of(const Runs& runs, uint32_t group) {
  int run = 0;
#pragma unroll
  for (int step = kRuns / 2; step > 0; step /= 2) {
    if (runs.ends[run + step - 1] <= group) run += step;
  }
  return run;
}

// Calls body(keys, chunk) for every four of the tile's keys, including padding. All threads get equal shares even if
// the chunks hold unequal numbers of keys, as for clouds in scan order. Each thread keeps `kAhead` loads in flight.
// `warp_sums` is scratch. All threads call it.
template <class Key, int kThreads, int kAhead, class Body>
__device__ void for_each_four(const TilePlan& plan, Runs& runs, uint32_t* warp_sums, Body body) {
  using Four = std::conditional_t<sizeof(Key) == 2, uint2, uint4>;
  constexpr int kPerThread = kRuns / kThreads;
  // With 2-byte keys a thread reads neighbouring fours, two of which are 16 bytes; they are mostly in the same run.
  constexpr bool kNeighbours = sizeof(Key) == 2;
  constexpr int kApart = kNeighbours ? 1 : kThreads;
  static_assert(kPerThread * kThreads == kRuns);
  const uint32_t* const entries = plan.table + int64_t{blockIdx.x} * plan.chunks;
  for (int first = 0; first < plan.chunks; first += kRuns) {
    uint32_t run_entries[kPerThread];
    uint32_t sum = 0;
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
      const int chunk = first + static_cast<int>(threadIdx.x) * kPerThread + k;
      run_entries[k] = chunk < plan.chunks ? entries[chunk] : 0;
      sum += run_entries[k] & 0xffff;
    }
    __syncthreads();  // every thread has read the previous runs
    uint32_t end = sum_before<kThreads>(sum, warp_sums);
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
      const int run = static_cast<int>(threadIdx.x) * kPerThread + k;
      runs.offsets[run] = static_cast<uint32_t>(first + run) * (plan.capacity / 4) + (run_entries[k] >> 16) - end;
      end += run_entries[k] & 0xffff;
      runs.ends[run] = end;
    }
    __syncthreads();
    const uint32_t fours = runs.ends[kRuns - 1];
    for (uint32_t base = threadIdx.x * (kNeighbours ? kAhead : 1); base < fours; base += kThreads * kAhead) {
      Four four[kAhead];
      int run[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const uint32_t group = base + k * kApart;
        if (group >= fours) continue;
        if (k == 0 || !kNeighbours) {
          run[k] = run_of(runs, group);
        } else {
          run[k] = run[k - 1];
          while (runs.ends[run[k]] <= group) ++run[k];
        }
        four[k] = __ldcs(reinterpret_cast<const Four*>(plan.keys) + (group + runs.offsets[run[k]]));
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (base + k * kApart >= fours) continue;
        if constexpr (sizeof(Key) == 2) {
          const uint32_t keys[4] = {four[k].x & 0xffff, four[k].x >> 16, four[k].y & 0xffff, four[k].y >> 16};
          body(keys, first + run[k]);
        } else {
          const uint32_t keys[4] = {four[k].x, four[k].y, four[k].z, four[k].w};
          body(keys, first + run[k]);
        }
      }
    }
  }
}

}  // namespace robocache::voxels_cuda
