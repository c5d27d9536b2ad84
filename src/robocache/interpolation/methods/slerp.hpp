// Rotations between two samples: 4 features are a quaternion, in any order of its components. The functions run on any
// number type that has +, -, *, <, and the functions of number.hpp and of this file.
#pragma once

#include <cmath>
#include <type_traits>

#include "robocache/core/host_device.hpp"
#include "robocache/interpolation/curve.hpp"
#include "robocache/interpolation/dual.hpp"
#include "robocache/interpolation/number.hpp"

namespace robocache {

// Returns 1 / sqrt(x); in float32 on CUDA within 2 ulp for x >= 2^-126.
ROBOCACHE_HD double reciprocal_root(double x) { return 1 / std::sqrt(x); }
ROBOCACHE_HD float reciprocal_root(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1 / std::sqrt(x);
#endif
}

// Returns atan(x) for x in [0, 1], within 2 ulp: the minimax polynomial of least relative error.
ROBOCACHE_HD double arc_tangent(double x) { return std::atan(x); }
ROBOCACHE_HD float arc_tangent(float x) {
  const float s = x * x;
  float y = 0.002849218844f;
  y = multiply_add(y, s, -0.01606611933f);
  y = multiply_add(y, s, 0.04268772318f);
  y = multiply_add(y, s, -0.07503997215f);
  y = multiply_add(y, s, 0.1064080586f);
  y = multiply_add(y, s, -0.142036147f);
  y = multiply_add(y, s, 0.1999261603f);
  y = multiply_add(y, s, -0.333330732f);
  return multiply_add(x * s, y, x);
}

ROBOCACHE_HD double sine(double x) { return std::sin(x); }
ROBOCACHE_HD float sine(float x) { return std::sin(x); }

// Returns sin(x) for x in [0, pi/2], within 2 ulp, by a minimax polynomial too.
ROBOCACHE_HD double sine_of_quarter_turn(double x) { return std::sin(x); }
ROBOCACHE_HD float sine_of_quarter_turn(float x) {
  const float s = x * x;
  float y = 2.601887728e-6f;
  y = multiply_add(y, s, -0.0001980741189f);
  y = multiply_add(y, s, 0.008333025045f);
  y = multiply_add(y, s, -0.1666665668f);
  return multiply_add(x * s, y, x);
}

template <class Scalar>
ROBOCACHE_HD Scalar dot(const Scalar (&a)[4], const Scalar (&b)[4]) {
  return multiply_add(a[3], b[3], multiply_add(a[2], b[2], multiply_add(a[1], b[1], a[0] * b[0])));
}

// Normalises a quaternion of any length to length 1. If the square of the length would overflow or vanish, the
// quaternion is first multiplied by a power of two. The result is NaN if the length is 0 or not finite.
template <class Scalar>
ROBOCACHE_HD void normalise(Scalar (&q)[4]) {
  constexpr bool kSingle = std::is_same_v<Scalar, float>;
  const Scalar smallest = Scalar(kSingle ? 0x1p-80 : 0x1p-600);
  const Scalar largest = Scalar(kSingle ? 0x1p100 : 0x1p600);
  Scalar square = dot(q, q);
  if (!(smallest < square && square < largest)) {
    const Scalar power =
        square < Scalar(1) ? Scalar(kSingle ? 0x1p100 : 0x1p700) : Scalar(kSingle ? 0x1p-100 : 0x1p-700);
    for (int i = 0; i < 4; ++i) q[i] = q[i] * power;
    square = dot(q, q);
  }
  const bool is_finite = Scalar(0) < square && square < Scalar(__builtin_inff());
  const Scalar factor = is_finite ? reciprocal_root(square) : Scalar(__builtin_nanf(""));
  for (int i = 0; i < 4; ++i) q[i] = q[i] * factor;
}

template <class Scalar>
ROBOCACHE_HD bool is_zero(const Scalar (&q)[4]) {
  constexpr bool kSingle = std::is_same_v<Scalar, float>;
  const Scalar least = Scalar(kSingle ? 0x1p-149 : 0x1p-1074);
  bool all_zero = true;
  for (int i = 0; i < 4; ++i) all_zero = all_zero && q[i] < least && -q[i] < least;
  return all_zero;
}

// Rotates at an even rate from `a` at w = 0 to the nearer of `b` and -b at w = 1; w may be outside [0, 1]. `rest` is 1
// - w. Two quaternions of length 0, as a sensor without a rotation sends them, give 0.
//
// The angle is 2 atan(|a - b| / |a + b|) of the unit quaternions, which is accurate for every angle; an arc cosine
// would lose half the digits of small angles. Nearly opposite quaternions are nearly equal once one of them is negated.
template <class Scalar>
ROBOCACHE_HD void slerp(Scalar (&a)[4], Scalar (&b)[4], Scalar w, Scalar rest, Scalar (&y)[4]) {
  if (is_zero(a) && is_zero(b)) {
    for (int i = 0; i < 4; ++i) y[i] = Scalar(0);
    return;
  }
  normalise(a);
  normalise(b);
  if (dot(a, b) < Scalar(0)) {
    for (int i = 0; i < 4; ++i) b[i] = -b[i];
  }
  Scalar difference[4];
  Scalar sum[4];
  for (int i = 0; i < 4; ++i) {
    difference[i] = a[i] - b[i];
    sum[i] = a[i] + b[i];
  }
  const Scalar difference_square = dot(difference, difference);  // (2 sin(angle / 2))^2
  const Scalar product = difference_square * dot(sum, sum);      // (2 sin(angle))^2
  Scalar weight_a = rest;
  Scalar weight_b = w;
  if (!(product < smallest_normal<Scalar>())) {
    const Scalar reciprocal = reciprocal_root(product);
    Scalar half_tangent = difference_square * reciprocal;  // tan(angle / 2)
    if (Scalar(1) < half_tangent) half_tangent = Scalar(1);
    const Scalar angle = Scalar(2) * arc_tangent(half_tangent);
    const bool is_inside = !(w < Scalar(0)) && !(rest < Scalar(0));
    const Scalar factor = Scalar(2) * reciprocal;
    weight_a = factor * (is_inside ? sine_of_quarter_turn(rest * angle) : sine(rest * angle));
    weight_b = factor * (is_inside ? sine_of_quarter_turn(w * angle) : sine(w * angle));
  }
  for (int i = 0; i < 4; ++i) y[i] = multiply_add(weight_a, a[i], weight_b * b[i]);
}

struct Slerp {
  static constexpr int kFeatures = 4;
  static constexpr int kReach = 0;
  static constexpr bool kWeighs = false;
  static constexpr bool kSlopes = false;

