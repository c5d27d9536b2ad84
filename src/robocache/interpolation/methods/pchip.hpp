// A monotone piecewise cubic: it never overshoots its samples (scipy's PchipInterpolator).
#pragma once

#include "robocache/core/host_device.hpp"
#include "robocache/interpolation/curve.hpp"
#include "robocache/interpolation/number.hpp"

namespace robocache {

// The curve's slope at a sample is 0 at a turn, else the weighted harmonic mean of the slopes of both brackets beside
// it (Fritsch and Butland, 1984). Returns the curve's slope minus `inside`, the slope of the bracket that is computed;
// `outside` is the slope of the bracket on the sample's other side, and `share` the weight of `inside`.
template <class Scalar>
ROBOCACHE_HD Scalar pchip_bend(Scalar inside, Scalar outside, Scalar share) {
  const Scalar mean = multiply_add(share, inside - outside, outside);
  const Scalar ratio = quotient(outside, mean);
  const Scalar zero = outside * Scalar(0);  // keeps NaN
  // A selection instead of a branch lets the compiler vectorise over neighbouring features.
  const bool has_turn = ((inside < Scalar(0)) != (outside < Scalar(0))) | (absolute(mean) < smallest_normal<Scalar>());
  return multiply_add(inside, has_turn ? zero : ratio, -inside);
}

// Returns the slope at a row's end: the slope of the parabola through three samples, limited so that the curve does not
// turn.
template <class Scalar>
ROBOCACHE_HD Scalar pchip_end_slope(Scalar inside, Scalar next, Scalar share) {
  const Scalar slope = multiply_add(share, inside - next, inside);
  const Scalar zero = next * Scalar(0);  // keeps NaN
  if (inside == Scalar(0) || (slope < Scalar(0)) != (inside < Scalar(0))) return zero;
  const bool has_turn = next == Scalar(0) || (inside < Scalar(0)) != (next < Scalar(0));
  return has_turn && absolute(slope) > Scalar(3) * absolute(inside) ? Scalar(3) * inside : slope;
}

struct Pchip {
  static constexpr int kFeatures = 1;
  static constexpr int kReach = 1;
  static constexpr bool kWeighs = true;
  static constexpr bool kSlopes = false;

  template <class Scalar, class Wide>
  ROBOCACHE_HD static CurveWeights<Scalar> weights(const Spacing<Wide>& spacing) {
    const Wide one(1);
    const Wide earlier = stretch_before(spacing);
    const Wide later = stretch_after(spacing);
    const auto inner_share = [&](Wide r) { return (r + r + one) / (Wide(3) * (r + one)); };
    const auto end_share = [&](Wide r) { return r / (r + one); };
    CurveWeights<Scalar> c = hermite_weights<Scalar>(spacing.w);
    c.stretch[1] = static_cast<Scalar>(earlier);
    c.stretch[2] = static_cast<Scalar>(later);
    c.share_left = static_cast<Scalar>(spacing.before > 0 ? inner_share(earlier) : end_share(later));
    c.share_right = static_cast<Scalar>(spacing.after > 0 ? inner_share(later) : end_share(earlier));
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
