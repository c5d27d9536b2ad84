// The rules of resampling, slow and plain. The operations and the loader must equal them bit for bit. They share no
// arithmetic with the library.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>
#include <variant>
#include <vector>

#include "robocache/core/half.hpp"
#include "robocache/ops/resample/resample.hpp"

namespace robocache::test {

// The methods that this reference computes.
inline constexpr InterpolationMethod kMethods[] = {InterpolationMethod::kLinear, InterpolationMethod::kNearest,
                                                   InterpolationMethod::kPrevious, InterpolationMethod::kNext};

// A 16-bit float with kExponentBits, computed in double. A double holds each value, and the middle of two, exactly.
template <int kExponentBits>
struct HalfFormat {
  static constexpr int kMantissaBits = 15 - kExponentBits;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr uint16_t kInfinity = ((1 << kExponentBits) - 1) << kMantissaBits;

  // Returns the value of a bit pattern, from its fields.
  static double value(uint16_t bits) {
    const int exponent = (bits >> kMantissaBits) & ((1 << kExponentBits) - 1);
    const int mantissa = bits & ((1 << kMantissaBits) - 1);
    const double sign = (bits >> 15) != 0 ? -1 : 1;
    if ((bits & 0x7fff) > kInfinity) return std::numeric_limits<double>::quiet_NaN();
    if ((bits & 0x7fff) == kInfinity) return sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - kBias - kMantissaBits);
    return sign * std::ldexp(mantissa + (1 << kMantissaBits), exponent - kBias - kMantissaBits);
  }

  // Returns the pattern whose value is nearest to x, of two the even one, by comparing x with the values on both sides.
  static uint16_t nearest(double x) {
    if (std::isnan(x)) return 0x7fff;
    const auto sign = static_cast<uint16_t>(std::signbit(x) ? 0x8000 : 0);
    const double magnitude = std::abs(x);
    const std::vector<double>& values = magnitudes();
    const auto above = std::upper_bound(values.begin(), values.end(), magnitude);
    if (above == values.end()) return sign | kInfinity;
    const auto below = static_cast<uint16_t>(above - values.begin() - 1);
    const double middle = (values[below] + *above) / 2;
    const bool rounds_up = magnitude > middle || (magnitude == middle && (below & 1) != 0);
    return static_cast<uint16_t>(sign | (below + (rounds_up ? 1 : 0)));
  }

 private:
  // Returns the magnitudes, ascending. Infinity is replaced by the next power of two.
  static const std::vector<double>& magnitudes() {
    static const std::vector<double> values = [] {
      std::vector<double> ascending;
      for (uint16_t bits = 0; bits < kInfinity; ++bits) ascending.push_back(value(bits));
      ascending.push_back(std::ldexp(1, kBias + 1));
      return ascending;
    }();
    return values;
  }
};

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
template <class T>
inline constexpr bool kIsFloat = kIsHalf<T> || std::is_floating_point_v<T>;
template <class Half>
using FormatOf = HalfFormat<std::is_same_v<Half, Float16> ? 5 : 8>;

// Widens exactly, for every element type with arithmetic.
template <class T>
double widened(T x) {
  if constexpr (kIsHalf<T>) {
    return FormatOf<T>::value(x.bits);
  } else {
    return static_cast<double>(x);
  }
}

// Rounds once to T.
template <class T>
T rounded(double x) {
  if constexpr (kIsHalf<T>) {
    return {FormatOf<T>::nearest(x)};
  } else {
    return static_cast<T>(x);
  }
}

// Whether both have the same bits, or both are NaN.
template <class T>
bool same(T a, T b) {
  if constexpr (kIsHalf<T>) {
    return a.bits == b.bits || (std::isnan(widened(a)) && std::isnan(widened(b)));
  } else if constexpr (std::is_floating_point_v<T>) {
    using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    return std::bit_cast<Bits>(a) == std::bit_cast<Bits>(b) || (std::isnan(a) && std::isnan(b));
  } else {
    return a == b;
  }
}

// The source of a target's value: nothing, one row, or (1 - weight) * left + weight * right.
struct Choice {
  enum Kind { kNothing, kRow, kMixture } kind = kNothing;
  int64_t left = 0;
  int64_t right = 0;
  double weight = 0;  // in float32 or float64
  bool valid = false;
};

