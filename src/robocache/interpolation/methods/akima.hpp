// A local piecewise cubic: its slopes follow the side where the samples bend less (scipy's Akima1DInterpolator).
#pragma once

#include "robocache/core/host_device.hpp"
#include "robocache/interpolation/curve.hpp"
#include "robocache/interpolation/number.hpp"

namespace robocache {

// Returns first / (first + second), the weight of one of two differences in the slope between them; 1/2 if both are 0.
template <class Scalar>
ROBOCACHE_HD Scalar akima_part(Scalar first, Scalar second) {
  const Scalar sum = first + second;
  return sum < smallest_normal<Scalar>() ? Scalar(0.5) : quotient(first, sum);
}

struct Akima {
  static constexpr int kFeatures = 1;
  static constexpr int kReach = 2;
  static constexpr bool kWeighs = true;
  static constexpr bool kSlopes = false;

  template <class Scalar, class Wide>
  ROBOCACHE_HD static CurveWeights<Scalar> weights(const Spacing<Wide>& spacing) {
    CurveWeights<Scalar> c = hermite_weights<Scalar>(spacing.w);
    c.stretch[0] = static_cast<Scalar>(spacing.before > 1 ? spacing.gaps[2] / spacing.gaps[0] : Wide(1));
    c.stretch[1] = static_cast<Scalar>(stretch_before(spacing));
    c.stretch[2] = static_cast<Scalar>(stretch_after(spacing));
    c.stretch[3] = static_cast<Scalar>(spacing.after > 1 ? spacing.gaps[2] / spacing.gaps[4] : Wide(1));
    return c;
  }

  // m0 to m4 are the differences of neighbouring samples, each as a slope times the bracket's length. Beyond the row's
  // ends they continue as in scipy: 2 m[i] - m[i - 1].
  template <class Scalar>
  ROBOCACHE_HD static Scalar value(const CurveWeights<Scalar>& c, int before, int after, const Scalar (&y)[6]) {
    const Scalar m2 = y[3] - y[2];
    Scalar m1 = m2;
    Scalar m3 = m2;
    if (before > 0) m1 = (y[2] - y[1]) * c.stretch[1];
    if (after > 0) m3 = (y[4] - y[3]) * c.stretch[2];
    if (before == 0) m1 = m2 + (m2 - m3);
    if (after == 0) m3 = m2 + (m2 - m1);
    const Scalar m0 = before > 1 ? (y[1] - y[0]) * c.stretch[0] : m1 + (m1 - m2);
    const Scalar m4 = after > 1 ? (y[5] - y[4]) * c.stretch[3] : m3 + (m3 - m2);
    const Scalar bend_at_a = m2 - m1;
    const Scalar bend_at_b = m3 - m2;
    const Scalar left = -akima_part(absolute(bend_at_b), absolute(m1 - m0)) * bend_at_a;
    const Scalar right = akima_part(absolute(bend_at_a), absolute(m4 - m3)) * bend_at_b;
    return hermite_at(c, y[2], m2, left, right);
  }
};

}  // namespace robocache
