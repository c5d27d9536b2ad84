// How a block reads the records of its tile, and sorts by their counts.
#pragma once

#include <cstdint>
#include <type_traits>

#include "robocache/voxels/tile_plan_cuda.cuh"

namespace robocache {

// The sum over the lanes and warps before this one; `warp_sums` is scratch. All threads call it.
template <int kThreads>
__device__ uint32_t sum_before(uint32_t mine, uint32_t* warp_sums) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  uint32_t inclusive = mine;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, inclusive, d);
    if (lane >= d) inclusive += other;
  }
  if (lane == 31) warp_sums[warp] = inclusive;
  __syncthreads();
  const uint32_t before = __reduce_add_sync(~0u, lane < warp ? warp_sums[lane] : 0);
  static_assert(kThreads <= 1024);
  return before + inclusive - mine;
}

// Loads the tile's column of the table. All threads call it.
template <int kThreads>
__device__ void load_entries(const TilePlan& plan, uint32_t* entries) {
  for (int i = threadIdx.x; i < plan.chunks; i += kThreads) {
    entries[i] = plan.table[int64_t{blockIdx.x} * plan.chunks + i];
  }
  __syncthreads();
}

// Calls body(record, chunk) for the tile's records. `kLanes` neighbouring threads share a chunk's, four each at a time;
// loads of `kAhead` chunks are under way at once. Where `kShare`, a whole warp takes what is left of a long run: clouds in
// scan order fill a tile from few chunks.
template <class Record, int kThreads, int kLanes, int kAhead, bool kShare, class Body>
__device__ void for_each_record(const TilePlan& plan, const uint32_t* entries, Body body) {
  using Four = std::conditional_t<sizeof(Record) == 2, uint2, uint4>;
  constexpr int kGroups = kThreads / kLanes;
  const unsigned lane = threadIdx.x % kLanes;
  const auto each = [&](const Four& four, int chunk) {
    if constexpr (sizeof(Record) == 2) {
      body(four.x & 0xffff, chunk);
      body(four.x >> 16, chunk);
      body(four.y & 0xffff, chunk);
      body(four.y >> 16, chunk);
    } else {
      body(four.x, chunk);
      body(four.y, chunk);
      body(four.z, chunk);
      body(four.w, chunk);
    }
  };
  const auto load = [&](uint32_t entry, int chunk, unsigned i) {
    const Record* const of_chunk = reinterpret_cast<const Record*>(plan.records) + int64_t{chunk} * plan.capacity;
    return __ldcs(reinterpret_cast<const Four*>(of_chunk) + (entry >> 16) + i);
  };
  const int in_warp = threadIdx.x % 32 / kLanes;
  // All threads of a warp stay together.
  for (int base = threadIdx.x / kLanes; base - in_warp < plan.chunks; base += kGroups * kAhead) {
    Four fours[kAhead];
    uint32_t held[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) held[k] = base + k * kGroups < plan.chunks ? entries[base + k * kGroups] : 0;
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (lane < (held[k] & 0xffff)) fours[k] = load(held[k], base + k * kGroups, lane);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int chunk = base + k * kGroups;
      const unsigned count = held[k] & 0xffff;
      if (lane < count) each(fours[k], chunk);
      const bool is_long = kShare && count > 4 * kLanes;
      for (unsigned i = lane + kLanes; i < count && !is_long; i += kLanes) each(load(held[k], chunk, i), chunk);
      if constexpr (kShare) {
        unsigned longer = __ballot_sync(~0u, lane == 0 && is_long);
        while (longer != 0) {
          const int leader = __ffs(longer) - 1;
          longer &= longer - 1;
          const uint32_t entry = __shfl_sync(~0u, held[k], leader);
          const int of_leader = __shfl_sync(~0u, chunk, leader);
          for (unsigned i = kLanes + threadIdx.x % 32; i < (entry & 0xffff); i += 32) {
            each(load(entry, of_leader, i), of_leader);
          }
        }
      }
    }
  }
}

}  // namespace robocache
