// What the kernels of interpolate have in common. Included by *_cuda.cu alone.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "robocache/core/half.hpp"
#include "robocache/interpolation/segment.hpp"

namespace robocache {

// Any call, in one launch: segments of different methods, element types, clocks and widths.
cudaError_t launch_any(const Interpolation& call, cudaStream_t stream);

// The window of a row's clock that a block copies to shared memory: it expects a tile's samples where they would be if
// both clocks ran evenly. What it misses is looked up in the row itself.
constexpr int32_t kLog2MostTimes = 10;
constexpr int32_t kMostTimes = 1 << kLog2MostTimes;

// Samples that a window reaches beyond the even place on each side: clocks stray by less, most of them, and what the
// window misses costs a search in memory.
inline int64_t window_margin(int64_t samples) { return std::min<int64_t>(32 + samples / 32, 256); }

// Fills a window where the row has no more samples.
template <class Clock>
__device__ Clock latest() {
  if constexpr (std::is_same_v<Clock, int64_t>) {
    return INT64_MAX;
  } else {
    return static_cast<Clock>(__builtin_huge_val());
  }
}

// The last of `span` ascending times at or before `target`, or 0; `span` is a power of two up to kMostTimes. Few
// instructions: the steps are constants.
template <class Clock>
__device__ int32_t search(const Clock* window, int32_t span, Clock target) {
  int32_t low = 0;
#pragma unroll
  for (int32_t step = kMostTimes / 2; step > 0; step /= 2) {
    if (step < span && window[low + step] <= target) low += step;
  }
  return low;
}

// Neighbours that one instruction moves.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T x[kCount];
};

// One instruction for two values.
__device__ inline uint32_t packed_pair(float low, float high, BFloat16) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ inline uint32_t packed_pair(float low, float high, Float16) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

}  // namespace robocache
