// pchip, akima and cubic between two samples, from the samples around them. Small functions of values and gaps that the
// CPU loop and the CUDA kernel share, on any number type that has +, -, *, <, and the functions of number.hpp.
//
// With a, b the bracket's samples, h its length, w = (t - t_a) / h and every slope times h, so that it is a value:
//   y = a + w (b - a) + w (1-w)^2 (p - (b - a)) - w^2 (1-w) (q - (b - a))       p, q: the slopes at a and b
// which is the cubic Hermite form written around the straight line: what is rounded is the deviation from it.
// Outside the samples the end slope goes straight on: a + w p, and b + (w - 1) q.
#pragma once

#include <cstdint>

#include "robocache/core/host_device.hpp"
#include "robocache/interpolation/method.hpp"
#include "robocache/interpolation/number.hpp"
#include "robocache/interpolation/pick.hpp"

namespace robocache {

// The samples around a bracket, those of one time taken as their last: rows[2] and rows[3] are the bracket, `before` of
// rows[0], rows[1] and `after` of rows[4], rows[5] exist, the nearer ones first. The others repeat a row that exists.
template <class Index>
struct Stencil {
  Index rows[6];
  uint8_t before;
  uint8_t after;
};

// How many samples beyond the bracket a method looks at on each side; cubic has its slopes from elsewhere.
ROBOCACHE_HD constexpr int stencil_reach(InterpolationMethod method) {
  switch (method) {
    case InterpolationMethod::kAkima:
      return 2;
    case InterpolationMethod::kPchip:
      return 1;
    case InterpolationMethod::kLinear:
    case InterpolationMethod::kNearest:
    case InterpolationMethod::kPrevious:
    case InterpolationMethod::kNext:
    case InterpolationMethod::kCubic:
    case InterpolationMethod::kAngle:
    case InterpolationMethod::kSlerp:
    case InterpolationMethod::kPose:
      return 0;
  }
  __builtin_unreachable();
}

// The last row before `row` of another time, or -1. Ascending times.
template <class Times, class Index>
ROBOCACHE_HD Index row_of_time_before(const Times& times, Index row) {
  if (row == 0 || !(times[row - 1] == times[row])) return row - 1;
  Index same = row - 1;
  Index step = 1;
  while (same - step >= 0 && times[same - step] == times[row]) {
    same -= step;
    step *= 2;
  }
  Index other = same - step >= 0 ? same - step : -1;
  while (same - other > 1) {
    const Index middle = other + (same - other) / 2;
    if (times[middle] == times[row]) {
      same = middle;
    } else {
      other = middle;
    }
  }
  return other;
}

// The last row of the next time after `row`, or -1.
template <class Times, class Index>
ROBOCACHE_HD Index row_of_time_after(const Times& times, Index n, Index row) {
  if (row + 1 >= n) return -1;
  if (row + 2 >= n || !(times[row + 2] == times[row + 1])) return row + 1;
  const Index last = last_at_or_before(times, n, times[row + 1], row + 1);
  return last > row ? last : -1;  // NaN is at or before nothing
}

template <class Times, class Index>
ROBOCACHE_HD Stencil<Index> stencil_around(const Times& times, Index n, Index left, Index right, int reach) {
  Stencil<Index> made{{left, left, left, right, right, right}, 0, 0};
  for (int i = 1; i <= reach; ++i) {
    const Index row = row_of_time_before(times, made.rows[3 - i]);
    if (row < 0) break;
    made.rows[2 - i] = row;
    if (i == 1) made.rows[0] = row;
    made.before = static_cast<uint8_t>(i);
  }
  for (int i = 1; i <= reach; ++i) {
    const Index row = row_of_time_after(times, n, made.rows[2 + i]);
    if (row < 0) break;
    made.rows[3 + i] = row;
    if (i == 1) made.rows[5] = row;
    made.after = static_cast<uint8_t>(i);
  }
  return made;
}

// What a target needs of the times, the same for every feature.
template <class Scalar>
struct CurveWeights {
  Scalar along;        // of b - a
  Scalar early, late;  // of the slopes at a and at b, less b - a
  // The bracket's length over that of the gaps two before it, before, after and two after it: turns a difference into a
  // slope times h. For cubic [1] is the bracket's length over the row's span.
  Scalar stretch[4];
  Scalar share_left, share_right;  // pchip: the part of b - a in the weighted mean at a and at b
};

// `gaps` are those between the stencil's six rows; only the ones that exist are read, for cubic gaps[2] and `span`, the
// row's last time less its first. Wide is float64, or a number type over it.
template <class Scalar, class Wide>
ROBOCACHE_HD CurveWeights<Scalar> curve_weights(InterpolationMethod method, Wide w, const Wide (&gaps)[5], Wide span,
                                                int before, int after) {
  CurveWeights<Scalar> made{};
  made.along = static_cast<Scalar>(w);
  const Wide rest = Wide(1) - w;
  made.early = static_cast<Scalar>(w < Wide(0) ? w : rest < Wide(0) ? Wide(0) : w * rest * rest);
  made.late = static_cast<Scalar>(w < Wide(0) ? Wide(0) : rest < Wide(0) ? -rest : -(w * w * rest));
  const Wide one(1);
  const Wide earlier = before > 0 ? gaps[2] / gaps[1] : one;
  const Wide later = after > 0 ? gaps[2] / gaps[3] : one;
  switch (method) {
    case InterpolationMethod::kCubic:
      made.stretch[1] = static_cast<Scalar>(gaps[2] / span);
      return made;
    case InterpolationMethod::kAkima:
      made.stretch[0] = static_cast<Scalar>(before > 1 ? gaps[2] / gaps[0] : one);
      made.stretch[1] = static_cast<Scalar>(earlier);
      made.stretch[2] = static_cast<Scalar>(later);
      made.stretch[3] = static_cast<Scalar>(after > 1 ? gaps[2] / gaps[4] : one);
      return made;
    case InterpolationMethod::kPchip: {
      const auto inner = [&](Wide r) { return (r + r + one) / (Wide(3) * (r + one)); };
      const auto end = [&](Wide r) { return r / (r + one); };
      made.stretch[1] = static_cast<Scalar>(earlier);
      made.stretch[2] = static_cast<Scalar>(later);
      made.share_left = static_cast<Scalar>(before > 0 ? inner(earlier) : end(later));
      made.share_right = static_cast<Scalar>(after > 0 ? inner(later) : end(earlier));
      return made;
    }
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

// The weights of a target that takes the mixture `w` of the stencil's bracket.
template <class Work, class Times, class Index>
ROBOCACHE_HD CurveWeights<Work> weights_around(InterpolationMethod method, const Times& times, Index n,
                                               const Stencil<Index>& stencil, Work w) {
  double gaps[5];
  for (int i = 0; i < 5; ++i) {
    gaps[i] = static_cast<double>(later_minus_earlier(times[stencil.rows[i + 1]], times[stencil.rows[i]]));
  }
  const auto span = static_cast<double>(later_minus_earlier(times[n - 1], times[Index{0}]));
  return curve_weights<Work>(method, static_cast<double>(w), gaps, span, stencil.before, stencil.after);
}

// pchip's slope between two differences, less the bracket's own: 0 at a turn, else their weighted harmonic mean (Fritsch
// and Butland, 1984).
template <class Scalar>
ROBOCACHE_HD Scalar pchip_bend(Scalar own, Scalar other, Scalar share) {
  const Scalar mean = multiply_add(share, own - other, other);
  const Scalar ratio = quotient(other, mean);
  const Scalar none = other * Scalar(0);  // a NaN stays one
  // Chosen, not branched to, so that neighbouring features go side by side.
  const bool turns = ((own < Scalar(0)) != (other < Scalar(0))) | (absolute(mean) < smallest_normal<Scalar>());
  return multiply_add(own, turns ? none : ratio, -own);
}

// pchip's slope at a row's end: that of the parabola through three samples, kept from turning.
template <class Scalar>
ROBOCACHE_HD Scalar pchip_end_slope(Scalar own, Scalar next, Scalar share) {
  const Scalar slope = multiply_add(share, own - next, own);
  const Scalar none = next * Scalar(0);  // a NaN stays one
  if (own == Scalar(0) || (slope < Scalar(0)) != (own < Scalar(0))) return none;
  const bool turns = next == Scalar(0) || (own < Scalar(0)) != (next < Scalar(0));
  return turns && absolute(slope) > Scalar(3) * absolute(own) ? Scalar(3) * own : slope;
}

// Akima's part of the step between two differences, of which the weights are how much their neighbours differ.
template <class Scalar>
ROBOCACHE_HD Scalar akima_part(Scalar of, Scalar other) {
  const Scalar sum = of + other;
  return sum < smallest_normal<Scalar>() ? Scalar(0.5) : quotient(of, sum);
}

template <class Scalar>
ROBOCACHE_HD Scalar curve_at(const CurveWeights<Scalar>& c, Scalar a, Scalar step, Scalar left, Scalar right) {
  return multiply_add(c.along, step, multiply_add(c.early, left, multiply_add(c.late, right, a)));
}

// y1..y4: rows 1 to 4 of the stencil.
template <class Scalar>
ROBOCACHE_HD Scalar pchip_at(const CurveWeights<Scalar>& c, int before, int after, Scalar y1, Scalar y2, Scalar y3,
                             Scalar y4) {
  const Scalar step = y3 - y2;
  const Scalar earlier = (y2 - y1) * c.stretch[1];
  const Scalar later = (y4 - y3) * c.stretch[2];
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
  return curve_at(c, y2, step, left, right);
}

// y0..y5: the stencil's rows. Beyond the row's ends differences go on as scipy lets them: 2 m[i] - m[i - 1].
template <class Scalar>
ROBOCACHE_HD Scalar akima_at(const CurveWeights<Scalar>& c, int before, int after, Scalar y0, Scalar y1, Scalar y2,
                             Scalar y3, Scalar y4, Scalar y5) {
  const Scalar m2 = y3 - y2;
  Scalar m1 = m2;
  Scalar m3 = m2;
  if (before > 0) m1 = (y2 - y1) * c.stretch[1];
  if (after > 0) m3 = (y4 - y3) * c.stretch[2];
  if (before == 0) m1 = m2 + (m2 - m3);
  if (after == 0) m3 = m2 + (m2 - m1);
  const Scalar m0 = before > 1 ? (y1 - y0) * c.stretch[0] : m1 + (m1 - m2);
  const Scalar m4 = after > 1 ? (y5 - y4) * c.stretch[3] : m3 + (m3 - m2);
  const Scalar into = m2 - m1;
  const Scalar out_of = m3 - m2;
  const Scalar left = -akima_part(absolute(out_of), absolute(m1 - m0)) * into;
  const Scalar right = akima_part(absolute(into), absolute(m4 - m3)) * out_of;
  return curve_at(c, y2, m2, left, right);
}

// The slopes of the spline at a and b, per span of the row.
template <class Scalar>
ROBOCACHE_HD Scalar cubic_at(const CurveWeights<Scalar>& c, Scalar a, Scalar b, Scalar slope_a, Scalar slope_b) {
  const Scalar step = b - a;
  return curve_at(c, a, step, multiply_add(slope_a, c.stretch[1], -step), multiply_add(slope_b, c.stretch[1], -step));
}

}  // namespace robocache
