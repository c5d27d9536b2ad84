// A monotone piecewise cubic: it never overshoots its samples (scipy's PchipInterpolator).
#pragma once

#include "robocache/core/host_device.hpp"
#include "robocache/interpolation/curve.hpp"
#include "robocache/interpolation/number.hpp"

namespace robocache {

// The curve's slope at a sample is 0 at a turn, else the weighted harmonic mean of the slopes of both brackets beside
// it (Fritsch and Butland, 1984). Returns it minus `own`, the slope of one bracket; `other` is the slope of the other.
template <class Scalar>
ROBOCACHE_HD Scalar pchip_bend(Scalar own, Scalar other, Scalar share) {
  const Scalar mean = multiply_add(share, own - other, other);
  const Scalar ratio = quotient(other, mean);
  const Scalar none = other * Scalar(0);  // keeps NaN
  // A selection instead of a branch lets the compiler vectorise over neighbouring features.
  const bool turns = ((own < Scalar(0)) != (other < Scalar(0))) | (absolute(mean) < smallest_normal<Scalar>());
  return multiply_add(own, turns ? none : ratio, -own);
}

// Returns the slope at a row's end: the slope of the parabola through three samples, limited so that the curve does not
// turn.
template <class Scalar>
ROBOCACHE_HD Scalar pchip_end_slope(Scalar own, Scalar next, Scalar share) {
  const Scalar slope = multiply_add(share, own - next, own);
  const Scalar none = next * Scalar(0);  // keeps NaN
  if (own == Scalar(0) || (slope < Scalar(0)) != (own < Scalar(0))) return none;
  const bool turns = next == Scalar(0) || (own < Scalar(0)) != (next < Scalar(0));
  return turns && absolute(slope) > Scalar(3) * absolute(own) ? Scalar(3) * own : slope;
}

struct Pchip {
  static constexpr int kFeatures = 1;
  static constexpr int kReach = 1;
  static constexpr bool kWeighs = true;
  static constexpr bool kSlopes = false;

  template <class Scalar, class Wide>
  ROBOCACHE_HD static CurveWeights<Scalar> weights(const Spacing<Wide>& at) {
    const Wide one(1);
    const Wide earlier = stretch_before(at);
    const Wide later = stretch_after(at);
    const auto inner = [&](Wide r) { return (r + r + one) / (Wide(3) * (r + one)); };
    const auto end = [&](Wide r) { return r / (r + one); };
    CurveWeights<Scalar> c = hermite_weights<Scalar>(at.w);
    c.stretch[1] = static_cast<Scalar>(earlier);
    c.stretch[2] = static_cast<Scalar>(later);
    c.share_left = static_cast<Scalar>(at.before > 0 ? inner(earlier) : end(later));
    c.share_right = static_cast<Scalar>(at.after > 0 ? inner(later) : end(earlier));
    return c;
  }

  template <class Scalar>
  ROBOCACHE_HD static Scalar value(const CurveWeights<Scalar>& c, int before, int after, const Scalar (&y)[4]) {
    const Scalar step = y[2] - y[1];
    const Scalar earlier = (y[1] - y[0]) * c.stretch[1];
    const Scalar later = (y[3] - y[2]) * c.stretch[2];
    Scalar left(0);
    Scalar right(0);
    if (before > 0) {
      left = pchip_bend(step, earlier, c.share_left);
    } else if (after > 0) {
      left = pchip_end_slope(step, later, c.share_left) - step;
    }
    if (after > 0) {
      right = pchip_bend(step, later, c.share_right);
    } else if (before > 0) {
      right = pchip_end_slope(step, earlier, c.share_right) - step;
    }
    return hermite_at(c, y[1], step, left, right);
  }
};

}  // namespace robocache
