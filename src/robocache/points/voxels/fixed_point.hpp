// Computes sums and means that do not depend on the order of the terms: scalar rules that both backends share (rule 28
// of docs/rules.md).
//
// A feature is rounded to a whole number of quanta, ties to even. The quanta are added as int64, and the result is
// rounded once. Each cell and feature has its own quantum, 2^exponent. Let m be the largest finite |feature| in the
// cell, and m < 2^e. Let n be the number of points in the cell, including those that are not finite, and n <= 2^k:
//
//   exponent = max(e + k - 62, the least exponent of the dtype)
//
// So the sum of n numbers is at most 2^62 quanta, and the error of each number is at most m * 2^(k - 62). That is m *
// 2^-31 for the largest cell, of 2^31 - 1 points; it is 0 if the exponent is the dtype's least. float16 always uses e =
// 16, so it is exact up to 2^22 points. Integers have the exponent 0.
//
// A feature that is not finite sets a mark beside the sum. With NaN, or with infinities of both signs, the result is
// NaN; with infinities of one sign it is that infinity. A sum of 0 is +0.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#if !defined(__CUDACC__) && defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "robocache/core/dtype.hpp"
#include "robocache/core/half.hpp"
#include "robocache/core/host_device.hpp"

namespace robocache {

// Returns the number of zeros above the highest bit of x; 64 for 0. CUDA code cannot call std::countl_zero.
ROBOCACHE_HD int32_t leading_zeros(uint64_t x) {
#ifdef __CUDA_ARCH__
  return __clzll(static_cast<long long>(x));
#else
  return std::countl_zero(x);
#endif
}

// Returns the number of bits of x without leading zeros; 0 for 0.
ROBOCACHE_HD int32_t bit_width(uint64_t x) { return 64 - leading_zeros(x); }

// ---- Features that are not finite ----

// The marks of one feature of a cell: the bitwise or of the marks of its points.
inline constexpr uint32_t kHasNan = 1;
inline constexpr uint32_t kHasInfinity = 2;
inline constexpr uint32_t kHasMinusInfinity = 4;

// Returns the mark of one feature; 0 if it is finite.
template <class Real>
ROBOCACHE_HD uint32_t mark_of(Real feature) {
  if (feature != feature) return kHasNan;
  if (feature == std::numeric_limits<Real>::infinity()) return kHasInfinity;
  return feature == -std::numeric_limits<Real>::infinity() ? kHasMinusInfinity : 0;
}

// Returns the sum of a feature with marks, which is also its mean. `marks` is not 0.
ROBOCACHE_HD float marked_sum(uint32_t marks) {
  if (marks == kHasInfinity) return std::numeric_limits<float>::infinity();
  if (marks == kHasMinusInfinity) return -std::numeric_limits<float>::infinity();
  return std::numeric_limits<float>::quiet_NaN();
}

// ---- The quantum ----

// Returns the exponent of the dtype's smallest number above 0.
ROBOCACHE_HD constexpr int32_t least_exponent(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return -24;
    case DType::kBFloat16:
      return -133;
    case DType::kFloat32:
      return -149;
    case DType::kFloat64:
      return -1074;
    default:
      return 0;
  }
}

// Returns the least e with |feature| < 2^e for a finite feature. For dtypes of 32 bits or less, e is at least -126: the
// quantum is then the dtype's least anyway. The maximum of e over a cell belongs to its largest feature.
ROBOCACHE_HD int32_t exponent_above(float feature) {
  return static_cast<int32_t>((std::bit_cast<uint32_t>(feature) & 0x7fffffffu) >> 23) - 126;
}

ROBOCACHE_HD int32_t exponent_above(double feature) {
  const uint64_t magnitude = std::bit_cast<uint64_t>(feature) & 0x7fffffffffffffffu;
  const int32_t biased = static_cast<int32_t>(magnitude >> 52);
  return biased == 0 ? bit_width(magnitude) - 1074 : biased - 1022;
}

inline constexpr int32_t kExponentAboveFloat16 = 16;
inline constexpr int32_t kNoExponent = -4096;  // for a cell without a finite feature; less than every exponent_above

// Returns the exponent of a cell's quantum, from the largest exponent_above of its finite features and the number of
// its points, 1 to 2^31 - 1.
ROBOCACHE_HD int32_t own_quantum(int32_t exponent_above, int64_t points, int32_t least) {
  const int32_t k = bit_width(static_cast<uint64_t>(points - 1));
  const int32_t exponent = exponent_above + k - 62;
  return exponent > least ? exponent : least;
}

// Returns 2^exponent; exponent in [-1074, 1023].
ROBOCACHE_HD double power_of_two(int32_t exponent) {
  return std::bit_cast<double>(exponent >= -1022 ? static_cast<uint64_t>(exponent + 1023) << 52
                                                 : uint64_t{1} << (exponent + 1074));
}

