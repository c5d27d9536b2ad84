// float16 and bfloat16 storage. Conversions round to nearest, ties to even, on the CPU and on CUDA.
// NaN stays NaN, with any sign and payload.
#pragma once

#include <bit>
#include <cstdint>
#if !defined(__CUDACC__) && defined(__F16C__)
#include <immintrin.h>
#endif

#include "robocache/core/host_device.hpp"

namespace robocache {

struct BFloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

#ifdef __CUDA_ARCH__

ROBOCACHE_HD float to_float(BFloat16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }

ROBOCACHE_HD float to_float(Float16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

ROBOCACHE_HD BFloat16 to_bfloat16(float x) {
  BFloat16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

ROBOCACHE_HD Float16 to_float16(float x) {
  Float16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

#else

ROBOCACHE_HD float to_float(BFloat16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

ROBOCACHE_HD BFloat16 to_bfloat16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  // Adds half of the last kept bit, or just less if that bit is 0, so that ties go to even.
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<uint16_t>(is_nan ? 0x7fffu : rounded)};
}

#if !defined(__CUDACC__) && defined(__F16C__)

ROBOCACHE_HD float to_float(Float16 x) { return _cvtsh_ss(x.bits); }
ROBOCACHE_HD Float16 to_float16(float x) { return {static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT))}; }

#elif !defined(__CUDACC__) && defined(__aarch64__)

// Every aarch64 processor has an instruction that converts. GCC vectorises these functions, four numbers at a time.
ROBOCACHE_HD float to_float(Float16 x) { return std::bit_cast<__fp16>(x.bits); }
ROBOCACHE_HD Float16 to_float16(float x) { return {std::bit_cast<uint16_t>(static_cast<__fp16>(x))}; }

#else

ROBOCACHE_HD float to_float(Float16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  // The exponent's bias grows from 15 to 127: 112 << 23.
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  // Subnormals are whole multiples of 2^-24, which float32 holds exactly.
  const float value = static_cast<float>(magnitude) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

ROBOCACHE_HD Float16 to_float16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7fffu)};   // NaN
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // from 65520 on: infinity
  if (magnitude >= 0x38800000u) {                                                // 2^-14, the least normal float16
    const uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
    return {static_cast<uint16_t>(sign | (rounded >> 13))};
  }
  // Adding 0.5 places the last bit at 2^-24, so the addition itself rounds a subnormal.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
  return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u))};
}

#endif
#endif

}  // namespace robocache
