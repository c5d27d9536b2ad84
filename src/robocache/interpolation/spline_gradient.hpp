// The gradient of a C2 spline's slopes: the sweep and the table of spline.hpp in reverse. The CPU loop and the CUDA
// kernels share this code, in float64.
//
// The gradient of one feature's slopes passes back through the sweep to the feature's values and to the table, which
// all features share. The table's gradient, summed over the features, then passes back to the times, once per row.
#pragma once

#include <cstdint>

#include "robocache/core/host_device.hpp"
#include "robocache/interpolation/dual.hpp"
#include "robocache/interpolation/gradient.hpp"
#include "robocache/interpolation/spline.hpp"

namespace robocache {

// The gradient with respect to a SplineRow.
struct SplineRowGradient {
  double before, after, carry, back;
};

// Handles kLanes neighbouring features. The slopes, and `slopes_gradient`, the gradient with respect to them, have an
// entry for each sample of the row. `slopes_gradient` is overwritten. values(row, lane) returns a sample.
// add_value(row, lane, x) and add_table(e, SplineRowGradient), which covers all lanes, receive the results.
template <int kLanes, class Values, class AddValue, class AddTable>
ROBOCACHE_HD void spline_sweep_backward(const SplineRow* table, int64_t n, const Values& values, const double* slopes,
                                        double* slopes_gradient, int64_t stride, const AddValue& add_value,
                                        const AddTable& add_table) {
  if (table[0].row >= n - 1) return;
  const auto slope = [&](int64_t e, int lane) { return slopes[table[e].row * stride + lane]; };
  const auto slope_gradient = [&](int64_t e, int lane) -> double& {
    return slopes_gradient[table[e].row * stride + lane];
  };
  const auto difference_after = [&](int64_t e, int lane) {
    return values(table[e + 1].row, lane) - values(table[e].row, lane);
  };
  // x is the gradient with respect to difference_after(e).
  const auto add_difference = [&](int64_t e, int lane, double x) {
    add_value(table[e].row, lane, -x);
    add_value(table[e + 1].row, lane, x);
  };
  if (table[1].row >= n - 1) {  // a straight line: both slopes are difference * before, and before is 1 for any times
    for (int lane = 0; lane < kLanes; ++lane) {
      add_difference(0, lane, table[0].before * (slope_gradient(0, lane) + slope_gradient(1, lane)));
    }
    return;
  }
  int64_t last = 2;
  while (table[last].row < n - 1) ++last;
  SplineRowGradient sum{0, 0, 0, 0};
  for (int lane = 0; lane < kLanes; ++lane) {
    const double x = slope_gradient(last, lane);
    add_difference(last - 2, lane, table[last].before * x);
    add_difference(last - 1, lane, table[last].after * x);
    sum.before += share_of(difference_after(last - 2, lane), x);
    sum.after += share_of(difference_after(last - 1, lane), x);
    sum.carry -= share_of(slope(last - 1, lane), x);
    slope_gradient(last - 1, lane) -= table[last].carry * x;
  }
  add_table(last, sum);
  for (int64_t e = 0; e <= last - 2; ++e) {  // the sweep up, reversed
    sum = {0, 0, 0, 0};
    for (int lane = 0; lane < kLanes; ++lane) {
      const double x = slope_gradient(e, lane);
      sum.back -= share_of(slope(e + 1, lane), x);
      slope_gradient(e + 1, lane) -= table[e].back * x;
    }
    add_table(e, sum);
  }
  for (int64_t e = last - 1; e >= 1; --e) {  // the sweep down, reversed
    sum = {0, 0, 0, 0};
    for (int lane = 0; lane < kLanes; ++lane) {
      const double x = slope_gradient(e, lane);
      add_difference(e - 1, lane, table[e].before * x);
      add_difference(e, lane, table[e].after * x);
      sum.before += share_of(difference_after(e - 1, lane), x);
      sum.after += share_of(difference_after(e, lane), x);
      if (e == 1) continue;
      // The previous sample's slope before the sweep down changed it.
      const double carried = slope(e - 1, lane) + table[e - 1].back * slope(e, lane);
      sum.carry -= share_of(carried, x);
      slope_gradient(e - 1, lane) -= table[e].carry * x;
    }
    add_table(e, sum);
  }
  sum = {0, 0, 0, 0};
  for (int lane = 0; lane < kLanes; ++lane) {
    const double x = slope_gradient(0, lane);
    add_difference(0, lane, table[0].before * x);
    add_difference(1, lane, table[0].after * x);
    sum.before += share_of(difference_after(0, lane), x);
    sum.after += share_of(difference_after(1, lane), x);
  }
  add_table(0, sum);
}

// Handles one row. `table_gradient` holds the table's gradient, summed over the features, and is overwritten.
// add_time(row, x) receives the results.
template <class Times, class AddTime>
ROBOCACHE_HD void spline_table_backward(const Times& times, int64_t n, Boundary boundary, const SplineRow* table,
                                        SplineRowGradient* table_gradient, const AddTime& add_time) {
  if (table[0].row >= n - 1 || table[1].row >= n - 1) return;  // two samples or fewer: nothing depends on the times
  using Number = Dual<3>;
  const auto span = static_cast<double>(later_minus_earlier(times[n - 1], times[int64_t{0}]));
  const auto gap = [&](int64_t e) {
    return static_cast<double>(later_minus_earlier(times[table[e + 1].row], times[table[e].row])) / span;
  };
  int64_t last = 2;
  while (table[last].row < n - 1) ++last;
  double span_gradient = 0;
  // x is the gradient with respect to gap(e).
  const auto add_gap = [&](int64_t e, double x) {
    add_time(table[e].row, -x / span);
    add_time(table[e + 1].row, x / span);
    span_gradient -= x * gap(e) / span;
  };
  for (int64_t e = last - 1; e >= 1; --e) {
    const bool is_first = e == 1;
    const bool is_last = e == last - 1;
    const SplineStep<Number> result =
        spline_step(Number::variable(gap(e - 1), 0), Number::variable(gap(e), 1),
                    Number::variable(is_first ? 0 : table[e - 1].back, 2), is_first, is_last, boundary);
    double gradients[3];
    for (int i = 0; i < 3; ++i) {
      gradients[i] =
          result.before.partial[i] * table_gradient[e].before + result.after.partial[i] * table_gradient[e].after +
          result.carry.partial[i] * table_gradient[e].carry + result.back.partial[i] * table_gradient[e].back;
      if (is_first) {
        gradients[i] += result.first_before.partial[i] * table_gradient[0].before +
                        result.first_after.partial[i] * table_gradient[0].after +
                        result.first_back.partial[i] * table_gradient[0].back;
      }
      if (is_last) {
        gradients[i] += result.last_before.partial[i] * table_gradient[last].before +
                        result.last_after.partial[i] * table_gradient[last].after +
                        result.last_carry.partial[i] * table_gradient[last].carry;
      }
    }
    add_gap(e - 1, gradients[0]);
    add_gap(e, gradients[1]);
    if (!is_first) table_gradient[e - 1].back += gradients[2];
  }
  add_time(table[0].row, -span_gradient);
  add_time(n - 1, span_gradient);
}

}  // namespace robocache