// A feature times first * second is its number of quanta. There are two factors because 2^1074 is not a double. For
// features of 32 bits or less `second` is 1, and the float overload of scaled() leaves it out.
struct QuantumScale {
  double first;
  double second;
};

ROBOCACHE_HD QuantumScale quantum_scale(int32_t exponent) {
  const int32_t second = exponent < -1022 ? 64 : 0;
  return {power_of_two(-exponent - second), power_of_two(second)};
}

// Returns the nearest whole number, ties to even; |x| < 2^63.
ROBOCACHE_HD int64_t nearest_integer(double x) {
#if defined(__CUDA_ARCH__)
  return __double2ll_rn(x);
#elif !defined(__CUDACC__) && defined(__x86_64__)
  return _mm_cvtsd_si64(_mm_set_sd(x));
#else
  return std::llrint(x);
#endif
}

// Returns a finite feature in quanta, not yet rounded: the product is exact, or so near 0 that it rounds to 0.
ROBOCACHE_HD double scaled(float feature, QuantumScale scale) { return static_cast<double>(feature) * scale.first; }
ROBOCACHE_HD double scaled(double feature, QuantumScale scale) { return feature * scale.first * scale.second; }

// Returns a finite feature in quanta of its cell. The magnitude is at most 2^62 / points.
template <class Real>
ROBOCACHE_HD int64_t to_quanta(Real feature, QuantumScale scale) {
  return nearest_integer(scaled(feature, scale));
}

// ---- A given quantum, and int64 features ----
//
// Here a sum may overflow. Only the true total matters, not the partial sums: if the total exceeds int64, the result is
// NaN. It is NaN too if one feature exceeds int64 in quanta, even beside an infinity. To recover the total, the cell
// keeps the wrapped sum and the sum of the features' `coarse` parts. The coarse part of a feature below 2^30 quanta is
// 0, so there is usually nothing to add. (The sum of int64 features is an int64 and wraps, as in numpy; their mean is
// NaN if the sum overflows.)

// Writes the feature in quanta. Returns false if it exceeds int64: the cell is then marked with kHasNan.
template <class Real>
ROBOCACHE_HD bool to_given_quanta(Real feature, QuantumScale scale, int64_t& quanta) {
  const double x = scaled(feature, scale);
  if (!(x >= -0x1p63 && x < 0x1p63)) return false;
  quanta = nearest_integer(x);
  return true;
}

// Returns the coarse part: quanta = coarse * 2^31 + fine, with fine in [-2^30, 2^30).
ROBOCACHE_HD int64_t coarse(int64_t quanta) { return (quanta >> 31) + ((quanta >> 30) & 1); }

// Whether the true sum exceeds int64; if not, `wrapped` is the true sum.
ROBOCACHE_HD bool sum_overflows(int64_t wrapped, int64_t coarse_sum) {
  // The fine parts sum to less than 2^61, so their sum is known from its value modulo 2^64.
  const uint64_t fine_bits = static_cast<uint64_t>(wrapped) - (static_cast<uint64_t>(coarse_sum) << 31);
  const int64_t fine = static_cast<int64_t>(fine_bits);
  const int64_t high = coarse_sum + (fine >> 31);  // the sum's bits from 2^31 on
  return high < -(int64_t{1} << 32) || high >= (int64_t{1} << 32);
}

// ---- One rounding at the end ----

template <class Out>
struct FloatFormat;
template <>
struct FloatFormat<Float16> {
  using Bits = uint16_t;
  static constexpr int32_t digits = 11, least = -24;
  static constexpr uint64_t infinity = 0x7c00;
};
template <>
struct FloatFormat<BFloat16> {
  using Bits = uint16_t;
  static constexpr int32_t digits = 8, least = -133;
  static constexpr uint64_t infinity = 0x7f80;
};
template <>
struct FloatFormat<float> {
  using Bits = uint32_t;
  static constexpr int32_t digits = 24, least = -149;
  static constexpr uint64_t infinity = 0x7f800000;
};
template <>
struct FloatFormat<double> {
  using Bits = uint64_t;
  static constexpr int32_t digits = 53, least = -1074;
  static constexpr uint64_t infinity = 0x7ff0000000000000;
};

// Returns the Out nearest to magnitude * 2^exponent, ties to even. With `more`, the true value is larger, by less than
// one unit of `magnitude`, which then has 64 bits.
template <class Out>
ROBOCACHE_HD Out round_to(bool negative, uint64_t magnitude, int32_t exponent, bool more) {
  using Format = FloatFormat<Out>;
  using Bits = typename Format::Bits;
  // The result is a multiple of 2^unit.
  const int32_t width = bit_width(magnitude);
  const int32_t normal = exponent + width - Format::digits;
  const int32_t unit = normal > Format::least ? normal : Format::least;
  const int32_t dropped = unit - exponent;
  uint64_t kept = 0;
  if (dropped <= 0) {
    kept = magnitude << -dropped;
  } else if (dropped <= 64) {
    kept = dropped == 64 ? 0 : magnitude >> dropped;
    const uint64_t half = uint64_t{1} << (dropped - 1);
    const uint64_t rest = magnitude & (half | (half - 1));
    if (rest > half || (rest == half && (more || (kept & 1)))) ++kept;
  }
  // `kept` includes the leading bit, which a normal number does not store. So the addition raises the exponent by one,
  // or by two after a carry.
  uint64_t bits = magnitude == 0 ? 0 : (static_cast<uint64_t>(unit - Format::least) << (Format::digits - 1)) + kept;
  if (bits > Format::infinity) bits = Format::infinity;
  if (negative) bits |= uint64_t{1} << (8 * sizeof(Bits) - 1);
  return std::bit_cast<Out>(static_cast<Bits>(bits));
}

