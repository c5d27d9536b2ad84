// Numbers that carry their derivatives by N variables. The functions of the methods run on them as on float64 and give
// the derivatives along with the value.
#pragma once

#include <cmath>

#include "robocache/core/host_device.hpp"

namespace robocache {

template <int N>
struct Dual {
  double value;
  double partial[N];

  Dual() = default;
  ROBOCACHE_HD constexpr explicit Dual(double constant) : value(constant), partial{} {}

  // Returns the variable with this index.
  ROBOCACHE_HD static Dual variable(double value, int index) {
    Dual result(value);
    result.partial[index] = 1;
    return result;
  }

  // Returns f(x), where `value` is f at x and `slope` its derivative there.
  ROBOCACHE_HD static Dual chain(double value, double slope, const Dual& x) {
    Dual result;
    result.value = value;
    for (int i = 0; i < N; ++i) result.partial[i] = slope * x.partial[i];
    return result;
  }

  ROBOCACHE_HD friend Dual operator+(const Dual& x, const Dual& y) {
    Dual result;
    result.value = x.value + y.value;
    for (int i = 0; i < N; ++i) result.partial[i] = x.partial[i] + y.partial[i];
    return result;
  }
  ROBOCACHE_HD friend Dual operator-(const Dual& x, const Dual& y) {
    Dual result;
    result.value = x.value - y.value;
    for (int i = 0; i < N; ++i) result.partial[i] = x.partial[i] - y.partial[i];
    return result;
  }
  ROBOCACHE_HD friend Dual operator-(const Dual& x) { return chain(-x.value, -1, x); }
  ROBOCACHE_HD friend Dual operator*(const Dual& x, const Dual& y) {
    Dual result;
    result.value = x.value * y.value;
    for (int i = 0; i < N; ++i) result.partial[i] = x.partial[i] * y.value + x.value * y.partial[i];
    return result;
  }
  ROBOCACHE_HD friend Dual operator/(const Dual& x, const Dual& y) {
    Dual result;
    result.value = x.value / y.value;
    for (int i = 0; i < N; ++i) result.partial[i] = (x.partial[i] - result.value * y.partial[i]) / y.value;
    return result;
  }
  ROBOCACHE_HD friend bool operator<(const Dual& x, const Dual& y) { return x.value < y.value; }
  ROBOCACHE_HD friend bool operator>(const Dual& x, const Dual& y) { return x.value > y.value; }
  ROBOCACHE_HD friend bool operator==(const Dual& x, const Dual& y) { return x.value == y.value; }
};

// The functions of number.hpp and methods/slerp.hpp, on dual numbers.
template <int N>
ROBOCACHE_HD Dual<N> multiply_add(const Dual<N>& x, const Dual<N>& y, const Dual<N>& z) {
  return x * y + z;
}
template <int N>
ROBOCACHE_HD Dual<N> absolute(const Dual<N>& x) {
  return x.value < 0 ? -x : x;
}
template <int N>
ROBOCACHE_HD Dual<N> quotient(const Dual<N>& x, const Dual<N>& y) {
  return x / y;
}
template <int N>
ROBOCACHE_HD Dual<N> reciprocal_root(const Dual<N>& x) {
  const double root = 1 / std::sqrt(x.value);
  return Dual<N>::chain(root, -0.5 * root / x.value, x);
}
template <int N>
ROBOCACHE_HD Dual<N> arc_tangent(const Dual<N>& x) {
  return Dual<N>::chain(std::atan(x.value), 1 / (1 + x.value * x.value), x);
}
template <int N>
ROBOCACHE_HD Dual<N> sine(const Dual<N>& x) {
  return Dual<N>::chain(std::sin(x.value), std::cos(x.value), x);
}
template <int N>
ROBOCACHE_HD Dual<N> sine_of_quarter_turn(const Dual<N>& x) {
  return sine(x);
}

}  // namespace robocache
