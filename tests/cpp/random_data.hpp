// Random values, clocks and targets, with many edge cases: special values, repeated times, targets on and between
// samples.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "robocache/core/dtype.hpp"
#include "tests/cpp/reference.hpp"

namespace robocache::test {

// The element types of tensors with their C++ types, for templated tests.
template <class T, DType kType>
struct Element {
  using Type = T;
  static constexpr DType kDType = kType;
};

template <class Visit>
void for_each_float(const Visit& visit) {
  visit(Element<double, DType::kFloat64>{});
  visit(Element<float, DType::kFloat32>{});
  visit(Element<Float16, DType::kFloat16>{});
  visit(Element<BFloat16, DType::kBFloat16>{});
}

template <class Visit>
void for_each_integer(const Visit& visit) {
  visit(Element<uint8_t, DType::kBool>{});
  visit(Element<int8_t, DType::kInt8>{});
  visit(Element<uint8_t, DType::kUInt8>{});
  visit(Element<int16_t, DType::kInt16>{});
  visit(Element<uint16_t, DType::kUInt16>{});
  visit(Element<int32_t, DType::kInt32>{});
  visit(Element<uint32_t, DType::kUInt32>{});
  visit(Element<int64_t, DType::kInt64>{});
  visit(Element<uint64_t, DType::kUInt64>{});
}

template <class Visit>
void for_each_clock(const Visit& visit) {
  visit(Element<float, DType::kFloat32>{});
  visit(Element<double, DType::kFloat64>{});
  visit(Element<int64_t, DType::kInt64>{});
}

// Gives the same numbers on every run and machine.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  uint64_t bits() { return engine_(); }
  int64_t below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
  bool one_in(int64_t n) { return below(n) == 0; }
  double between(double low, double high) {
    return low + (high - low) * std::ldexp(static_cast<double>(bits() >> 11), -53);
  }

  template <class E>
  typename E::Type value(E /*element*/) {
    using T = typename E::Type;
    if constexpr (!kIsFloat<T>) {
      return static_cast<T>(E::kDType == DType::kBool ? bits() & 1 : bits());
    } else {
      switch (below(12)) {
        case 0:
          return rounded<T>(std::numeric_limits<double>::quiet_NaN());
        case 1:
          return rounded<T>(one_in(2) ? HUGE_VAL : -HUGE_VAL);
        case 2:
          return rounded<T>(-0.0);
        case 3:  // any exponent: subnormal or near overflow
          return rounded<T>(std::ldexp(between(-1, 1), static_cast<int>(below(280)) - 150));
        default:
          return rounded<T>(between(-100, 100));
      }
    }
  }

  template <class E>
  std::vector<typename E::Type> values(E element, int64_t n) {
    std::vector<typename E::Type> values;
    for (int64_t i = 0; i < n; ++i) values.push_back(value(element));
    return values;
  }

  // Returns floats of everyday size, now and then NaN; integers like those of `values`.
  template <class E>
  std::vector<typename E::Type> everyday_values(E element, int64_t n) {
    using T = typename E::Type;
    if constexpr (!kIsFloat<T>) {
      return values(element, n);
    } else {
      std::vector<T> values;
      for (int64_t i = 0; i < n; ++i) values.push_back(rounded<T>(one_in(30) ? std::nan("") : between(-20, 80)));
      return values;
    }
  }

  // Returns ascending times: quarters of a second, some repeated, some slightly off.
  template <class Clock>
  std::vector<Clock> clock(int64_t n) {
    std::vector<Clock> times;
    Clock t = start<Clock>();
    for (int64_t i = 0; i < n; ++i) {
      times.push_back(t);
      t += static_cast<Clock>(below(4)) * kQuarter<Clock>;
      if (one_in(4)) t += small_time<Clock>();
    }
    return times;
  }

  // Returns targets on samples, midway, slightly beside, outside, far outside, and NaN.
  template <class Clock>
  std::vector<Clock> targets(const std::vector<Clock>& times, int64_t n) {
    std::vector<Clock> targets;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t samples = static_cast<int64_t>(times.size());
      const auto time_of = [&](int64_t row) { return samples == 0 ? start<Clock>() : times[static_cast<size_t>(row)]; };
      const int64_t row = samples == 0 ? 0 : below(samples);
      const Clock next = time_of(row + 1 < samples ? row + 1 : row);
      switch (below(8)) {
        case 0:
        case 1:
          targets.push_back(time_of(row));
          break;
        case 2:
          targets.push_back(static_cast<Clock>(time_of(row) + (next - time_of(row)) / 2));
          break;
        case 3:
          targets.push_back(time_of(row) + (one_in(2) ? small_time<Clock>() : -small_time<Clock>()));
          break;
        case 4:
          targets.push_back(start<Clock>() + static_cast<Clock>(below(6) - 5) * kQuarter<Clock>);
          break;
        case 5:
          targets.push_back(time_of(samples - 1) + static_cast<Clock>(below(2000)) * kQuarter<Clock>);
          break;
        default:
          if (std::is_floating_point_v<Clock> && one_in(8)) {
            targets.push_back(std::numeric_limits<Clock>::quiet_NaN());
          } else {
            targets.push_back(start<Clock>() + static_cast<Clock>(below(2 * samples + 4)) * kQuarter<Clock>);
          }
      }
    }
    return targets;
  }

  template <class Clock>
  static constexpr Clock kQuarter = std::is_floating_point_v<Clock> ? Clock(0.25) : Clock(250'000'000);

 private:
  template <class Clock>
  static constexpr Clock start() {
    return std::is_floating_point_v<Clock> ? Clock(10) : static_cast<Clock>(1'700'000'000'123'456'789);
  }
  template <class Clock>
  Clock small_time() {
    return std::is_floating_point_v<Clock> ? static_cast<Clock>(between(0, 0.2)) : static_cast<Clock>(below(1000));
  }

  std::mt19937_64 engine_;
};

}  // namespace robocache::test
