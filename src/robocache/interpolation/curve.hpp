// What the methods that look at the times around a bracket share: which samples there are, and the numbers that all
// features of a target share. Small functions of values and gaps for the CPU loops and the CUDA kernels, on any number type
// that has +, -, *, <, and the functions of number.hpp.
//
// With a, b the bracket's samples, h its length, w = (t - t_a) / h and every slope times h, so that it is a value:
//   y = a + w (b - a) + w (1-w)^2 (p - (b - a)) - w^2 (1-w) (q - (b - a))       p, q: the slopes at a and b
// This is the cubic Hermite form written around the straight line, so that only the deviation from the line is rounded.
// Outside the samples the curve continues by its end slope: a + w p, and b + (w - 1) q.
#pragma once

#include <cstdint>

#include "robocache/core/host_device.hpp"
#include "robocache/interpolation/number.hpp"
#include "robocache/interpolation/pick.hpp"

namespace robocache {

// The samples around a bracket; of several samples of one time it holds the last. rows[2] and rows[3] are the bracket.
// `before` of rows[1], rows[0] and `after` of rows[4], rows[5] exist, the nearer ones first. The others repeat a row that
// exists.
template <class Index>
struct Stencil {
  Index rows[6];
  uint8_t before;
  uint8_t after;
};

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
  Stencil<Index> stencil{{left, left, left, right, right, right}, 0, 0};
  for (int i = 1; i <= reach; ++i) {
    const Index row = row_of_time_before(times, stencil.rows[3 - i]);
    if (row < 0) break;
    stencil.rows[2 - i] = row;
    if (i == 1) stencil.rows[0] = row;
    stencil.before = static_cast<uint8_t>(i);
  }
  for (int i = 1; i <= reach; ++i) {
    const Index row = row_of_time_after(times, n, stencil.rows[2 + i]);
    if (row < 0) break;
    stencil.rows[3 + i] = row;
    if (i == 1) stencil.rows[5] = row;
    stencil.after = static_cast<uint8_t>(i);
  }
  return stencil;
}

// A target between (or beyond) the samples of its bracket, and how far apart the samples of its stencil are.
template <class Wide>
struct Spacing {
  Wide w;        // the bracket's weight
  Wide gaps[5];  // between the stencil's six rows; a method reads only those that exist
  Wide span;     // the row's last time less its first
  int before, after;
};

// For a stencil that was made with `reach`; the gaps beyond it are 0.
template <class Work, class Times, class Index>
ROBOCACHE_HD Spacing<double> spacing_around(const Times& times, Index n, const Stencil<Index>& stencil, int reach,
                                            Work w) {
  Spacing<double> spacing{};
  spacing.w = static_cast<double>(w);
  for (int i = 2 - reach; i <= 2 + reach; ++i) {
    spacing.gaps[i] = static_cast<double>(later_minus_earlier(times[stencil.rows[i + 1]], times[stencil.rows[i]]));
  }
  spacing.span = static_cast<double>(later_minus_earlier(times[n - 1], times[Index{0}]));
  spacing.before = stencil.before;
  spacing.after = stencil.after;
  return spacing;
}

// The numbers of a target that depend on the times alone, the same for every feature. A method fills and reads those that
// it needs; one that mixes two samples by the bracket's weight reads `along` alone.
template <class Scalar>
struct CurveWeights {
  Scalar along;        // the factor of b - a
  Scalar early, late;  // the factors of the slopes at a and at b, less b - a
  // The bracket's length over that of the gaps two before it, before, after and two after it: turns a difference into a
  // slope times h. For cubic [1] is the bracket's length over the row's span.
  Scalar stretch[4];
  Scalar share_left, share_right;  // pchip: the part of b - a in the weighted mean at a and at b
};

constexpr int kCurveWeights = 9;

template <class Scalar>
ROBOCACHE_HD CurveWeights<Scalar> weights_from_array(const Scalar (&x)[kCurveWeights]) {
  return {x[0], x[1], x[2], {x[3], x[4], x[5], x[6]}, x[7], x[8]};
}
template <class Scalar>
ROBOCACHE_HD void weights_to_array(const CurveWeights<Scalar>& c, Scalar (&x)[kCurveWeights]) {
  x[0] = c.along;
  x[1] = c.early;
  x[2] = c.late;
  for (int i = 0; i < 4; ++i) x[3 + i] = c.stretch[i];
  x[7] = c.share_left;
  x[8] = c.share_right;
}

// `along`, `early` and `late` of a Hermite curve; the others are 0. Wide is float64, or a number type over it.
template <class Scalar, class Wide>
ROBOCACHE_HD CurveWeights<Scalar> hermite_weights(Wide w) {
  CurveWeights<Scalar> c{};
  c.along = static_cast<Scalar>(w);
  const Wide rest = Wide(1) - w;
  c.early = static_cast<Scalar>(w < Wide(0) ? w : rest < Wide(0) ? Wide(0) : w * rest * rest);
  c.late = static_cast<Scalar>(w < Wide(0) ? Wide(0) : rest < Wide(0) ? -rest : -(w * w * rest));
  return c;
}

// The length of the bracket over that of the gap before it, and over that of the gap after it; 1 where there is none.
template <class Wide>
ROBOCACHE_HD Wide stretch_before(const Spacing<Wide>& at) {
  return at.before > 0 ? at.gaps[2] / at.gaps[1] : Wide(1);
}
template <class Wide>
ROBOCACHE_HD Wide stretch_after(const Spacing<Wide>& at) {
  return at.after > 0 ? at.gaps[2] / at.gaps[3] : Wide(1);
}

// `left` and `right`: the slopes at a and at b, less `step`, which is b - a.
template <class Scalar>
ROBOCACHE_HD Scalar hermite_at(const CurveWeights<Scalar>& c, Scalar a, Scalar step, Scalar left, Scalar right) {
  return multiply_add(c.along, step, multiply_add(c.early, left, multiply_add(c.late, right, a)));
}

}  // namespace robocache
