// The operations of rotation.hpp on one number, and on several at once. `Scalar` there is float, double, or a Wide of
// floats or doubles. A number gets the same bits in a Wide as alone. Conditions are bool, or a mask for a Wide.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "robocache/core/host_device.hpp"
#include "robocache/interpolation/number.hpp"

namespace robocache {

template <class Scalar>
ROBOCACHE_HD Scalar choose(bool condition, Scalar yes, Scalar no) {
  return condition ? yes : no;
}
ROBOCACHE_HD bool any_of(bool condition) { return condition; }

ROBOCACHE_HD float root_of(float x) { return std::sqrt(x); }
ROBOCACHE_HD double root_of(double x) { return std::sqrt(x); }
ROBOCACHE_HD float sine_of(float x) { return std::sin(x); }
ROBOCACHE_HD double sine_of(double x) { return std::sin(x); }
ROBOCACHE_HD float cosine_of(float x) { return std::cos(x); }
ROBOCACHE_HD double cosine_of(double x) { return std::cos(x); }
ROBOCACHE_HD float arc_tangent_of(float y, float x) { return std::atan2(y, x); }
ROBOCACHE_HD double arc_tangent_of(double y, double x) { return std::atan2(y, x); }
ROBOCACHE_HD float whole_of(float x) { return std::rint(x); }
ROBOCACHE_HD double whole_of(double x) { return std::rint(x); }

// One<Scalar> is the type of a number of Scalar: float or double.
template <class Scalar>
struct OneOf {
  using type = Scalar;
};
template <class Scalar>
using One = typename OneOf<Scalar>::type;

// Returns the condition in Scalar's form: bool, or a mask with it for each number.
template <class Scalar>
ROBOCACHE_HD auto is_true(bool condition) {
  return Scalar(condition ? 1 : 0) > Scalar(0);
}

#ifndef __CUDACC__
template <class T, int kNumbers>
struct Wide {
  static constexpr int kCount = kNumbers;
  typedef T Numbers __attribute__((vector_size(kNumbers * sizeof(T))));
  using Bits = decltype(Numbers{} < Numbers{});

  struct Mask {
    Bits bits;

    friend ROBOCACHE_HD Mask operator&&(const Mask& a, const Mask& b) { return {a.bits & b.bits}; }
    friend ROBOCACHE_HD Mask operator||(const Mask& a, const Mask& b) { return {a.bits | b.bits}; }
    friend ROBOCACHE_HD Mask operator!(const Mask& a) { return {~a.bits}; }
    friend ROBOCACHE_HD bool any_of(const Mask& a) {
      bool any = false;
      for (int i = 0; i < kNumbers; ++i) any = any || a.bits[i] != 0;
      return any;
    }
  };

  Numbers v;

  Wide() = default;
  ROBOCACHE_HD Wide(T x) : v(x - Numbers{}) {}  // NOLINT: implicit, since a number stands for kNumbers equal ones
  ROBOCACHE_HD explicit Wide(const Numbers& numbers) : v(numbers) {}

  friend ROBOCACHE_HD Wide operator+(const Wide& a, const Wide& b) { return Wide(a.v + b.v); }
  friend ROBOCACHE_HD Wide operator-(const Wide& a, const Wide& b) { return Wide(a.v - b.v); }
  friend ROBOCACHE_HD Wide operator*(const Wide& a, const Wide& b) { return Wide(a.v * b.v); }
  friend ROBOCACHE_HD Wide operator/(const Wide& a, const Wide& b) { return Wide(a.v / b.v); }
  friend ROBOCACHE_HD Wide operator-(const Wide& a) { return Wide(-a.v); }
  friend ROBOCACHE_HD Mask operator<(const Wide& a, const Wide& b) { return {a.v < b.v}; }
  friend ROBOCACHE_HD Mask operator>(const Wide& a, const Wide& b) { return {a.v > b.v}; }
  friend ROBOCACHE_HD Mask operator<=(const Wide& a, const Wide& b) { return {a.v <= b.v}; }
  friend ROBOCACHE_HD Mask operator>=(const Wide& a, const Wide& b) { return {a.v >= b.v}; }
  friend ROBOCACHE_HD Mask operator==(const Wide& a, const Wide& b) { return {a.v == b.v}; }
  friend ROBOCACHE_HD Mask operator!=(const Wide& a, const Wide& b) { return {a.v != b.v}; }

