// The scalar rule of a window, for the CPU loop and the CUDA kernel: it finds the rows that a step uses. interpolation/
// turns the rows into values.
#pragma once

#include <cstdint>

#include "robocache/align/window_params.hpp"
#include "robocache/image/augment_math.hpp"
#include "robocache/interpolation/pick.hpp"
#include "robocache/interpolation/segment.hpp"

namespace robocache {

// Returns the row that `target` would have if the episode's rows were evenly spaced. The search begins there.
ROBOCACHE_HD int64_t guess_row(const EpisodeRows& rows, int64_t target) {
  // The difference wraps beyond int64: a bad guess only costs a longer search.
  const auto after_first = static_cast<int64_t>(static_cast<uint64_t>(target) - static_cast<uint64_t>(rows.first_ns));
  const double guess = static_cast<double>(after_first) * rows.rows_per_ns;
  const auto last = static_cast<double>(rows.rows - 1);
  return guess > 0 ? static_cast<int64_t>(guess < last ? guess : last) : 0;
}

// A time on an episode's clock, and the last row at or before it, or -1.
template <class Index = int64_t>
struct WindowTarget {
  int64_t time_ns;
  Index before;
};

// Returns the last of n >= 1 rows at or before `target`, or -1. The guess is usually right to within a row or two, so
// the rows around it are read together, not one after another.
ROBOCACHE_HD int64_t last_around(const ClockRow<int64_t>& times, int64_t n, int64_t target, int64_t guess) {
  constexpr int kRows = 4;
  if (n < kRows) return last_at_or_before(times, n, target, guess);
  const int64_t last_first = n - kRows;
  const int64_t first = guess < 1 ? 0 : (guess - 1 < last_first ? guess - 1 : last_first);
  const int64_t* const around = times.data + first;
  int passed = 0;
  for (int row = 0; row < kRows; ++row) passed += around[row] <= target ? 1 : 0;
  const int64_t before = first - 1 + passed;
  const bool is_certain = (passed > 0 || first == 0) && (passed < kRows || first == last_first);
  return is_certain ? before : last_at_or_before(times, n, target, before);
}

// Returns the time to search a clock for: that of a moment, or that of the anchor's row.
ROBOCACHE_HD int64_t target_of(const WindowClock& clock, int64_t delta, int64_t anchor_ns) {
  return saturating_add(anchor_ns, clock.counts_rows ? clock.offset_ns : delta);
}

// Guesses the row of a moment in an episode with rows.
ROBOCACHE_HD int64_t guess_moment(const WindowClock& clock, const EpisodeRows& rows, int64_t delta, int64_t anchor_ns) {
  const int64_t row = guess_row(rows, target_of(clock, delta, anchor_ns)) + (clock.counts_rows ? delta : 0);
  return row < 0 ? 0 : row < rows.rows ? row : rows.rows - 1;
}

// Moves a target to the nearest row closer than snap_ns, or to the earlier of two equally near ones. `before` is the
// last of n >= 1 rows at or before the target.
template <class Index>
ROBOCACHE_HD WindowTarget<Index> snapped(const ClockRow<int64_t>& times, Index n, int64_t target, int64_t snap_ns,
                                         Index before) {
  const auto limit = static_cast<uint64_t>(snap_ns);
  const uint64_t to_left = before >= 0 ? ns_between(target, times[before]) : limit;
  const uint64_t to_right = before + 1 < n ? ns_between(times[before + 1], target) : limit;
  if (to_left < limit && to_left <= to_right) {
    target = times[before];
  } else if (to_right < limit) {
    target = times[before + 1];
    before = last_at_or_before(times, n, target, before + 1);
  }
  return {target, before};
}

// Searches for a target, and then moves it as snapped() does. The search begins at `hint`, which becomes a row near the
// probable next target.
ROBOCACHE_HD WindowTarget<> find_target(const ClockRow<int64_t>& times, int64_t n, int64_t target, int64_t snap_ns,
                                        int64_t& hint) {
  const WindowTarget<> found = snapped(times, n, target, snap_ns, last_at_or_before(times, n, target, hint));
  hint = found.before < 0 ? 0 : found.before;
  return found;
}

// Returns the rows that a step of a segment uses for a target, counted from the episode's first row. The weight is
// float64; a work type rounds it once more (rule 3 of docs/rules.md).
template <class Index>
ROBOCACHE_HD Pick<double, Index> pick_at(const ClockRow<int64_t>& times, Index n, const WindowTarget<Index>& target,
                                         const WindowSegment& segment) {
  PickRule<int64_t> rule{};
  rule.method = segment.method;
  rule.extrapolate = Extrapolate::kClamp;
  rule.has_max_gap = segment.max_gap_ns >= 0;
  rule.max_gap = static_cast<uint64_t>(segment.max_gap_ns);
  rule.has_tolerance = segment.tolerance_ns >= 0;
  rule.tolerance = static_cast<uint64_t>(segment.tolerance_ns);
  rule.causal = segment.causal;
  return pick_from<double>(times, n, target.time_ns, rule, target.before);
}

// Returns the row that a step uses: `delta` rows after the anchor's row. `anchor` is the anchor among the episode's
// rows, which are [begin, end). A step outside them is padding: it uses the episode's first or last row, but no row if
// the segment is causal and the step is before the first row. A tolerance limits the age of the anchor's own row.
template <class Index>
ROBOCACHE_HD Pick<double, Index> row_at(const ClockRow<int64_t>& times, int64_t begin, int64_t end,
                                        const WindowTarget<Index>& anchor, int64_t delta,
                                        const WindowSegment& segment) {
  const int64_t row = anchor.before + delta;
  if (segment.causal && row < begin) return {0, 0, 0, PickKind::kAbsent, false};
  bool valid = begin <= row && row < end;
  if (valid && segment.tolerance_ns >= 0) {
    valid = anchor.before >= begin &&
            ns_between(anchor.time_ns, times[anchor.before]) <= static_cast<uint64_t>(segment.tolerance_ns);
  }
  return pick_one<double>(static_cast<Index>(row < begin ? begin : row < end ? row : end - 1), valid);
}

// Returns the time from the used sample (for a mixture the earlier one) to the target: negative if the sample is later,
// the least int64 if there is none. It saturates at +-(2^63 - 1).
template <class Index>
ROBOCACHE_HD int64_t age_of(const ClockRow<int64_t>& times, const Pick<double, Index>& picked, int64_t target) {
  if (picked.kind == PickKind::kAbsent) return INT64_MIN;
  const int64_t used_ns = times[picked.left];
  const bool is_later = used_ns > target;
  uint64_t distance = is_later ? ns_between(used_ns, target) : ns_between(target, used_ns);
  if (distance > static_cast<uint64_t>(INT64_MAX)) distance = static_cast<uint64_t>(INT64_MAX);
  return is_later ? -static_cast<int64_t>(distance) : static_cast<int64_t>(distance);
}

// Returns the flips of a sample's images that mirror a key.
ROBOCACHE_HD FlippedAxes flipped_axes(const WindowBatch& batch, const ConvertActionsParams& key, int64_t sample) {
  const ImageDraw draw{batch.seed, batch.epoch, batch.number(sample)};
  const auto axes = [&](const ActionMirror& mirror) -> uint8_t {
    if (mirror.axes == nullptr) return 0;
    return static_cast<uint8_t>((is_flipped(draw, 0, mirror.flip[0]) ? 1 : 0) |
                                (is_flipped(draw, 1, mirror.flip[1]) ? 2 : 0));
  };
  return {axes(key.mirror), axes(key.base_mirror)};
}

}  // namespace robocache
