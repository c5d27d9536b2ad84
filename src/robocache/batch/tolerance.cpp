#include "robocache/batch/tolerance.hpp"

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "robocache/align/window_math.hpp"
#include "robocache/core/arguments.hpp"
#include "robocache/core/thread_pool.hpp"

namespace robocache {

void check_tolerance(const LoaderOptions& options, const LoaderStreams& streams, size_t source,
                     const AnchorsAround& around) {
  for (size_t request = 0; request < options.streams.size(); ++request) {
    const StreamRequest& asked = options.streams[request];
    const auto& stream = streams.of(source, request);
    if (!asked.tolerance_s || !stream) continue;
    const StreamClock clock = stream->clock().on_host();
    const AnchorIndex anchors = around(asked);
    const KeySpec& key = streams.spec(source).keys[request];
    const auto tolerance_ns = static_cast<uint64_t>(*key.tolerance_ns);
    const std::vector<int64_t> delta_ns = key.stamp_offsets_ns();
    const int64_t snap_ns = streams.spec(source).snap_ns;
    WindowSegment rule{};
    rule.method = *asked.method;
    rule.max_gap_ns = -1;
    rule.tolerance_ns = -1;
    rule.causal = key.causal;
    // Calls found(episode, target, distance) if a target of the anchor lies in the recording, but its sample is too far away.
    const auto visit = [&](int64_t i, const auto& found) {
      const Anchor anchor = anchors.at(i);
      const EpisodeRows rows = clock.rows_of(anchor.episode);
      if (rows.rows == 0) return;
      const ClockRow<int64_t> times{clock.time_ns + rows.begin, 1};
      for (const int64_t delta : delta_ns) {
        const int64_t target = saturating_add(anchor.time_ns, delta);
        int64_t hint = guess_row(rows, target);
        const WindowTarget<> at = find_target(times, rows.rows, target, snap_ns, hint);
        const Pick<double> picked = pick_at(times, rows.rows, at, rule);
        if (!picked.valid) continue;
        const int64_t used = times[picked.left];
        const uint64_t distance = used > at.time_ns ? ns_between(used, at.time_ns) : ns_between(at.time_ns, used);
        if (distance > tolerance_ns) return found(anchor.episode, target, distance);
      }
    };
    std::atomic<int64_t> first = anchors.anchors;
    parallel_for(anchors.anchors, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < std::min(end, first.load()); ++i) {
        visit(i, [&](int64_t, int64_t, uint64_t) {
          int64_t known = first;
          while (i < known && !first.compare_exchange_weak(known, i)) {
          }
        });
      }
    });
    if (first == anchors.anchors) continue;
    visit(first, [&](int64_t episode, int64_t target, uint64_t distance) {
      refuse(source_name(options, source), "delta_timestamps['", asked.stream,
             "'].tolerance_s: expected a sample within ", number_text(*asked.tolerance_s),
             " s of every target in the recording, got one ", number_text(static_cast<double>(distance) / kNsPerSecond),
             " s away in episode ", std::to_string(episode), " at ", std::to_string(target), " ns");
    });
  }
}

}  // namespace robocache
