#include "robocache/sample/anchors.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "robocache/core/arguments.hpp"
#include "robocache/core/error.hpp"

namespace robocache {
namespace {

// The range of times for the anchors of an episode; empty if the first is after the last.
struct TimeRange {
  int64_t first_ns = INT64_MIN;
  int64_t last_ns = INT64_MAX;
};

int64_t saturating_difference(int64_t a, int64_t b) {
  int64_t difference = 0;
  return __builtin_sub_overflow(a, b, &difference) ? (a < b ? INT64_MIN : INT64_MAX) : difference;
}

// Returns the earliest target that takes row `row` or a later one as row 0 of its window. A target takes the last row at
// or before it, or snaps to the next row, if that is nearer and less than snap_ns away.
int64_t first_target_of(const int64_t* times, int64_t row, int64_t snap_ns) {
  const int64_t time_ns = times[row];
  if (snap_ns == 0) return time_ns;
  while (row > 0 && times[row - 1] == time_ns) --row;
  const int64_t first = saturating_difference(time_ns, snap_ns - 1);
  if (row == 0) return first;
  // A target that is not nearer to this row than to the previous one takes the previous one.
  const int64_t previous_ns = times[row - 1];
  const uint64_t gap_ns = ns_between(time_ns, previous_ns);
  const auto middle = static_cast<int64_t>(static_cast<uint64_t>(previous_ns) + gap_ns / 2);
  return std::max(first, middle + 1);
}

TimeRange range_of(const AnchorEdges& edges, int64_t episode) {
  // A target at most this far before the first or after the last row counts as inside.
  const int64_t reach = std::max<int64_t>(edges.snap_ns - 1, 0);
  TimeRange range;
  for (const WindowSpan& window : edges.whole) {
    const EpisodeRows& rows = window.clock.episodes[episode];
    if (rows.rows == 0) return {0, -1};
    const int64_t* const times = window.clock.time_ns + rows.begin;
    if (window.rows) {
      const auto [first_row, last_row] = *window.rows;  // both deltas in ns are then the key's offset
      if (first_row <= -rows.rows || last_row > rows.rows) return {0, -1};
      // A target that takes row r needs r + first_row >= 0 and r + last_row < rows. Before the first row r is -1, which
      // suits a window of later rows alone, so last_row may be as large as rows.
      const auto first_anchor_of = [&](int64_t row) {
        return saturating_difference(first_target_of(times, row, edges.snap_ns), window.first_delta_ns);
      };
      if (first_row <= 0) range.first_ns = std::max(range.first_ns, first_anchor_of(-first_row));
      if (last_row > 0) range.last_ns = std::min(range.last_ns, first_anchor_of(rows.rows - last_row) - 1);
      continue;
    }
    const int64_t last_ns = times[rows.rows - 1];
    const int64_t first = saturating_difference(saturating_difference(rows.first_ns, window.first_delta_ns), reach);
    const int64_t last = saturating_difference(saturating_difference(last_ns, window.last_delta_ns), -reach);
    range.first_ns = std::max(range.first_ns, first);
    range.last_ns = std::min(range.last_ns, last);
  }
  return range;
}

// Anchors [begin, end) of a run, counted from the run's first.
struct Part {
  size_t run;
  int64_t begin;
  int64_t end;
};

// The number of anchors that `where` and for_each_block() handle at once.
constexpr int64_t kAnchorsAtOnce = int64_t{1} << 18;

// Sorts the ranges, so that a search finds those of an episode.
std::vector<AnchorRange> sorted(std::vector<AnchorRange> ranges) {
  std::ranges::sort(ranges, [](const AnchorRange& a, const AnchorRange& b) {
    return std::pair(a.episode, a.first) < std::pair(b.episode, b.first);
  });
  return ranges;
}

// Returns the first i of [0, n) for which `holds` is true; n if there is none. For every later i `holds` is true too.
template <class Holds>
int64_t first_that(int64_t n, const Holds& holds) {
  int64_t low = 0;
  while (low < n) {
    const int64_t middle = low + (n - low) / 2;
    if (holds(middle)) {
      n = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace

// Ticks 0 to n - 1 of an episode are at the ascending times time(k). Adds those that `edges` keep, as one run.
template <class Time>
void Anchors::add(int64_t episode, int64_t n, const AnchorEdges& edges, AnchorRun entry, const Time& time) {
  const TimeRange range = range_of(edges, episode);
  const int64_t begin = first_that(n, [&](int64_t k) { return time(k) >= range.first_ns; });
  const int64_t end = first_that(n, [&](int64_t k) { return time(k) > range.last_ns; }) - edges.drop_n_last;
  if (begin >= end) return;
  entry.first_anchor = anchors_;
  entry.episode = episode;
  advance(entry, begin);
  table_.push_back(entry);
  anchors_ += end - begin;
}

Anchors Anchors::of_ticks(const StreamClock& clock, std::span<const int64_t> episodes, const AnchorEdges& edges) {
  Anchors result;
  result.tick_ns_ = clock.time_ns;
  result.rows_ = clock.episodes;
  for (const int64_t episode : episodes) {
    const EpisodeRows& rows = clock.episodes[episode];
    result.add(episode, rows.rows, edges, {.origin = rows.begin},
               [&](int64_t k) { return clock.time_ns[rows.begin + k]; });
  }
  result.finish();
  return result;
}

Anchors Anchors::at_rate(double hz, std::span<const StreamClock> clocks, std::span<const int64_t> episodes,
                         const AnchorEdges& edges) {
  constexpr int64_t kMostTicks = int64_t{1} << 53;
  Anchors result;
  result.period_ns_ = kNsPerSecond / hz;
  for (const int64_t episode : episodes) {
    bool has_clock = false;
    int64_t start_ns = 0;
    int64_t end_ns = 0;
    for (const StreamClock& clock : clocks) {
      const EpisodeRows& rows = clock.episodes[episode];
      if (rows.rows == 0) continue;
      const int64_t last_ns = clock.time_ns[rows.begin + rows.rows - 1];
      start_ns = has_clock ? std::max(start_ns, rows.first_ns) : rows.first_ns;
      end_ns = has_clock ? std::min(end_ns, last_ns) : last_ns;
      has_clock = true;
    }
    if (!has_clock || end_ns < start_ns) continue;
    const auto refuse = [&](const std::string& expected) {
      throw ArgumentError("anchors.rate_hz: expected " + expected + ", got " + number_text(hz) + " Hz over the " +
                          number_text(static_cast<double>(ns_between(end_ns, start_ns)) / kNsPerSecond) +
                          " s of episode " + std::to_string(episode));
    };
    const uint64_t span_ns = ns_between(end_ns, start_ns);
    if (span_ns > uint64_t{INT64_MAX}) refuse("episodes of less than 2^63 ns");
    const double ticks = static_cast<double>(span_ns) / result.period_ns_;
    if (!(ticks < static_cast<double>(kMostTicks - result.anchors_))) refuse("at most 2^53 ticks in all");
    // One more than the quotient, because a tick that is rounded down to the last row counts too.
    auto last_tick = static_cast<int64_t>(ticks) + 1;
    while (last_tick > 0 && !(static_cast<double>(last_tick) * result.period_ns_ < 0x1p63 &&
                              clock_tick_ns(last_tick, result.period_ns_) <= static_cast<int64_t>(span_ns))) {
      --last_tick;
    }
    result.add(episode, last_tick + 1, edges, {.origin = start_ns},
               [&](int64_t k) { return start_ns + clock_tick_ns(k, result.period_ns_); });
  }
  result.finish();
  return result;
}

Anchors Anchors::filtered(const AnchorFilter& filter, int64_t snap_ns, const std::string& name) const {
  if (is_cut_) throw Error("Anchors::filtered: expected anchors that are neither filtered nor split");
  for (const auto& [argument, value] :
       {std::pair("first", filter.first), {"last", filter.last}, {"every", filter.every}}) {
    if (value && *value < 1) refuse(name, argument, ": expected at least 1, got ", std::to_string(*value));
  }
  const int64_t reach = std::max<int64_t>(snap_ns - 1, 0);
  const AnchorIndex unfiltered = index();
  const auto anchors_in = [&](size_t run) {
    return (run + 1 < table_.size() ? table_[run + 1].first_anchor : anchors_) - table_[run].first_anchor;
  };
  const auto time_of = [&](size_t run, int64_t k) { return unfiltered.at(table_[run].first_anchor + k).time_ns; };

  std::vector<Part> parts;
  for (size_t run = 0; run < table_.size(); ++run) parts.push_back({run, 0, anchors_in(run)});

  // Cuts the parts of each run by the ranges of its episode, and keeps the anchors inside the ranges, or those outside.
  const auto cut = [&](const std::vector<AnchorRange>& requested, bool in_rows, bool keeps_inside,
                       const char* argument) {
    if (in_rows && rows_ == nullptr) {
      refuse(name, argument, ": rows go with anchors of a stream; expected start_s and end_s, since rate_hz is given");
    }
    const std::vector<AnchorRange> ranges = sorted(requested);
    std::vector<Part> remaining;
    for (const Part& part : parts) {
      const AnchorRun& run = table_[part.run];
      const auto episode_ranges = std::ranges::equal_range(ranges, run.episode, {}, &AnchorRange::episode);
      int64_t next = part.begin;
      for (const AnchorRange& range : episode_ranges) {
        int64_t begin = 0;
        int64_t end = 0;
        if (in_rows) {
          const EpisodeRows& rows = rows_[run.episode];
          if (range.last >= rows.rows) {
            refuse(name, argument, ": expected rows of episode ", std::to_string(run.episode), ", which has ",
                   std::to_string(rows.rows), ", got ", std::to_string(range.first), " to ",
                   std::to_string(range.last));
          }
          begin = rows.begin + range.first - run.origin;
          end = rows.begin + range.last + 1 - run.origin;
        } else {
          const int64_t first_ns = saturating_difference(range.first, reach);
          const int64_t last_ns = saturating_difference(range.last, -reach);
          begin = first_that(part.end, [&](int64_t k) { return time_of(part.run, k) >= first_ns; });
          end = first_that(part.end, [&](int64_t k) { return time_of(part.run, k) > last_ns; });
        }
        begin = std::clamp(begin, next, part.end);
        end = std::clamp(end, begin, part.end);
        if (keeps_inside && begin < end) remaining.push_back({part.run, begin, end});
        if (!keeps_inside && next < begin) remaining.push_back({part.run, next, begin});
        next = std::max(next, end);
      }
      if (!keeps_inside && next < part.end) remaining.push_back({part.run, next, part.end});
    }
    parts = std::move(remaining);
  };
  if (filter.keep) cut(*filter.keep, filter.keep_rows, true, "keep");
  if (!filter.drop.empty()) cut(filter.drop, filter.drop_rows, false, "drop");

  if (filter.where) {
    std::vector<int64_t> episodes;
    std::vector<int64_t> times;
    std::vector<Part> waiting;
    std::vector<Part> remaining;
    const auto filter_waiting = [&] {
      std::vector<uint8_t> stays(times.size(), 1);
      filter.where(episodes, times, stays);
      size_t i = 0;
      for (const Part& part : waiting) {
        for (int64_t k = part.begin; k < part.end; ++k, ++i) {
          if (stays[i] == 0) continue;
          if (!remaining.empty() && remaining.back().run == part.run && remaining.back().end == k) {
            ++remaining.back().end;
          } else {
            remaining.push_back({part.run, k, k + 1});
          }
        }
      }
      episodes.clear();
      times.clear();
      waiting.clear();
    };
    for (const Part& part : parts) {
      for (int64_t begin = part.begin; begin < part.end;) {
        const int64_t end = std::min(part.end, begin + kAnchorsAtOnce - std::ssize(times));
        waiting.push_back({part.run, begin, end});
        for (int64_t k = begin; k < end; ++k) {
          episodes.push_back(table_[part.run].episode);
          times.push_back(time_of(part.run, k));
        }
        if (std::ssize(times) == kAnchorsAtOnce) filter_waiting();
        begin = end;
      }
    }
    if (!times.empty()) filter_waiting();
    parts = std::move(remaining);
  }

  Anchors result;
  result.tick_ns_ = tick_ns_;
  result.rows_ = rows_;
  result.period_ns_ = period_ns_;
  result.every_ = filter.every;
  result.is_cut_ = true;
  int64_t passed = 0;  // anchors of the run in earlier calls of take(), skipped ones too
  const auto take = [&](const Part& part) {
    const int64_t skipped = (filter.every - passed % filter.every) % filter.every;
    passed += std::max<int64_t>(part.end - part.begin, 0);
    if (part.begin + skipped >= part.end) return;
    AnchorRun run = table_[part.run];
    advance(run, part.begin + skipped);
    run.first_anchor = result.anchors_;
    result.table_.push_back(run);
    result.anchors_ += (part.end - part.begin - skipped + filter.every - 1) / filter.every;
  };
  for (size_t begin = 0; begin < parts.size();) {
    size_t end = begin;
    int64_t anchors = 0;
    for (; end < parts.size() && parts[end].run == parts[begin].run; ++end)
      anchors += parts[end].end - parts[end].begin;
    // The run's remaining anchors are counted from 0. Those before `until` stay, and those from `from_last` on.
    const int64_t until = filter.first ? std::min(*filter.first, anchors) : filter.last ? 0 : anchors;
    const int64_t from_last = filter.last ? std::max(until, anchors - *filter.last) : anchors;
    passed = 0;
    int64_t before = 0;  // anchors in earlier parts
    for (; begin < end; ++begin) {
      const Part& part = parts[begin];
      const int64_t shift = part.begin - before;  // from a number among the remaining anchors to that in the run
      before += part.end - part.begin;
      take({part.run, part.begin, std::min(part.end, until + shift)});
      take({part.run, std::max(part.begin, from_last + shift), part.end});
    }
  }
  result.finish();
  return result;
}

void Anchors::for_each_block(const Block& body) const {
  const AnchorIndex all = index();
  std::vector<int64_t> episodes;
  std::vector<int64_t> times;
  for (int64_t first = 0; first < anchors_; first += kAnchorsAtOnce) {
    episodes.clear();
    times.clear();
    for (int64_t i = first; i < std::min(anchors_, first + kAnchorsAtOnce); ++i) {
      const Anchor anchor = all.at(i);
      episodes.push_back(anchor.episode);
      times.push_back(anchor.time_ns);
    }
    body(episodes, times, first);
  }
}

std::vector<Anchors> Anchors::split(std::span<const int32_t> part, int64_t parts) const {
  std::vector<Anchors> results(static_cast<size_t>(parts));
  for (Anchors& result : results) {
    result.tick_ns_ = tick_ns_;
    result.rows_ = rows_;
    result.period_ns_ = period_ns_;
    result.every_ = every_;
    result.is_cut_ = true;
  }
  for (size_t run = 0; run < table_.size(); ++run) {
    const int64_t begin = table_[run].first_anchor;
    const int64_t end = run + 1 < table_.size() ? table_[run + 1].first_anchor : anchors_;
    for (int64_t i = begin; i < end; ++i) {
      const int32_t anchor_part = part[static_cast<size_t>(i)];
      if (anchor_part < 0) continue;
      Anchors& result = results[static_cast<size_t>(anchor_part)];
      if (i == begin || part[static_cast<size_t>(i - 1)] != anchor_part) {
        AnchorRun entry = table_[run];
        advance(entry, (i - begin) * every_);
        entry.first_anchor = result.anchors_;
        result.table_.push_back(entry);
      }
      ++result.anchors_;
    }
  }
  for (Anchors& result : results) result.finish();
  return results;
}

void Anchors::add_none() {
  table_.push_back({.first_anchor = anchors_++, .episode = -1, .origin = 0, .first_tick = 0});
  first_of_.clear();
  shift_ = 0;
  finish();
}

// Builds a table with about as many buckets as runs, so that the search in a bucket takes a step or two.
void Anchors::finish() {
  const auto runs = static_cast<int64_t>(table_.size());
  while ((anchors_ >> shift_) > 2 * runs) ++shift_;
  size_t run = 0;
  for (int64_t bucket = 0; bucket <= (anchors_ >> shift_) + 1; ++bucket) {
    while (run + 1 < table_.size() && table_[run + 1].first_anchor <= bucket << shift_) ++run;
    first_of_.push_back(static_cast<int32_t>(run));
  }
}

AnchorIndex Anchors::index() const {
  return {anchors_, static_cast<int64_t>(table_.size()), table_.data(), first_of_.data(), shift_, tick_ns_, period_ns_,
          every_};
}

}  // namespace robocache
