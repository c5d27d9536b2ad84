// The launchers of the interpolation kernels, and how their threads find a target's place in a row.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "robocache/interpolation/segment.hpp"

namespace robocache {

// Any call, in one launch: segments of different methods, element types, clocks and widths.
cudaError_t launch_any(const Interpolation& call, cudaStream_t stream);

// Of a row's n times, every stride-th stands in shared memory: bisection waits for memory at each step, and this takes
// its first steps there.
constexpr int kCoarse = 256;

inline __device__ int32_t coarse_stride(int32_t n) { return n > kCoarse ? (n + kCoarse - 1) / kCoarse : 1; }

// Where to look first for the last time at or before the target; on an ascending clock, its very place (0 if none).
template <class Times, class Clock>
__device__ int32_t coarse_search(const Times& times, int32_t n, const Clock* coarse, Clock target) {
  const int32_t stride = coarse_stride(n);
  const int32_t kept = (n + stride - 1) / stride;
  int32_t low = 0;
#pragma unroll
  for (int32_t reach = kCoarse / 2; reach > 0; reach /= 2) {
    if (low + reach < kept && coarse[low + reach] <= target) low += reach;
  }
  low *= stride;
  int32_t high = low + stride < n ? low + stride : n;
  // Then seven probes at once: a round trip for three bisection steps.
  while (high - low > 1) {
    const int32_t step = (high - low + 7) / 8;
    int32_t passed = 0;
#pragma unroll
    for (int32_t k = 1; k < 8; ++k) {
      const int32_t at = low + k * step;
      passed += at < high && times[at < high ? at : low] <= target;
    }
    low += passed * step;
    high = low + step < high ? low + step : high;
  }
  return low;
}

}  // namespace robocache