ROBOCACHE_HD uint64_t magnitude_of(int64_t x) {
  return x < 0 ? ~static_cast<uint64_t>(x) + 1 : static_cast<uint64_t>(x);
}

// Returns sum * 2^exponent, rounded once.
template <class Out>
ROBOCACHE_HD Out rounded_sum(int64_t sum, int32_t exponent) {
  if constexpr (std::is_same_v<Out, float>) {
    // If the conversion to float32 rounds the sum, the product is a normal number, and therefore exact. exponent is in
    // [-149, 127].
    return static_cast<float>(sum) * static_cast<float>(power_of_two(exponent));
  } else {
    return round_to<Out>(sum < 0, magnitude_of(sum), exponent, false);
  }
}

// Returns sum * 2^exponent / points, rounded once and computed in integers; points in [1, 2^31 - 1].
template <class Out>
ROBOCACHE_HD Out rounded_quotient(int64_t sum, int32_t exponent, int64_t points) {
  if (sum == 0) return round_to<Out>(false, 0, 0, false);
  const uint64_t divisor = static_cast<uint64_t>(points);
  uint64_t dividend = magnitude_of(sum);
  int32_t shift = leading_zeros(dividend);
  dividend <<= shift;
  exponent -= shift;
  // The quotient has 33 bits or more, enough for all but float64, which takes the other bits from the remainder.
  uint64_t quotient = dividend / divisor;
  uint64_t remainder = dividend % divisor;
  shift = leading_zeros(quotient);
  quotient <<= shift;
  exponent -= shift;
  if constexpr (std::is_same_v<Out, double>) {
    quotient |= (remainder << shift) / divisor;
    remainder = (remainder << shift) % divisor;
  }
  return round_to<Out>(sum < 0, quotient, exponent, remainder != 0);
}

// Rounds a true value "to odd". x >= 0 is less than one unit in the last place away from it, and `error` has the sign
// of (true value - x). Returns x if it is exact or odd, otherwise its neighbour towards the true value. Rounding the
// result to fewer digits gives the same as rounding the true value.
ROBOCACHE_HD double odd_neighbour(double x, double error) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  if (error == 0 || (bits & 1)) return x;
  return std::bit_cast<double>(error > 0 ? bits + 1 : bits - 1);
}

// Returns the same bits as rounded_quotient, computed in float64, for results of 24 bits or less and at most
// kMostByFloat64 points. Rounding only compares with numbers halfway between two results. Such a number has 25 bits,
// and 51 bits after multiplication by `points`, so two roundings to odd at 53 bits keep the comparison right.
// `exponent` is in [-149, 127]; `reciprocal` is 1.0 / points, which the features of a cell share.
inline constexpr int64_t kMostByFloat64 = int64_t{1} << 26;

template <class Out>
ROBOCACHE_HD Out rounded_quotient_by_float64(int64_t sum, int32_t exponent, int64_t points, double reciprocal) {
  if (sum == 0) return round_to<Out>(false, 0, 0, false);
  uint64_t whole = magnitude_of(sum);
  const int32_t above = 11 - leading_zeros(whole);
  if (above > 0) {
    const uint64_t rest = whole & ((uint64_t{1} << above) - 1);
    whole = ((whole - rest) | (static_cast<uint64_t>(rest != 0) << above));
  }
  const double dividend = static_cast<double>(whole);
  const double divisor = static_cast<double>(points);
  const double almost = dividend * reciprocal;
  const double nearest = std::fma(std::fma(-almost, divisor, dividend), reciprocal, almost);
  const double quotient = odd_neighbour(nearest, std::fma(-nearest, divisor, dividend));
  if constexpr (std::is_same_v<Out, float>) {
    const float magnitude = static_cast<float>(quotient * power_of_two(exponent));
    return sum < 0 ? -magnitude : magnitude;
  } else {
    const uint64_t bits = std::bit_cast<uint64_t>(quotient);
    const uint64_t digits = (bits & 0xfffffffffffffu) | 0x10000000000000u;
    return round_to<Out>(sum < 0, digits, exponent + static_cast<int32_t>(bits >> 52) - 1075, false);
  }
}

}  // namespace robocache
