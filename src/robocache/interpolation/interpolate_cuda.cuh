// Code that the kernels of interpolate share. Only *_cuda.cu files include it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "robocache/core/half.hpp"
#include "robocache/interpolation/interpolate_plan.hpp"
#include "robocache/interpolation/methods.hpp"
#include "robocache/interpolation/number.hpp"
#include "robocache/interpolation/segment.hpp"

namespace robocache::interpolation_cuda {

// Runs any call in one launch: segments of different methods, element types, clocks and widths.
cudaError_t launch_any(const Interpolation& call, int device, cudaStream_t stream);

// ---- A row's clock --------------------------------------------------------------------------------------------------

struct WindowRange {
  int32_t begin, size;
};

// Returns the part of a row of n samples that the window covers, for the tile whose first target is `first`.
template <class Index>
__device__ WindowRange window_range(const Window& window, Index first, int32_t n) {
  if (window.size >= n) return {0, n};
  const auto expected_begin =
      static_cast<int32_t>(static_cast<float>(first) * window.samples_per_target) - window.margin;
  return {expected_begin < 0 ? 0 : (expected_begin < n - window.size ? expected_begin : n - window.size), window.size};
}

// Returns the time that fills a window after the row's last sample.
template <class Clock>
__device__ Clock latest() {
  if constexpr (std::is_same_v<Clock, int64_t>) {
    return INT64_MAX;
  } else {
    return static_cast<Clock>(__builtin_huge_val());
  }
}

// Returns the index of the last of `span` ascending times at or before `target`, or 0; `span` is a power of two. The
// search is a short chain of few instructions: for kMostTimes it compares the times of three samples at once, with
// constant steps. kLong allows longer spans.
template <bool kLong, class Clock>
__device__ int32_t search(const Clock* window, int32_t span, Clock target) {
  static_assert(kLog2MostTimes % 2 == 0);
  int32_t low = 0;
  if (kLong ? span >= kMostTimes : span == kMostTimes) {
    for (int32_t step = span / 2; kLong && step >= kMostTimes; step /= 2)
      low += window[low + step] <= target ? step : 0;
#pragma unroll
    for (int32_t step = kMostTimes / 4; step > 0; step /= 4) {
      const bool passed_1 = window[low + step] <= target;
      const bool passed_2 = window[low + 2 * step] <= target;
      const bool passed_3 = window[low + 3 * step] <= target;
      low += passed_3 ? 3 * step : passed_2 ? 2 * step : passed_1 ? step : 0;
    }
  } else {
    for (int32_t step = span / 2; step > 0; step /= 2) low += window[low + step] <= target ? step : 0;
  }
  return low;
}

// ---- Features -------------------------------------------------------------------------------------------------------

// Neighbouring elements that one instruction moves.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T x[kCount];
};

// Rounds two values with one instruction.
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

// Calls body with the number of elements in a vector of `bytes`, as a constant, and returns its result.
template <class T, class Body>
ROBOCACHE_HD auto with_vector(int32_t bytes, const Body& body) {
  constexpr int kSize = sizeof(T);
  if (bytes == 16) return body(std::integral_constant<int, 16 / kSize>{});
  if constexpr (kSize <= 4) {
    if (bytes == 8) return body(std::integral_constant<int, 8 / kSize>{});
  }
  if constexpr (kSize <= 2) {
    if (bytes == 4) return body(std::integral_constant<int, 4 / kSize>{});
  }
  return body(std::integral_constant<int, 1>{});
}

// Returns the address `base` + index * stride_bytes, in global memory, with one instruction.
template <class V>
__device__ V* stepped(V* base, int32_t index, int32_t stride_bytes) {
  const int64_t offset = int64_t{index} * int64_t{stride_bytes};
  return static_cast<V*>(__cvta_global_to_generic(reinterpret_cast<uintptr_t>(base) + static_cast<uintptr_t>(offset)));
}

// Converts to the work type.
template <class Work, class T, int kVector>
__device__ void unpack(const Vector<T, kVector> from, Work (&x)[kVector]) {
  if constexpr (std::is_same_v<T, BFloat16> && kVector % 2 == 0) {
    // A shift gives the lower number, a mask the upper one.
#pragma unroll
    for (int e = 0; e < kVector; e += 2) {
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(from.x + e);
      x[e] = __uint_as_float(pair << 16);
      x[e + 1] = __uint_as_float(pair & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int e = 0; e < kVector; ++e) x[e] = to_work<Work>(from.x[e]);
  }
}

// Rounds kVector values to their type.
template <class T, int kVector, class Work>
__device__ Vector<T, kVector> packed(const Work* y) {
  Vector<T, kVector> vector;
  if constexpr (kVector % 2 == 0 && sizeof(T) == 2 && std::is_same_v<Work, float>) {
#pragma unroll
    for (int e = 0; e < kVector; e += 2) {
      *reinterpret_cast<uint32_t*>(vector.x + e) = packed_pair(y[e], y[e + 1], T{});
    }
  } else {
#pragma unroll
    for (int e = 0; e < kVector; ++e) vector.x[e] = rounded_once<T>(y[e]);
  }
  return vector;
}

}  // namespace robocache::interpolation_cuda