  template <class Scalar>
  ROBOCACHE_HD static void value(const CurveWeights<Scalar>& c, Scalar (&a)[4], Scalar (&b)[4], Scalar (&y)[4]) {
    slerp(a, b, c.along, Scalar(1) - c.along, y);
  }

  // Passes the gradient of the 4 features back to the samples a and b; w is the weight between them.
  ROBOCACHE_HD static void rows_gradient(const double (&a)[4], const double (&b)[4], double w,
                                         const double (&gradient)[4], double (&gradient_a)[4],
                                         double (&gradient_b)[4]) {
    using Number = Dual<8>;
    Number from[4];
    Number to[4];
    Number y[4];
    for (int i = 0; i < 4; ++i) {
      from[i] = Number::variable(a[i], i);
      to[i] = Number::variable(b[i], 4 + i);
    }
    slerp(from, to, Number(w), Number(1 - w), y);
    for (int i = 0; i < 4; ++i) {
      gradient_a[i] = gradient_b[i] = 0;
      for (int k = 0; k < 4; ++k) {
        gradient_a[i] += share_of(y[k].partial[i], gradient[k]);
        gradient_b[i] += share_of(y[k].partial[4 + i], gradient[k]);
      }
    }
  }

  // Returns the gradient with respect to w.
  ROBOCACHE_HD static double weight_gradient(const double (&a)[4], const double (&b)[4], double w,
                                             const double (&gradient)[4]) {
    using Number = Dual<1>;
    Number from[4];
    Number to[4];
    Number y[4];
    for (int i = 0; i < 4; ++i) {
      from[i] = Number(a[i]);
      to[i] = Number(b[i]);
    }
    Number rest(1 - w);
    rest.partial[0] = -1;
    slerp(from, to, Number::variable(w, 0), rest, y);
    double gradient_w = 0;
    for (int k = 0; k < 4; ++k) gradient_w += share_of(y[k].partial[0], gradient[k]);
    return gradient_w;
  }
};

}  // namespace robocache
