// Functions for methods that use the times around a bracket: they find the samples around it, and the weights that all
// features of a target share. The CPU loops and the CUDA kernels call them, with any number type that has +, -, *, <
// and the functions of number.hpp.
//
// With a, b the bracket's samples, h its length, w = (t - t_a) / h and every slope multiplied by h, so that it has the
// unit of a value:
//   y = a + w (b - a) + w (1-w)^2 (p - (b - a)) - w^2 (1-w) (q - (b - a))       p, q: the slopes at a and b
// This is the cubic Hermite form written around the straight line, so that only the deviation from the line is rounded.
// Outside the samples the curve continues by its end slope: a + w p, and b + (w - 1) q.
#pragma once

#include <cstdint>

#include "robocache/core/host_device.hpp"
#include "robocache/interpolation/number.hpp"
#include "robocache/interpolation/pick.hpp"

namespace robocache {

// The samples around a bracket, which is rows[2] and rows[3]. If several samples have one time, only the last is used.
// `before` samples exist before the bracket: rows[1], then rows[0]. `after` samples exist after it: rows[4], then
// rows[5]. The other entries repeat a row that exists.
template <class Index>
struct Stencil {
  Index rows[6];
  uint8_t before;
  uint8_t after;
};

// Returns the last row with an earlier time than `row`, or -1. Times must ascend.
template <class Times, class Index>
ROBOCACHE_HD Index row_of_time_before(const Times& times, Index row) {
  if (row == 0 || !(times[row - 1] == times[row])) return row - 1;
  Index same = row - 1;
  Index step = 1;
  while (same - step >= 0 && times[same - step] == times[row]) {
    same -= step;
    step *= 2;
  }
  Index earlier = same - step >= 0 ? same - step : -1;
  while (same - earlier > 1) {
    const Index middle = earlier + (same - earlier) / 2;
    if (times[middle] == times[row]) {
      same = middle;
    } else {
      earlier = middle;
    }
  }
  return earlier;
}

// Returns the last row with the next time after `row`, or -1.
template <class Times, class Index>
ROBOCACHE_HD Index row_of_time_after(const Times& times, Index n, Index row) {
  if (row + 1 >= n) return -1;
  if (row + 2 >= n || !(times[row + 2] == times[row + 1])) return row + 1;
  const Index last = last_at_or_before(times, n, times[row + 1], row + 1);
  return last > row ? last : -1;  // NaN is at or before no number
}

// Returns the stencil of a bracket, with up to `reach` samples on each side.
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

// The weight of a target in its bracket, and the gaps between the samples of its stencil.
template <class Wide>
struct Spacing {
  Wide w;        // the bracket's weight
  Wide gaps[5];  // between the stencil's six rows; a method reads only those that exist
  Wide span;     // the last time of the whole clock minus its first
  int before, after;
};

// Returns the spacing of a stencil with this reach; the gaps outside the reach are 0.
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

// The numbers of a target that depend only on the times, the same for every feature. A method fills and reads the
// numbers that it needs. A method without kWeighs reads only `along`.
template <class Scalar>
struct CurveWeights {
  Scalar along;        // the factor of b - a
  Scalar early, late;  // the factors of (slope - (b - a)) at a and at b
  // The bracket's length h divided by each of the gaps around it: two before, one before, one after, two after.
  // Multiplied by a difference of samples, each gives a slope times h. For cubic, stretch[1] is h / Spacing::span.
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

// Returns `along`, `early` and `late` of a Hermite curve; the others are 0. Wide is double or a dual number of it.
template <class Scalar, class Wide>
ROBOCACHE_HD CurveWeights<Scalar> hermite_weights(Wide w) {
  CurveWeights<Scalar> c{};
  c.along = static_cast<Scalar>(w);
  const Wide rest = Wide(1) - w;
  // Outside the samples (w < 0, or rest < 0) only the slope at the near end has a weight.
  c.early = static_cast<Scalar>(w < Wide(0) ? w : rest < Wide(0) ? Wide(0) : w * rest * rest);
  c.late = static_cast<Scalar>(w < Wide(0) ? Wide(0) : rest < Wide(0) ? -rest : -(w * w * rest));
  return c;
}

// Returns the bracket's length divided by the gap before it; 1 without such a gap. stretch_after is the same for the
// gap after it.
template <class Wide>
ROBOCACHE_HD Wide stretch_before(const Spacing<Wide>& spacing) {
  return spacing.before > 0 ? spacing.gaps[2] / spacing.gaps[1] : Wide(1);
}
template <class Wide>
ROBOCACHE_HD Wide stretch_after(const Spacing<Wide>& spacing) {
  return spacing.after > 0 ? spacing.gaps[2] / spacing.gaps[3] : Wide(1);
}

// Returns the Hermite curve. step = b - a; `left` and `right` are the slopes at a and b, minus step.
template <class Scalar>
ROBOCACHE_HD Scalar hermite_at(const CurveWeights<Scalar>& c, Scalar a, Scalar step, Scalar left, Scalar right) {
  return multiply_add(c.along, step, multiply_add(c.early, left, multiply_add(c.late, right, a)));
}

}  // namespace robocache
