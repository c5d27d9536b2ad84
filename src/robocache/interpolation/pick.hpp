// Chooses the samples that a target uses, and their weights. The CPU loop, the CUDA kernels and the Loader's windows
// share this.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "robocache/core/host_device.hpp"
#include "robocache/core/time.hpp"
#include "robocache/interpolation/method.hpp"
#include "robocache/interpolation/number.hpp"

namespace robocache {

// The type of a clock's differences: the clock's own type, or for int64 the magnitude as uint64, which cannot overflow.
template <class Clock>
using ClockDifference = std::conditional_t<std::is_same_v<Clock, int64_t>, uint64_t, Clock>;

template <class Clock>
ROBOCACHE_HD ClockDifference<Clock> later_minus_earlier(Clock later, Clock earlier) {
  if constexpr (std::is_same_v<Clock, int64_t>) {
    return ns_between(later, earlier);
  } else {
    return later - earlier;
  }
}

template <class Clock, class Work>
ROBOCACHE_HD Work weight_of(ClockDifference<Clock> from_left, ClockDifference<Clock> gap) {
  using Wide = std::conditional_t<std::is_same_v<Clock, float> && std::is_same_v<Work, float>, float, double>;
  return static_cast<Work>(static_cast<Wide>(from_left) / static_cast<Wide>(gap));
}

// A row's clock.
template <class Clock>
struct ClockRow {
  const Clock* data;
  int64_t stride;

