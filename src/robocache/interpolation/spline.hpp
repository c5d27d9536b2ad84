// The C2 spline through all samples of a row: its slope at each of them, which curve.hpp's cubic_at starts from.
//
// A row's samples are those of distinct times (of one time the last), in units of the row's span: slopes are value per
// span. They solve a tridiagonal system, in float64 whatever the work type, that depends on the times alone but for its
// right side: spline_table makes the factors of a row, spline_sweep goes down and up one or more features with them. A NaN
// reaches every slope of its feature. Two samples give a straight line, three a parabola, unless natural.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "robocache/core/device.hpp"
#include "robocache/core/host_device.hpp"
#include "robocache/core/tensor_view.hpp"
#include "robocache/interpolation/method.hpp"
#include "robocache/interpolation/number.hpp"
#include "robocache/interpolation/pick.hpp"
#include "robocache/interpolation/segment.hpp"

namespace robocache {

// Bytes of memory that a cubic segment's slopes take while they are made and used, a multiple of 16. 0 where it never
// mixes (causal).
int64_t spline_workspace_bytes(const Segment& s, int64_t batch);

// Makes the slopes of the cubic segments in `workspace` (contiguous, 16-byte aligned, on `device`, alive until the segments
// have been interpolated) and points their `slopes` at them. On CUDA queued on `stream`, as two kernels a segment. Throws
// ArgumentError where it is missing or too small, DeviceError.
void make_splines(std::span<Segment> segments, int64_t batch, const std::optional<TensorView>& workspace, Device device,
                  CudaStream stream);

// A sample that counts: slope = before * (y - y_previous) + after * (y_next - y) - carry * (slope so far of the previous),
// and on the way back, less back * slope of the next. At the row's ends `before` and `after` take the two differences
// nearest to that end, and `back` (first) or `carry` (last) the neighbour's slope.
struct SplineRow {
  double before, after, carry, back;
  int64_t row;  // in the row of samples; the last is the row's last
};

// What both launches of CUDA take, plain C.
struct SplineCall {
  Segment segment;
  int64_t batch;
  SplineRow* table;  // [batch, samples]
  void* slopes;
};

// What the equation of one sample makes of the table: a and b are the gaps before and after it, `back` that of the sample
// before. The first equation fills the first sample's entries too, the last the last one's.
template <class Scalar>
struct SplineStep {
  Scalar before, after, carry, back;
  Scalar first_before, first_after, first_back;
  Scalar last_before, last_after, last_carry;
};

ROBOCACHE_HD constexpr bool is_natural(Boundary boundary) {
  switch (boundary) {
    case Boundary::kNotAKnot:
      return false;
    case Boundary::kNatural:
      return true;
  }
  __builtin_unreachable();
}

// The interior equations are lower * s[i-1] + diagonal * s[i] + upper * s[i+1] = p * m[i-1] + q * m[i]; the ends' slopes
// have been eliminated by what `boundary` says of them. Scalar is float64, or a number type over it.
template <class Scalar>
ROBOCACHE_HD SplineStep<Scalar> spline_step(Scalar a, Scalar b, Scalar back, bool starts, bool ends,
                                            Boundary boundary) {
  const bool natural = is_natural(boundary);
  const Scalar none(0);
  const Scalar half(0.5);
  const Scalar two(2);
  const Scalar both = a + b;
  Scalar lower = half * b / both;
  Scalar upper = half * a / both;
  Scalar diagonal(1);
  Scalar p = Scalar(1.5) * b / both;
  Scalar q = Scalar(1.5) * a / both;
  SplineStep<Scalar> made{none, none, none, none, none, none, none, none, none, none};
  if (starts && ends && !natural) {
    lower = upper = none;
    p = b / both;
    q = a / both;
    made.first_before = two / a;
    made.first_back = Scalar(1);
    made.last_after = two / b;
    made.last_carry = Scalar(1);
  } else {
    if (starts) {
      if (natural) {
        diagonal = diagonal - half * lower;
        p = p * half;
        made.first_before = Scalar(1.5) / a;
        made.first_back = half;
      } else {
        upper = a / both;
        p = b * b / (both * both);
        q = a * (two * both + b) / (both * both);
        made.first_before = (a + two * both) / (both * a);
        made.first_after = a * a / (both * b) / b;
        made.first_back = both / b;
      }
      lower = none;
    }
    if (ends) {
      if (natural) {
        diagonal = diagonal - half * upper;
        q = q * half;
        made.last_after = Scalar(1.5) / b;
        made.last_carry = half;
      } else {
        lower = b / both;
        q = a * a / (both * both);
        p = b * (two * both + a) / (both * both);
        made.last_before = b * b / (both * a) / a;
        made.last_after = (b + two * both) / (both * b);
        made.last_carry = both / a;
      }
      upper = none;
    }
  }
  const Scalar pivot = Scalar(1) / (diagonal - lower * back);
  made.back = upper * pivot;
  made.before = p * pivot / a;
  made.after = q * pivot / b;
  made.carry = lower * pivot;
  return made;
}

// n >= 1 samples; fills the first entries of `table`.
template <class Times, class Clock>
ROBOCACHE_HD void spline_table(const Times& times, int64_t n, Clock /*clock*/, Boundary boundary, SplineRow* table) {
  const auto row_after = [&](int64_t row) {
    ++row;
    while (row + 1 < n && times[row + 1] == times[row]) ++row;
    return row;
  };
  const auto span = static_cast<double>(later_minus_earlier(times[n - 1], times[int64_t{0}]));
  const auto gap = [&](int64_t from, int64_t to) {
    return static_cast<double>(later_minus_earlier(times[to], times[from])) / span;
  };
  const int64_t first = row_after(-1);
  table[0] = {0, 0, 0, 0, first};
  if (first >= n - 1) return;
  int64_t row = row_after(first);
  double a = gap(first, row);  // the gap before `row`
  if (row >= n - 1) {
    table[0].before = 1 / a;
    table[1] = {1 / a, 0, 0, 0, n - 1};
    return;
  }
  double back = 0;
  for (int64_t e = 1;; ++e) {
    const int64_t next = row_after(row);
    const double b = gap(row, next);
    const bool starts = e == 1;
    const bool ends = next >= n - 1;
    const SplineStep<double> step = spline_step(a, b, back, starts, ends, boundary);
    if (starts) table[0] = {step.first_before, step.first_after, 0, step.first_back, first};
    if (ends) table[e + 1] = {step.last_before, step.last_after, step.last_carry, 0, next};
    table[e] = {step.before, step.after, step.carry, step.back, row};
    if (ends) return;
    back = step.back;
    row = next;
    a = b;
  }
}

// The slopes of kLanes neighbouring features. `slopes` has one for each sample, of which those that do not count stay
// unwritten. What the next kAhead samples need is fetched at once: a sample waits for the one before it, but not for
// memory.
template <int kLanes, int kAhead, class T, class Work>
ROBOCACHE_HD void spline_sweep(const SplineRow* table, int64_t n, const T* values, int64_t values_sample,
                               int64_t values_feature, Work* slopes, int64_t slopes_sample) {
  const auto load = [&](int64_t row, double(&y)[kLanes]) {
    const T* const at = values + row * values_sample;
    for (int lane = 0; lane < kLanes; ++lane) y[lane] = to_work<double>(at[lane * values_feature]);
  };
  const SplineRow first = table[0];
  if (first.row >= n - 1) return;
  Work* const at_first = slopes + first.row * slopes_sample;
  double before[kLanes];  // the step before the sample, and below after it
  double here[kLanes];
  double slope[kLanes];
  load(first.row, before);
  load(table[1].row, here);
  for (int lane = 0; lane < kLanes; ++lane) {
    before[lane] = here[lane] - before[lane];
    slope[lane] = 0;
  }
  if (table[1].row >= n - 1) {
    Work* const at_last = slopes + table[1].row * slopes_sample;
    for (int lane = 0; lane < kLanes; ++lane) {
      at_last[lane] = at_first[lane] = static_cast<Work>(first.before * before[lane]);
    }
    return;
  }
  int64_t interior = 0;  // samples between the first and the last
  for (bool ends = false; !ends;) {
    SplineRow rows[kAhead + 1];
    double ahead[kAhead][kLanes];
    for (int k = 0; k <= kAhead; ++k) {
      const int64_t at = interior + 1 + k;
      rows[k] = table[at < n ? at : n - 1];
    }
    for (int k = 1; k <= kAhead; ++k) {
      if (rows[k - 1].row >= n - 1) rows[k] = rows[k - 1];  // past the last nothing is written in the table
    }
    for (int k = 0; k < kAhead; ++k) load(rows[k + 1].row, ahead[k]);
    for (int k = 0; k < kAhead && !ends; ++k) {
      const SplineRow& last = rows[k + 1];
      ends = last.row >= n - 1;
      Work* const at = slopes + rows[k].row * slopes_sample;
      Work* const at_last = slopes + last.row * slopes_sample;
      double after[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) after[lane] = ahead[k][lane] - here[lane];
      for (int lane = 0; lane < kLanes && interior == 0; ++lane) {
        at_first[lane] = static_cast<Work>(first.before * before[lane] + first.after * after[lane]);
      }
      for (int lane = 0; lane < kLanes; ++lane) {
        slope[lane] = rows[k].before * before[lane] + rows[k].after * after[lane] - rows[k].carry * slope[lane];
        at[lane] = static_cast<Work>(slope[lane]);
      }
      for (int lane = 0; lane < kLanes && ends; ++lane) {
        at_last[lane] =
            static_cast<Work>(last.before * before[lane] + last.after * after[lane] - last.carry * slope[lane]);
      }
      for (int lane = 0; lane < kLanes; ++lane) {
        before[lane] = after[lane];
        here[lane] = ahead[k][lane];
      }
      ++interior;
    }
  }
  for (int64_t e = interior - 1; e >= 0; e -= kAhead) {
    SplineRow rows[kAhead];
    double behind[kAhead][kLanes];
    for (int k = 0; k < kAhead; ++k) rows[k] = table[e - k > 0 ? e - k : 0];
    for (int k = 0; k < kAhead; ++k) {
      const Work* const at = slopes + rows[k].row * slopes_sample;
      for (int lane = 0; lane < kLanes; ++lane) behind[k][lane] = static_cast<double>(at[lane]);
    }
    for (int k = 0; k < kAhead; ++k) {
      if (e - k < 0) break;
      Work* const at = slopes + rows[k].row * slopes_sample;
      for (int lane = 0; lane < kLanes; ++lane) {
        slope[lane] = behind[k][lane] - rows[k].back * slope[lane];
        at[lane] = static_cast<Work>(slope[lane]);
      }
    }
  }
}

}  // namespace robocache
