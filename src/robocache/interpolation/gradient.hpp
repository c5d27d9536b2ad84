// The rules of a gradient, shared by the CPU loop and the CUDA kernels.
#pragma once

#include <cstdint>
#include <type_traits>

#include "robocache/core/host_device.hpp"
#include "robocache/interpolation/number.hpp"
#include "robocache/interpolation/pick.hpp"
#include "robocache/interpolation/segment.hpp"

namespace robocache {

// The slope between these two samples tells how a target's value changes when the times move. `gap` is 0 if the value
// does not change.
struct Bracket {
  int64_t left;
  int64_t right;
  double weight;  // weight of `right`
  double gap;     // in seconds; for an int64 clock in nanoseconds
};

template <class Work, class Clock, class Times>
ROBOCACHE_HD Bracket bracket_of(const Times& times, int64_t n, const PickRule<Clock>& rule, const Pick<Work>& picked) {
  Bracket bracket{picked.left, picked.right, static_cast<double>(picked.weight), 0};
  if (picked.kind == PickKind::kOne && picked.valid && !rule.causal &&
      !is_step(rule.method)) {  // the target is on a sample
    if (picked.left + 1 < n) {
      bracket.right = last_at_or_before(times, n, times[picked.left + 1], picked.left + 1);
      if (bracket.right <= picked.left) return bracket;  // a time is NaN
    } else {
      bracket.left = picked.left - 1;
      while (bracket.left >= 0 && times[bracket.left] == times[picked.left]) --bracket.left;
      if (bracket.left < 0) return bracket;
      bracket.weight = 1;
    }
  } else if (picked.kind != PickKind::kMix) {
    return bracket;
  }
  bracket.gap = static_cast<double>(later_minus_earlier(times[bracket.right], times[bracket.left]));
  return bracket;
}

// Returns the units of the stream's clock per unit of the targets. A gradient of targets is in the targets' unit.
ROBOCACHE_HD double clock_units_per_target_unit(const Interpolation& call, const Segment& s) {
  return s.clock_dtype == DType::kInt64 && call.target_dtype != DType::kInt64 ? 1e9 : 1.0;
}

}  // namespace robocache