  friend ROBOCACHE_HD Wide choose(const Mask& condition, const Wide& yes, const Wide& no) {
    return Wide(condition.bits ? yes.v : no.v);
  }
  friend ROBOCACHE_HD Wide choose(bool condition, const Wide& yes, const Wide& no) { return condition ? yes : no; }
  friend ROBOCACHE_HD Wide absolute(const Wide& a) {
    constexpr auto kWithoutSign = std::is_same_v<T, float> ? int64_t{0x7fffffff} : INT64_MAX;
    return Wide(reinterpret_cast<Numbers>(reinterpret_cast<Bits>(a.v) & static_cast<Element>(kWithoutSign)));
  }
  friend ROBOCACHE_HD Wide root_of(const Wide& a) {
#ifdef __AVX512F__
    if constexpr (sizeof(Numbers) == 64 && std::is_same_v<T, float>)
      return Wide(Numbers(_mm512_maskz_sqrt_ps(0xffff, a.v)));
    if constexpr (sizeof(Numbers) == 64 && std::is_same_v<T, double>)
      return Wide(Numbers(_mm512_maskz_sqrt_pd(0xff, a.v)));
#endif
#ifdef __AVX__
    if constexpr (sizeof(Numbers) == 32 && std::is_same_v<T, float>) return Wide(Numbers(_mm256_sqrt_ps(a.v)));
    if constexpr (sizeof(Numbers) == 32 && std::is_same_v<T, double>) return Wide(Numbers(_mm256_sqrt_pd(a.v)));
#endif
    return for_each_number(a, [](T x) { return std::sqrt(x); });
  }
  friend ROBOCACHE_HD Wide sine_of(const Wide& a) {
    return for_each_number(a, [](T x) { return std::sin(x); });
  }
  friend ROBOCACHE_HD Wide cosine_of(const Wide& a) {
    return for_each_number(a, [](T x) { return std::cos(x); });
  }
  friend ROBOCACHE_HD Wide whole_of(const Wide& a) {
    return for_each_number(a, [](T x) { return std::rint(x); });
  }
  friend ROBOCACHE_HD Wide arc_tangent_of(const Wide& y, const Wide& x) {
    Wide result;
    for (int i = 0; i < kNumbers; ++i) result.v[i] = std::atan2(y.v[i], x.v[i]);
    return result;
  }
  friend ROBOCACHE_HD Wide multiply_add(const Wide& x, const Wide& y, const Wide& z) {
#ifdef __FMA__
#ifdef __AVX512F__
    if constexpr (sizeof(Numbers) == 64 && std::is_same_v<T, float>)
      return Wide(Numbers(_mm512_fmadd_ps(x.v, y.v, z.v)));
    if constexpr (sizeof(Numbers) == 64 && std::is_same_v<T, double>)
      return Wide(Numbers(_mm512_fmadd_pd(x.v, y.v, z.v)));
#endif
    if constexpr (sizeof(Numbers) == 32 && std::is_same_v<T, float>)
      return Wide(Numbers(_mm256_fmadd_ps(x.v, y.v, z.v)));
    if constexpr (sizeof(Numbers) == 32 && std::is_same_v<T, double>)
      return Wide(Numbers(_mm256_fmadd_pd(x.v, y.v, z.v)));
#endif
    Wide result;
    for (int i = 0; i < kNumbers; ++i) result.v[i] = multiply_add(x.v[i], y.v[i], z.v[i]);
    return result;
  }

 private:
  using Element = std::conditional_t<std::is_same_v<T, float>, int32_t, int64_t>;

  template <class Function>
  static ROBOCACHE_HD Wide for_each_number(const Wide& a, const Function& function) {
    Wide result;
    for (int i = 0; i < kNumbers; ++i) result.v[i] = function(a.v[i]);
    return result;
  }
};

template <class T, int kNumbers>
struct OneOf<Wide<T, kNumbers>> {
  using type = T;
};
#endif

}  // namespace robocache
