// Derivatives of curves and rotations at a target: the functions of curve.hpp and rotation.hpp on numbers that carry them.
// Shared by the CPU loop and the CUDA kernels. All in float64, so the gradient is that of the exact curve.
//
// A curve depends on its six rows (partials 0 to 5) and, through nine weights that all features share, on their times:
// what the features add up to at the weights goes on to the times once a target. Partials of rows beyond the stencil are 0.
#pragma once

#include <cstdint>

#include "robocache/core/host_device.hpp"
#include "robocache/interpolation/curve.hpp"
#include "robocache/interpolation/dual.hpp"
#include "robocache/interpolation/gradient.hpp"
#include "robocache/interpolation/rotation.hpp"

namespace robocache {

constexpr int kStencilRows = 6;
constexpr int kCurveWeights = 9;

// A target's stencil as the gradient needs it, the same for every feature.
struct CurvePlace {
  Stencil<int64_t> stencil;
  CurveWeights<double> weights;
  int64_t first, last;  // the row's first and last sample: a cubic's weights are in units of its span

  // The sample whose time is number i of times_of_weights, or -1.
  ROBOCACHE_HD int64_t time_row(InterpolationMethod method, int i) const {
    if (method == InterpolationMethod::kCubic && (i == 0 || i == kStencilRows - 1)) return i == 0 ? first : last;
    return 2 - stencil.before <= i && i <= 3 + stencil.after ? stencil.rows[i] : -1;
  }
};

// The weights on a number type, from an array in the order of the struct.
template <class Scalar>
ROBOCACHE_HD CurveWeights<Scalar> curve_weights_of(const Scalar (&x)[kCurveWeights]) {
  return {x[0], x[1], x[2], {x[3], x[4], x[5], x[6]}, x[7], x[8]};
}
template <class Scalar>
ROBOCACHE_HD void curve_weights_to(const CurveWeights<Scalar>& c, Scalar (&x)[kCurveWeights]) {
  x[0] = c.along;
  x[1] = c.early;
  x[2] = c.late;
  for (int i = 0; i < 4; ++i) x[3 + i] = c.stretch[i];
  x[7] = c.share_left;
  x[8] = c.share_right;
}

// The gaps between the stencil's rows; those that do not exist are 0.
template <class Times>
ROBOCACHE_HD void stencil_gaps(const Times& times, const Stencil<int64_t>& stencil, double (&gaps)[5]) {
  for (int i = 0; i < 5; ++i) {
    gaps[i] = static_cast<double>(later_minus_earlier(times[stencil.rows[i + 1]], times[stencil.rows[i]]));
  }
}

template <class Times>
ROBOCACHE_HD CurvePlace curve_place(InterpolationMethod method, const Times& times, int64_t n, const Bracket& bracket) {
  CurvePlace place;
  place.stencil = stencil_around(times, n, bracket.left, bracket.right, stencil_reach(method));
  double gaps[5];
  stencil_gaps(times, place.stencil, gaps);
  const auto span = static_cast<double>(later_minus_earlier(times[n - 1], times[int64_t{0}]));
  place.first = method == InterpolationMethod::kCubic ? last_at_or_before(times, n, times[int64_t{0}], int64_t{0}) : 0;
  place.last = n - 1;
  place.weights = curve_weights<double>(method, bracket.weight, gaps, span, place.stencil.before, place.stencil.after);
  return place;
}

template <class Scalar>
ROBOCACHE_HD Scalar local_curve_at(InterpolationMethod method, const CurveWeights<Scalar>& c,
                                   const Stencil<int64_t>& stencil, const Scalar (&y)[kStencilRows]) {
  switch (method) {
    case InterpolationMethod::kPchip:
      return pchip_at(c, stencil.before, stencil.after, y[1], y[2], y[3], y[4]);
    case InterpolationMethod::kAkima:
      return akima_at(c, stencil.before, stencil.after, y[0], y[1], y[2], y[3], y[4], y[5]);
    case InterpolationMethod::kCubic:
    case InterpolationMethod::kLinear:
    case InterpolationMethod::kNearest:
    case InterpolationMethod::kPrevious:
    case InterpolationMethod::kNext:
    case InterpolationMethod::kAngle:
    case InterpolationMethod::kSlerp:
    case InterpolationMethod::kPose:
      break;
  }
  __builtin_unreachable();
}

// With respect to the rows of pchip or akima.
ROBOCACHE_HD void partials_of_rows(InterpolationMethod method, const CurvePlace& place, const double (&y)[kStencilRows],
                                   double (&partials)[kStencilRows]) {
  using Number = Dual<kStencilRows>;
  double weights[kCurveWeights];
  curve_weights_to(place.weights, weights);
  Number constant[kCurveWeights];
  for (int i = 0; i < kCurveWeights; ++i) constant[i] = Number(weights[i]);
  Number rows[kStencilRows];
  for (int i = 0; i < kStencilRows; ++i) rows[i] = Number::variable(y[i], i);
  const Number made = local_curve_at(method, curve_weights_of(constant), place.stencil, rows);
  for (int i = 0; i < kStencilRows; ++i) partials[i] = made.partial[i];
}

// With respect to the weights of pchip or akima.
ROBOCACHE_HD void partials_of_weights(InterpolationMethod method, const CurvePlace& place,
                                      const double (&y)[kStencilRows], double (&partials)[kCurveWeights]) {
  using Number = Dual<kCurveWeights>;
  double weights[kCurveWeights];
  curve_weights_to(place.weights, weights);
  Number variable[kCurveWeights];
  for (int i = 0; i < kCurveWeights; ++i) variable[i] = Number::variable(weights[i], i);
  Number rows[kStencilRows];
  for (int i = 0; i < kStencilRows; ++i) rows[i] = Number(y[i]);
  const Number made = local_curve_at(method, curve_weights_of(variable), place.stencil, rows);
  for (int i = 0; i < kCurveWeights; ++i) partials[i] = made.partial[i];
}

// From the gradient with respect to the weights to that of the rows' times. The target's is less their sum: moving
// everything at once changes nothing.
template <class Times>
ROBOCACHE_HD void times_of_weights(InterpolationMethod method, const Times& times, const CurvePlace& place,
                                   const Bracket& bracket, const double (&of_weights)[kCurveWeights],
                                   double (&of_times)[kStencilRows]) {
  using Number = Dual<kStencilRows>;
  double apart[5];
  stencil_gaps(times, place.stencil, apart);
  Number gaps[5];
  for (int i = 0; i < 5; ++i) {
    gaps[i] = Number::variable(apart[i], i + 1);
    gaps[i].partial[i] = -1;
  }
  Number since = Number::variable(bracket.weight * bracket.gap, 2);  // from the bracket's left sample to the target
  since.partial[2] = -1;
  // A cubic's stencil is its bracket: the numbers of the outermost rows are free for the row's ends.
  Number span = Number::variable(static_cast<double>(later_minus_earlier(times[place.last], times[place.first])), 5);
  span.partial[0] = -1;
  Number weights[kCurveWeights];
  curve_weights_to(
      curve_weights<Number>(method, since / gaps[2], gaps, span, place.stencil.before, place.stencil.after), weights);
  for (int i = 0; i < kStencilRows; ++i) {
    of_times[i] = 0;
    for (int k = 0; k < kCurveWeights; ++k) of_times[i] += share_of(weights[k].partial[i], of_weights[k]);
  }
}

// What a cubic takes of its bracket's samples and of the slopes there, the same for every feature.
struct CubicShares {
  double a, b, slope_a, slope_b;
};
ROBOCACHE_HD CubicShares cubic_shares(const CurveWeights<double>& c) {
  const double b = c.along - c.early - c.late;
  return {1 - b, b, c.early * c.stretch[1], c.late * c.stretch[1]};
}

// The gradient of one feature of a cubic, added to that of the weights.
ROBOCACHE_HD void add_cubic_weights(const CurveWeights<double>& c, double a, double b, double slope_a, double slope_b,
                                    double gradient, double (&of_weights)[kCurveWeights]) {
  const double step = b - a;
  of_weights[0] += share_of(step, gradient);
  of_weights[1] += share_of(slope_a * c.stretch[1] - step, gradient);
  of_weights[2] += share_of(slope_b * c.stretch[1] - step, gradient);
  of_weights[4] += share_of(c.early * slope_a + c.late * slope_b, gradient);
}

// What the gradient of a rotation's 4 features, at the mixture w of the quaternions a and b, means for a and for b.
ROBOCACHE_HD void rotation_gradient(const double (&a)[4], const double (&b)[4], double w, const double (&gradient)[4],
                                    double (&of_a)[4], double (&of_b)[4]) {
  using Number = Dual<8>;
  Number from[4];
  Number to[4];
  Number made[4];
  for (int i = 0; i < 4; ++i) {
    from[i] = Number::variable(a[i], i);
    to[i] = Number::variable(b[i], 4 + i);
  }
  slerp(from, to, Number(w), Number(1 - w), made);
  for (int i = 0; i < 4; ++i) {
    of_a[i] = of_b[i] = 0;
    for (int k = 0; k < 4; ++k) {
      of_a[i] += share_of(made[k].partial[i], gradient[k]);
      of_b[i] += share_of(made[k].partial[4 + i], gradient[k]);
    }
  }
}

// The same for w.
ROBOCACHE_HD double rotation_weight_gradient(const double (&a)[4], const double (&b)[4], double w,
                                             const double (&gradient)[4]) {
  using Number = Dual<1>;
  Number from[4];
  Number to[4];
  Number made[4];
  for (int i = 0; i < 4; ++i) {
    from[i] = Number(a[i]);
    to[i] = Number(b[i]);
  }
  Number rest(1 - w);
  rest.partial[0] = -1;
  slerp(from, to, Number::variable(w, 0), rest, made);
  double of_w = 0;
  for (int k = 0; k < 4; ++k) of_w += share_of(made[k].partial[0], gradient[k]);
  return of_w;
}

}  // namespace robocache