  ROBOCACHE_HD Clock operator[](int64_t i) const { return data[i * stride]; }
};

// Returns the last i in [0, n) with times[i] <= t, or -1. Times ascend. The search starts at `hint`, which does not
// change the result.
template <class Times, class Clock, class Index>
ROBOCACHE_HD Index last_at_or_before(const Times& times, Index n, Clock t, Index hint) {
  Index low = hint < 0 ? 0 : (hint < n ? hint : n - 1);
  Index high;
  Index step = 1;
  if (times[low] <= t) {
    while (step < n - low && times[low + step] <= t) {
      low += step;
      step *= 2;
    }
    high = step < n - low ? low + step : n;
  } else {
    high = low;
    while (high - step >= 0 && !(times[high - step] <= t)) {
      high -= step;
      step *= 2;
    }
    low = high - step >= 0 ? high - step : -1;
  }
  while (high - low > 1) {
    const Index middle = low + (high - low) / 2;
    if (times[middle] <= t) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// A target uses one sample, a mixture of two, or none.
enum class PickKind : uint8_t { kAbsent, kOne, kMix };

template <class Work, class Index = int64_t>
struct Pick {
  Index left;
  Index right;
  Work weight;  // weight of `right`
  PickKind kind;
  bool valid;
};

// The caller's options, in a clock's type.
template <class Clock>
struct PickRule {
  ClockDifference<Clock> max_gap;
  ClockDifference<Clock> tolerance;
  bool has_max_gap;
  bool has_tolerance;
  InterpolationMethod method;
  Extrapolate extrapolate;
  bool causal;
};

template <class Work, class Index>
ROBOCACHE_HD Pick<Work, Index> pick_one(Index row, bool valid) {
  return {row, row, Work(0), PickKind::kOne, valid};
}

// Returns the samples that a target uses. `before` is the last sample at or before the target, or -1. The row has n >=
// 1 samples, and the target is not NaN.
template <class Work, class Clock, class Times, class Index>
ROBOCACHE_HD Pick<Work, Index> pick_from(const Times& times, Index n, Clock target, const PickRule<Clock>& rule,
                                         Index before) {
  const Pick<Work, Index> absent{0, 0, Work(0), PickKind::kAbsent, false};
  if (before >= 0 && times[before] == target) return pick_one<Work>(before, true);

  const auto padding = [&](Index row) {
    return rule.extrapolate == Extrapolate::kNan ? absent : pick_one<Work>(row, false);
  };

  if (rule.causal) {
    if (before < 0) return absent;
    const auto age = later_minus_earlier(target, times[before]);
    const bool is_too_old = (rule.has_max_gap && age > rule.max_gap) || (rule.has_tolerance && age > rule.tolerance);
    return is_too_old || before == n - 1 ? padding(before) : pick_one<Work>(before, true);
  }

  if (before < 0 || before == n - 1) {  // the target is outside
    const bool is_early = before < 0;
    // A first time that is NaN is not at or before itself.
    const Index first = is_early ? last_at_or_before(times, n, times[0], Index{0}) : 0;
    const Index end = is_early ? (first < 0 ? 0 : first) : before;
    if (rule.extrapolate != Extrapolate::kLinear) return padding(end);
    // The bracket at the row's end; each of its samples is the last one with its time. A row with only one time, or
    // with NaN, has no bracket: the end sample is held.
    if (is_early) {
      if (end + 1 >= n) return pick_one<Work>(end, false);
      const Index right = last_at_or_before(times, n, times[end + 1], end + 1);
      if (right <= end) return pick_one<Work>(end, false);
      const auto gap = later_minus_earlier(times[right], times[end]);
      const Work w = -weight_of<Clock, Work>(later_minus_earlier(times[end], target), gap);
      return {end, right, w, PickKind::kMix, false};
    }
    Index left = end;
    while (left >= 0 && times[left] == times[end]) --left;
    if (left < 0) return pick_one<Work>(end, false);
    const auto gap = later_minus_earlier(times[end], times[left]);
    return {left, end, weight_of<Clock, Work>(later_minus_earlier(target, times[left]), gap), PickKind::kMix, false};
  }

  const Index left = before;
  Index right = before + 1;
  if (right + 1 < n && times[right + 1] == times[right]) right = last_at_or_before(times, n, times[right], right);
  const auto gap = later_minus_earlier(times[right], times[left]);
  const auto from_left = later_minus_earlier(target, times[left]);
  const bool has_wide_gap = rule.has_max_gap && gap > rule.max_gap;
  if (!is_step(rule.method)) {
    if (has_wide_gap && rule.extrapolate == Extrapolate::kNan) return absent;
    return {left, right, weight_of<Clock, Work>(from_left, gap), PickKind::kMix, !has_wide_gap};
  }
  const auto to_right = later_minus_earlier(times[right], target);
  const bool takes_right = rule.method == InterpolationMethod::kNext ||
                           (rule.method == InterpolationMethod::kNearest && to_right < from_left);
  const bool is_too_far = rule.has_tolerance && (takes_right ? to_right : from_left) > rule.tolerance;
  const Index row = takes_right ? right : left;
  return has_wide_gap || is_too_far ? padding(row) : pick_one<Work>(row, true);
}

// Searches for `before`, then calls pick_from. The search starts at `hint`. On return, `hint` is the last sample at or
// before the target (0 if there is none), which is a good hint for the next target.
template <class Work, class Clock, class Times, class Index>
ROBOCACHE_HD Pick<Work, Index> pick(const Times& times, Index n, Clock target, const PickRule<Clock>& rule,
                                    Index& hint) {
  if (n <= 0 || target != target) return {0, 0, Work(0), PickKind::kAbsent, false};
  const Index before = last_at_or_before(times, n, target, hint);
  hint = before < 0 ? 0 : before;
  return pick_from<Work>(times, n, target, rule, before);
}

// Computes one feature of a target. A copied sample keeps every bit.
template <class T, class Work, class Index>
ROBOCACHE_HD T mix(const Pick<Work, Index>& pick, T a, T b) {
  if constexpr (std::is_void_v<WorkType<T>>) {
    return a;
  } else {
    return pick.kind == PickKind::kMix ? from_work<T>(lerp(to_work<Work>(a), to_work<Work>(b), pick.weight)) : a;
  }
}

}  // namespace robocache