namespace detail {

// The type of durations and differences. For int64 clocks it holds every difference.
template <class Clock>
using Span = std::conditional_t<std::is_same_v<Clock, int64_t>, __int128, Clock>;

template <class Clock>
Span<Clock> duration(Clock from, Clock to) {
  return static_cast<Span<Clock>>(static_cast<Span<Clock>>(to) - static_cast<Span<Clock>>(from));
}

template <class Clock>
bool exceeds(Span<Clock> span, const std::optional<Duration>& limit) {
  if (!limit) return false;
  return std::visit([span](auto value) { return span > static_cast<Span<Clock>>(value); }, *limit);
}

}  // namespace detail

// Applies the rules in their written order, by looking at every sample. Work is float or double.
template <class Work, class Clock>
Choice choose(std::span<const Clock> times, Clock target, const InterpolationOptions& options) {
  std::vector<int64_t> rows;  // of samples with one time only the last is listed
  for (size_t i = 0; i < times.size(); ++i) {
    if (i + 1 == times.size() || times[i] != times[i + 1]) rows.push_back(static_cast<int64_t>(i));
  }
  if (rows.empty() || target != target) return {};
  const auto time = [&](size_t i) { return times[static_cast<size_t>(rows[i])]; };
  const auto row = [&](size_t i, bool valid) { return Choice{Choice::kRow, rows[i], rows[i], 0, valid}; };
  const auto invalid_row = [&](size_t i) {
    return options.extrapolate == Extrapolate::kNan ? Choice{} : row(i, false);
  };
  const auto mixture = [&](size_t left, size_t right, bool valid) {
    using Wide = std::conditional_t<std::is_same_v<Clock, float> && std::is_same_v<Work, float>, float, double>;
    const auto elapsed = static_cast<Wide>(detail::duration(time(left), target));
    const auto gap = static_cast<Wide>(detail::duration(time(left), time(right)));
    return Choice{Choice::kMixture, rows[left], rows[right], static_cast<Work>(elapsed / gap), valid};
  };

  size_t next = 0;  // the first sample at or after the target
  while (next < rows.size() && time(next) < target) ++next;
  const bool before_all = next == 0;
  const bool after_all = next == rows.size();
  if (!after_all && time(next) == target) return row(next, true);

  if (options.causal) {
    if (before_all) return {};
    const auto age = detail::duration(time(next - 1), target);
    const bool too_old = detail::exceeds<Clock>(age, options.max_gap) || detail::exceeds<Clock>(age, options.tolerance);
    return after_all || too_old ? invalid_row(next - 1) : row(next - 1, true);
  }
  if (before_all || after_all) {
    const size_t end = before_all ? 0 : rows.size() - 1;
    if (options.extrapolate != Extrapolate::kLinear || rows.size() == 1) return invalid_row(end);
    return before_all ? mixture(0, 1, false) : mixture(end - 1, end, false);
  }

  const size_t previous = next - 1;
  const bool gap_too_long = detail::exceeds<Clock>(detail::duration(time(previous), time(next)), options.max_gap);
  if (options.method == InterpolationMethod::kLinear) {
    return gap_too_long && options.extrapolate == Extrapolate::kNan ? Choice{} : mixture(previous, next, !gap_too_long);
  }
  const auto to_previous = detail::duration(time(previous), target);
  const auto to_next = detail::duration(target, time(next));
  const bool takes_next = options.method == InterpolationMethod::kNext ||
                          (options.method == InterpolationMethod::kNearest && to_next < to_previous);
  const bool too_far = detail::exceeds<Clock>(takes_next ? to_next : to_previous, options.tolerance);
  const size_t chosen = takes_next ? next : previous;
  return gap_too_long || too_far ? invalid_row(chosen) : row(chosen, true);
}

// Computes fma(weight, b - a, a), each step in Work.
template <class Work>
Work mixed(double a, double b, double weight) {
  const auto left = static_cast<Work>(a);
  const auto difference = static_cast<Work>(static_cast<Work>(b) - left);
  return std::fma(static_cast<Work>(weight), difference, left);
}

}  // namespace robocache::test
