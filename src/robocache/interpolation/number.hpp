// Element types, and the types for their arithmetic.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "robocache/core/dtype.hpp"
#include "robocache/core/half.hpp"
#include "robocache/core/host_device.hpp"
#include "robocache/core/with_type.hpp"

namespace robocache {

// Returns body(Clock{}), where Clock is the type of a clock of `dtype`.
template <class Body>
ROBOCACHE_HD auto with_clock(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kFloat32:
      return body(float{});
    case DType::kFloat64:
      return body(double{});
    case DType::kInt64:
      return body(int64_t{});
    default:
      __builtin_unreachable();
  }
}

// The type for arithmetic on T; void for integers and bool, which are only copied.
template <class T>
struct WorkTypeOf {
  using type = void;
};
template <>
struct WorkTypeOf<double> {
  using type = double;
};
template <>
struct WorkTypeOf<float> {
  using type = float;
};
template <>
struct WorkTypeOf<Float16> {
  using type = float;
};
template <>
struct WorkTypeOf<BFloat16> {
  using type = float;
};
template <class T>
using WorkType = typename WorkTypeOf<T>::type;

template <class Work, class T>
ROBOCACHE_HD Work to_work(T x) {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
    return static_cast<Work>(to_float(x));
  } else {
    return static_cast<Work>(x);
  }
}

template <class T, class Work>
ROBOCACHE_HD T from_work(Work x) {
  if constexpr (std::is_same_v<T, Float16>) {
    return to_float16(static_cast<float>(x));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bfloat16(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

// Returns the value of a target without samples.
template <class T>
ROBOCACHE_HD T absent_value() {
  if constexpr (std::is_void_v<WorkType<T>>) {
    return T{};
  } else {
    return from_work<T>(static_cast<WorkType<T>>(__builtin_nanf("")));
  }
}

ROBOCACHE_HD float multiply_add(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
ROBOCACHE_HD double multiply_add(double x, double y, double z) { return __builtin_fma(x, y, z); }

ROBOCACHE_HD float absolute(float x) { return __builtin_fabsf(x); }
ROBOCACHE_HD double absolute(double x) { return __builtin_fabs(x); }

template <class Scalar>
ROBOCACHE_HD constexpr Scalar smallest_normal() {
  return Scalar(std::is_same_v<Scalar, float> ? 0x1p-126 : 0x1p-1022);
}

// Returns x / y. In float32 on CUDA it uses the GPU's approximate reciprocal, and is within 2 ulp for 2^-126 <= |y| <=
// 2^126.
ROBOCACHE_HD double quotient(double x, double y) { return x / y; }
ROBOCACHE_HD float quotient(float x, float y) {
#ifdef __CUDA_ARCH__
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(y));
  return x * reciprocal;
#else
  return x / y;
#endif
}

// Returns factor * gradient; 0 for a gradient of 0, whatever the factor.
template <class Work>
ROBOCACHE_HD Work share_of(Work factor, Work gradient) {
  return gradient == Work(0) ? Work(0) : factor * gradient;
}

// Returns the nearest number in [-1, 1]; NaN stays NaN.
template <class Work>
ROBOCACHE_HD Work clipped(Work y) {
  return y < Work(-1) ? Work(-1) : y > Work(1) ? Work(1) : y;
}

template <class Work>
ROBOCACHE_HD Work lerp(Work a, Work b, Work w) {
  return multiply_add(w, b - a, a);
}

// Rounds float64 to float32 "to odd": rounding the result to 16 bits gives the same as rounding x once (Boldo and
// Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).
ROBOCACHE_HD float round_to_odd(double x) {
  const auto nearest = static_cast<float>(x);
  if (static_cast<double>(nearest) == x || x != x) return nearest;
#ifdef __CUDA_ARCH__
  uint32_t bits = __float_as_uint(nearest);
#else
  auto bits = std::bit_cast<uint32_t>(nearest);
#endif
  const double magnitude = nearest < 0 ? -static_cast<double>(nearest) : static_cast<double>(nearest);
  if (magnitude > (x < 0 ? -x : x)) --bits;  // towards 0
  bits |= 1u;                                // x is not exact in float32, so its last bit is set
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

// Rounds x to the output's type, once.
template <class Out, class Work>
ROBOCACHE_HD Out rounded_once(Work x) {
  if constexpr (std::is_same_v<Work, double> && (std::is_same_v<Out, Float16> || std::is_same_v<Out, BFloat16>)) {
    return from_work<Out>(round_to_odd(x));
  } else {
    return from_work<Out>(x);
  }
}

}  // namespace robocache
