// The scalar rule of a window: which rows a step takes. Shared by the CPU loop and the CUDA kernel; what is made of the
// rows is interpolation's.
#pragma once

#include <cstdint>

#include "robocache/align/window_params.hpp"
#include "robocache/interpolation/pick.hpp"
#include "robocache/interpolation/segment.hpp"

namespace robocache {

// Whether a mixture of two rows is more than a straight line between them.
ROBOCACHE_HD bool is_curved(InterpolationMethod method) {
  return !is_step(method) && method != InterpolationMethod::kLinear;
}

// The row where `target` would be if the episode's rows were evenly spaced; where to look first.
ROBOCACHE_HD int64_t guess_row(const EpisodeRows& rows, int64_t target) {
  // Wraps where it is beyond int64: a bad guess costs a longer search.
  const auto after_first = static_cast<int64_t>(static_cast<uint64_t>(target) - static_cast<uint64_t>(rows.first_ns));
  const double guess = static_cast<double>(after_first) * rows.rows_per_ns;
  const auto last = static_cast<double>(rows.rows - 1);
  return guess > 0 ? static_cast<int64_t>(guess < last ? guess : last) : 0;
}

// A time on an episode's clock: the last row at or before it, or -1. What several rules start from.
struct WindowPlace {
  int64_t target;
  int64_t before;
};

// Where `target` lies among n >= 1 rows, brought to the nearest one closer than snap_ns, of two as near to the earlier.
// `hint`: where to look first; on return where the next target is probably near.
ROBOCACHE_HD WindowPlace find_place(const ClockRow<int64_t>& times, int64_t n, int64_t target, int64_t snap_ns,
                                    int64_t& hint) {
  int64_t before = last_at_or_before(times, n, target, hint);
  const auto limit = static_cast<uint64_t>(snap_ns);
  const uint64_t to_left = before >= 0 ? ns_between(target, times[before]) : limit;
  const uint64_t to_right = before + 1 < n ? ns_between(times[before + 1], target) : limit;
  if (to_left < limit && to_left <= to_right) {
    target = times[before];
  } else if (to_right < limit) {
    target = times[before + 1];
    before = last_at_or_before(times, n, target, before + 1);
  }
  hint = before < 0 ? 0 : before;
  return {target, before};
}

// What a step of a segment takes at a place, rows counted from the episode's first. The weight is float64's: a work type
// rounds it once more, as rule 3 says.
ROBOCACHE_HD Pick<double> pick_at(const ClockRow<int64_t>& times, int64_t n, const WindowPlace& place,
                                  const WindowSegment& segment) {
  PickRule<int64_t> rule{};
  rule.method = segment.method;
  rule.extrapolate = Extrapolate::kClamp;
  rule.has_max_gap = segment.max_gap_ns >= 0;
  rule.max_gap = static_cast<uint64_t>(segment.max_gap_ns);
  rule.has_tolerance = segment.tolerance_ns >= 0;
  rule.tolerance = static_cast<uint64_t>(segment.tolerance_ns);
  rule.causal = segment.causal;
  return pick_from<double>(times, n, place.target, rule, place.before);
}

// From the sample used, of a mixture the earlier, to the target: negative where that is later, the least int64 where there is
// none. What is beyond int64 is held at +-(2^63 - 1).
ROBOCACHE_HD int64_t age_of(const ClockRow<int64_t>& times, const Pick<double>& picked, int64_t target) {
  if (picked.kind == PickKind::kAbsent) return INT64_MIN;
  const int64_t used = times[picked.left];
  const bool later = used > target;
  uint64_t distance = later ? ns_between(used, target) : ns_between(target, used);
  if (distance > static_cast<uint64_t>(INT64_MAX)) distance = static_cast<uint64_t>(INT64_MAX);
  return later ? -static_cast<int64_t>(distance) : static_cast<int64_t>(distance);
}

}  // namespace robocache
