// A C2 spline through every sample of a row (scipy's CubicSpline). Its slopes depend on the whole row: spline.hpp
// computes them before the targets, and spline_gradient.hpp passes their gradient back after the targets.
#pragma once

#include "robocache/core/host_device.hpp"
#include "robocache/interpolation/curve.hpp"
#include "robocache/interpolation/number.hpp"

namespace robocache {

struct Cubic {
  static constexpr int kFeatures = 1;
  static constexpr int kReach = 0;
  static constexpr bool kWeighs = true;
  static constexpr bool kSlopes = true;

  template <class Scalar, class Wide>
  ROBOCACHE_HD static CurveWeights<Scalar> weights(const Spacing<Wide>& spacing) {
    CurveWeights<Scalar> c = hermite_weights<Scalar>(spacing.w);
    c.stretch[1] = static_cast<Scalar>(spacing.gaps[2] / spacing.span);
    return c;
  }

  // y holds the samples a and b, then the slopes there, as values per span of the row.
  template <class Scalar>
  ROBOCACHE_HD static Scalar value(const CurveWeights<Scalar>& c, int /*before*/, int /*after*/, const Scalar (&y)[4]) {
    const Scalar step = y[1] - y[0];
    return hermite_at(c, y[0], step, multiply_add(y[2], c.stretch[1], -step), multiply_add(y[3], c.stretch[1], -step));
  }

  // The derivatives of the value by the samples and the slopes, the same for every feature.
  struct Partials {
    double a, b, slope_a, slope_b;
  };
  ROBOCACHE_HD static Partials partials(const CurveWeights<double>& c) {
    const double b = c.along - c.early - c.late;
    return {1 - b, b, c.early * c.stretch[1], c.late * c.stretch[1]};
  }

  // Adds the gradient of one feature to the gradient of the weights, in the order of weights_to_array.
  ROBOCACHE_HD static void add_weights_gradient(const CurveWeights<double>& c, double a, double b, double slope_a,
                                                double slope_b, double gradient,
                                                double (&weights_gradient)[kCurveWeights]) {
    const double step = b - a;
    weights_gradient[0] += share_of(step, gradient);
    weights_gradient[1] += share_of(slope_a * c.stretch[1] - step, gradient);
    weights_gradient[2] += share_of(slope_b * c.stretch[1] - step, gradient);
    weights_gradient[4] += share_of(c.early * slope_a + c.late * slope_b, gradient);
  }
};

}  // namespace robocache
