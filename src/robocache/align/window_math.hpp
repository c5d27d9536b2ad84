// The scalar rule of a window: which rows a step takes. Shared by the CPU loop and the CUDA kernel.
#pragma once

#include <cstdint>

#include "robocache/align/window_params.hpp"
#include "robocache/interpolation/pick.hpp"

namespace robocache {

// The row where `target` would be if the episode's rows were evenly spaced; where to look first.
ROBOCACHE_HD int64_t guess_row(const EpisodeRows& rows, int64_t target) {
  const double guess = static_cast<double>(target - rows.first_ns) * rows.rows_per_ns;
  const auto last = static_cast<double>(rows.rows - 1);
  return guess > 0 ? static_cast<int64_t>(guess < last ? guess : last) : 0;
}

// What one step of a window takes, rows counted from the episode's first. `hint`: where to look first; on return where
// the next step's target is probably near.
template <class Work>
ROBOCACHE_HD Pick<Work> pick_step(const WindowSegment& segment, const EpisodeRows& rows, int64_t target,
                                  int64_t snap_ns, int64_t& hint) {
  const int64_t n = rows.rows;
  if (n <= 0) return {0, 0, Work(0), PickKind::kAbsent, false};
  PickRule<int64_t> rule{};
  rule.method = segment.method;
  rule.extrapolate = Extrapolate::kClamp;
  rule.has_max_gap = segment.max_gap_ns >= 0;
  rule.max_gap = static_cast<uint64_t>(segment.max_gap_ns);
  const ClockRow<int64_t> times{segment.time_ns + rows.begin, 1};
  int64_t before = last_at_or_before(times, n, target, hint);
  // The nearest sample closer than snap_ns is the target; of two as near, the earlier.
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
  return pick_from<Work>(times, n, target, rule, before);
}

// One feature of a step: mixed or copied, normalised, rounded once. `scale` null: not normalised.
template <class Out, class Work, class In>
ROBOCACHE_HD Out window_value(In a, In b, Work weight, bool mix, const Work* scale, const Work* shift,
                              int64_t feature) {
  Work y = to_work<Work>(a);
  if (mix) y = lerp(y, to_work<Work>(b), weight);
  if (scale != nullptr) y = multiply_add(y, scale[feature], shift[feature]);
  return rounded_once<Out>(y);
}

}  // namespace robocache
