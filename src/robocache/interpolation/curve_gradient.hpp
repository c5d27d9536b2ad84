// The derivatives of every method with kWeighs (methods.hpp) at a target: they come from running the method's `value`
// and `weights` on dual numbers. The CPU loop and the CUDA kernels share this code. All arithmetic is float64, so the
// result is the gradient of the exact curve.
//
// A curve depends on its six rows (partials 0 to 5) and, through nine weights that all features share, on their times.
// For each target, the gradient by the weights is summed over the features, then converted once to the gradient by the
// times. Partials of rows outside the stencil are 0.
#pragma once

#include <cstdint>

#include "robocache/core/host_device.hpp"
#include "robocache/interpolation/curve.hpp"
#include "robocache/interpolation/dual.hpp"
#include "robocache/interpolation/gradient.hpp"
#include "robocache/interpolation/methods.hpp"

namespace robocache {

constexpr int kStencilRows = 6;

// The numbers for the gradient at a target, the same for every feature.
struct CurveTarget {
  Stencil<int64_t> stencil;
  Spacing<double> spacing;
  CurveWeights<double> weights;
  int64_t first, last;  // the row's first and last sample; a cubic's weights are in units of the time between them

  // The sample whose time belongs to entry i of gradient_by_times, or -1.
  ROBOCACHE_HD int64_t time_row(InterpolationMethod method, int i) const {
    if (method == InterpolationMethod::kCubic && (i == 0 || i == kStencilRows - 1)) return i == 0 ? first : last;
    return 2 - stencil.before <= i && i <= 3 + stencil.after ? stencil.rows[i] : -1;
  }
};

// Fills all but the weights, which do not depend on the type of the clock.
template <class Times>
ROBOCACHE_HD CurveTarget curve_around(InterpolationMethod method, const Times& times, int64_t n,
                                      const Bracket& bracket) {
  CurveTarget curve;
  curve.stencil = stencil_around(times, n, bracket.left, bracket.right, reach_of(method));
  curve.first = method == InterpolationMethod::kCubic ? last_at_or_before(times, n, times[int64_t{0}], int64_t{0}) : 0;
  curve.last = n - 1;
  curve.spacing = spacing_around(times, n, curve.stencil, reach_of(method), bracket.weight);
  return curve;
}

// Returns the value from the stencil's samples, for a method without slopes.
template <class Scalar>
ROBOCACHE_HD Scalar local_curve_at(InterpolationMethod method, const CurveWeights<Scalar>& c,
                                   const Stencil<int64_t>& stencil, const Scalar (&y)[kStencilRows]) {
  return with_method(method, [&](auto m) -> Scalar {
    using Method = decltype(m);
    if constexpr (Method::kWeighs && !Method::kSlopes) {
      Scalar rows[kRowsOf<Method>];
      for (int i = 0; i < kRowsOf<Method>; ++i) rows[i] = y[2 - Method::kReach + i];
      return Method::value(c, stencil.before, stencil.after, rows);
    }
    __builtin_unreachable();
  });
}

// Computes the derivatives of local_curve_at by the rows.
ROBOCACHE_HD void partials_of_rows(InterpolationMethod method, const CurveTarget& curve,
                                   const double (&y)[kStencilRows], double (&partials)[kStencilRows]) {
  using Number = Dual<kStencilRows>;
  double weights[kCurveWeights];
  weights_to_array(curve.weights, weights);
  Number constant[kCurveWeights];
  for (int i = 0; i < kCurveWeights; ++i) constant[i] = Number(weights[i]);
  Number rows[kStencilRows];
  for (int i = 0; i < kStencilRows; ++i) rows[i] = Number::variable(y[i], i);
  const Number value = local_curve_at(method, weights_from_array(constant), curve.stencil, rows);
  for (int i = 0; i < kStencilRows; ++i) partials[i] = value.partial[i];
}

// Computes the derivatives of local_curve_at by the weights.
ROBOCACHE_HD void partials_of_weights(InterpolationMethod method, const CurveTarget& curve,
                                      const double (&y)[kStencilRows], double (&partials)[kCurveWeights]) {
  using Number = Dual<kCurveWeights>;
  double weights[kCurveWeights];
  weights_to_array(curve.weights, weights);
  Number variable[kCurveWeights];
  for (int i = 0; i < kCurveWeights; ++i) variable[i] = Number::variable(weights[i], i);
  Number rows[kStencilRows];
  for (int i = 0; i < kStencilRows; ++i) rows[i] = Number(y[i]);
  const Number value = local_curve_at(method, weights_from_array(variable), curve.stencil, rows);
  for (int i = 0; i < kCurveWeights; ++i) partials[i] = value.partial[i];
}

// Converts the gradient by the weights to the gradient by the rows' times. The gradient by the target's time is the
// negative of the sum over the rows, because moving all times together changes nothing.
ROBOCACHE_HD void gradient_by_times(InterpolationMethod method, const CurveTarget& curve, const Bracket& bracket,
                                    const double (&weights_gradient)[kCurveWeights],
                                    double (&times_gradient)[kStencilRows]) {
  using Number = Dual<kStencilRows>;
  const Spacing<double>& spacing = curve.spacing;
  Spacing<Number> dual_spacing;
  for (int i = 0; i < 5; ++i) {
    dual_spacing.gaps[i] = Number::variable(spacing.gaps[i], i + 1);
    dual_spacing.gaps[i].partial[i] = -1;
  }
  Number elapsed = Number::variable(bracket.weight * bracket.gap, 2);  // from the bracket's left sample to the target
  elapsed.partial[2] = -1;
  // A cubic's stencil is its bracket, so partials 0 and 5 are free for the times at the row's ends.
  dual_spacing.span = Number::variable(spacing.span, 5);
  dual_spacing.span.partial[0] = -1;
  dual_spacing.w = elapsed / dual_spacing.gaps[2];
  dual_spacing.before = spacing.before;
  dual_spacing.after = spacing.after;
  Number weights[kCurveWeights];
  weights_to_array(curve_weights<Number>(method, dual_spacing), weights);
  for (int i = 0; i < kStencilRows; ++i) {
    times_gradient[i] = 0;
    for (int k = 0; k < kCurveWeights; ++k) times_gradient[i] += share_of(weights[k].partial[i], weights_gradient[k]);
  }
}

}  // namespace robocache
