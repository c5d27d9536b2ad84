#include "robocache/sample/anchors.hpp"

#include <algorithm>
#include <cmath>

namespace robocache {

Anchors Anchors::of_stream(const Dataset& dataset, int64_t stream, std::span<const int64_t> episodes) {
  Anchors made;
  const Stream& ticks = dataset.streams()[static_cast<size_t>(stream)];
  made.tick_ns_ = ticks.time_ns;
  for (const int64_t episode : episodes) {
    const int64_t begin = ticks.row_offsets[static_cast<size_t>(episode)];
    const int64_t rows = ticks.row_offsets[static_cast<size_t>(episode) + 1] - begin;
    if (rows == 0) continue;
    made.table_.push_back({made.anchors_, episode, begin});
    made.anchors_ += rows;
  }
  made.finish();
  return made;
}

Anchors Anchors::of_clock(const Dataset& dataset, double hz, std::span<const int64_t> streams,
                          std::span<const int64_t> episodes) {
  Anchors made;
  made.period_ns_ = kNsPerSecond / hz;
  for (const int64_t episode : episodes) {
    bool any = false;
    int64_t start_ns = 0;
    int64_t end_ns = 0;
    for (const int64_t index : streams) {
      const Stream& stream = dataset.streams()[static_cast<size_t>(index)];
      const int64_t begin = stream.row_offsets[static_cast<size_t>(episode)];
      const int64_t end = stream.row_offsets[static_cast<size_t>(episode) + 1];
      if (begin == end) continue;
      start_ns = any ? std::max(start_ns, stream.time_ns[begin]) : stream.time_ns[begin];
      end_ns = any ? std::min(end_ns, stream.time_ns[end - 1]) : stream.time_ns[end - 1];
      any = true;
    }
    if (!any || end_ns < start_ns) continue;
    // One more than the quotient: a tick that is rounded down to the last row counts.
    auto last = static_cast<int64_t>(static_cast<double>(ns_between(end_ns, start_ns)) / made.period_ns_) + 1;
    while (last > 0 && clock_tick_ns(last, made.period_ns_) > end_ns - start_ns) --last;
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
