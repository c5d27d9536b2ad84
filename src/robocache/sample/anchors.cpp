#include "robocache/sample/anchors.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "robocache/core/arguments.hpp"

namespace robocache {

Anchors Anchors::of_ticks(const StreamClock& clock, std::span<const int64_t> episodes) {
  Anchors made;
  made.tick_ns_ = clock.time_ns;
  for (const int64_t episode : episodes) {
    const EpisodeRows& rows = clock.episodes[episode];
    if (rows.rows == 0) continue;
    made.table_.push_back({made.anchors_, episode, rows.begin});
    made.anchors_ += rows.rows;
  }
  made.finish();
  return made;
}

Anchors Anchors::at_rate(double hz, std::span<const StreamClock> clocks, std::span<const int64_t> episodes) {
  constexpr int64_t kMostTicks = int64_t{1} << 53;
  Anchors made;
  made.period_ns_ = kNsPerSecond / hz;
  for (const int64_t episode : episodes) {
    bool any = false;
    int64_t start_ns = 0;
    int64_t end_ns = 0;
    for (const StreamClock& clock : clocks) {
      const EpisodeRows& rows = clock.episodes[episode];
      if (rows.rows == 0) continue;
      const int64_t last_ns = clock.time_ns[rows.begin + rows.rows - 1];
      start_ns = any ? std::max(start_ns, rows.first_ns) : rows.first_ns;
      end_ns = any ? std::min(end_ns, last_ns) : last_ns;
      any = true;
    }
    if (!any || end_ns < start_ns) continue;
    const auto refuse = [&](const std::string& expected) {
      throw ArgumentError("anchor_hz: expected " + expected + ", got " + number_text(hz) + " Hz over the " +
                          number_text(static_cast<double>(ns_between(end_ns, start_ns)) / kNsPerSecond) +
                          " s of episode " + std::to_string(episode));
    };
    const uint64_t span_ns = ns_between(end_ns, start_ns);
    if (span_ns > uint64_t{INT64_MAX}) refuse("episodes of less than 2^63 ns");
    const double ticks = static_cast<double>(span_ns) / made.period_ns_;
    if (!(ticks < static_cast<double>(kMostTicks - made.anchors_))) refuse("at most 2^53 ticks in all");
    // One more than the quotient: a tick that is rounded down to the last row counts.
    auto last = static_cast<int64_t>(ticks) + 1;
    while (last > 0 && !(static_cast<double>(last) * made.period_ns_ < 0x1p63 &&
                         clock_tick_ns(last, made.period_ns_) <= static_cast<int64_t>(span_ns))) {
      --last;
    }
    made.table_.push_back({made.anchors_, episode, start_ns});
    made.anchors_ += last + 1;
  }
  made.finish();
  return made;
}

// A table of buckets about as many as episodes: from a bucket's two ends an episode is a step or two away.
void Anchors::finish() {
  const auto episodes = static_cast<int64_t>(table_.size());
  while ((anchors_ >> shift_) > 2 * episodes) ++shift_;
  size_t at = 0;
  for (int64_t bucket = 0; bucket <= (anchors_ >> shift_) + 1; ++bucket) {
    while (at + 1 < table_.size() && table_[at + 1].first_anchor <= bucket << shift_) ++at;
    first_of_.push_back(static_cast<int32_t>(at));
  }
}

AnchorIndex Anchors::index() const {
  return {anchors_, static_cast<int64_t>(table_.size()), table_.data(), first_of_.data(), shift_, tick_ns_, period_ns_};
}

}  // namespace robocache
