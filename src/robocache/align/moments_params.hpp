// The rule that draws the moments of goals, for the CPU loop and the CUDA kernel.
#pragma once

#include <cstdint>

#include "robocache/align/window_params.hpp"
#include "robocache/core/host_device.hpp"
#include "robocache/core/mix_bits.hpp"
#include "robocache/interpolation/number.hpp"
#include "robocache/interpolation/segment.hpp"
#include "robocache/sample/anchors.hpp"

namespace robocache {

// A moment is a tick of the anchors' clock. For an anchor at t in an episode with the ticks 0, ..., n - 1, of which the
// last at or before t is k:
enum class MomentKind : uint8_t {
  // A tick in (t + low, t + high], all equally likely. A tick less than snap_ns after an end counts as at that end.
  kFuture,
  kLast,       // tick n - 1
  kGeometric,  // tick k + i for i in [1, n - 1 - k], with a probability proportional to discount^i
  kOther,      // a tick of another episode of the same task; these episodes, and the ticks of one, are equally likely
};

// An entry is an episode in the table of ticks. The entries with the same task are members [begin, begin + count) of
// the source; `index_in_task` is the entry's index among them. An episode without a task has no other members.
struct MomentPeers {
  int32_t begin;
  int32_t count;
  int32_t index_in_task;
};

// The ticks of a source. The last tick means that there is no moment: it is in an added episode without rows.
struct MomentSource {
  AnchorIndex ticks;
  int64_t first_tick;        // the index of its first tick among all sources' ticks
  const int32_t* entry_of;   // [episodes of the dataset]: the entry of an episode, or -1
  const MomentPeers* peers;  // one for each entry of `ticks`, except the entry of none()
  const int32_t* members;    // entries, one task after the other

  ROBOCACHE_HD int64_t none() const { return ticks.anchors - 1; }
  ROBOCACHE_HD int64_t count_of(int64_t entry) const {
    return ticks.table[entry + 1].first_anchor - ticks.table[entry].first_anchor;
  }
  ROBOCACHE_HD int64_t time_of(int64_t entry, int64_t tick) const {
    const auto& episode = ticks.table[entry];
    if (ticks.tick_ns != nullptr) return ticks.tick_ns[episode.origin + tick];
    return episode.origin + clock_tick_ns(episode.first_tick + tick, ticks.period_ns);
  }
  // Returns the number of an entry's ticks at or before a time.
  ROBOCACHE_HD int64_t passed(int64_t entry, int64_t time_ns) const {
    int64_t low = 0;
    int64_t high = count_of(entry);
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (time_of(entry, middle) <= time_ns) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

inline constexpr int kMomentPowers = 62;  // an episode has fewer than 2^62 ticks

// The moments of a batch's samples.
struct MomentBatch {
  WindowBatch batch;  // the windows of the anchors
  MomentKind kind;
  int64_t low_ns;                // for kFuture
  int64_t high_ns;               // for kFuture; the greatest int64: up to the episode's end
  double powers[kMomentPowers];  // for kGeometric: discount^(2^i), each the square of the previous one
  uint64_t key;                  // a hash of the rule: equal rules draw equal moments
  uint64_t seed;
  uint64_t epoch;
  const MomentSource* sources;  // one for each of the batch's sources
  int64_t* moments;             // [batch.count]: the ticks, counted over all sources
  // [keys][batch.count], or null; each key begins key_stride numbers after the previous one:
  int64_t* offset_ns;  // from the anchor's time to the moment's; the least int64: there is no moment
  int64_t* episode;    // the moment's, or -1
  int64_t keys;        // the number of the batch's keys with this rule; each gets its own copy
  int64_t key_stride;
};

// Draws i in [1, count] with a probability proportional to discount^i: the least i with discount^i < 1 - u (1 -
// discount^count), where u in [0, 1) is made of `bits`. Each product is rounded, so that every device draws the same.
ROBOCACHE_HD int64_t geometric_step(const double (&powers)[kMomentPowers], int64_t count, uint64_t bits) {
  double last_power = 1;  // discount^count
  for (int i = 0; i < kMomentPowers && count >> i != 0; ++i) {
    if ((count >> i & 1) != 0) last_power *= powers[i];
  }
  const double u = static_cast<double>(bits >> 11) * 0x1p-53;
  const double threshold = multiply_add(-u, 1 - last_power, 1.0);
  int64_t steps = 0;
  double power = 1;
  for (int i = kMomentPowers - 1; i >= 0; --i) {
    const int64_t next_steps = steps + (int64_t{1} << i);
    if (next_steps >= count || power * powers[i] < threshold) continue;
    steps = next_steps;
    power *= powers[i];
  }
  return steps + 1;
}

// Returns the moment of an anchor among its source's ticks.
ROBOCACHE_HD int64_t moment_of(const MomentBatch& m, const MomentSource& source, const Anchor& anchor, uint64_t state) {
  const uint64_t bits = mix_bits(state + 0x9e3779b97f4a7c15u);
  const int64_t entry = source.entry_of[anchor.episode];
  if (entry < 0) return source.none();
  const int64_t count = source.count_of(entry);
  const int64_t first = source.ticks.table[entry].first_anchor;
  switch (m.kind) {
    case MomentKind::kFuture: {
      const int64_t reach = m.batch.plan.snap_ns > 0 ? m.batch.plan.snap_ns - 1 : 0;
      const int64_t from = saturating_add(anchor.time_ns, saturating_add(m.low_ns, reach));
      const int64_t until = saturating_add(anchor.time_ns, saturating_add(m.high_ns, reach));
      const int64_t begin = source.passed(entry, from);
      const int64_t end = source.passed(entry, until);
      if (begin >= end) return source.none();
      return first + begin + static_cast<int64_t>(bits % static_cast<uint64_t>(end - begin));
    }
    case MomentKind::kLast:
      return first + count - 1;
    case MomentKind::kGeometric: {
      const int64_t passed = source.passed(entry, anchor.time_ns);
      if (passed >= count) return source.none();
      return first + passed - 1 + geometric_step(m.powers, count - passed, bits);
    }
    case MomentKind::kOther: {
      const MomentPeers peers = source.peers[entry];
      if (peers.count < 2) return source.none();
      auto nth = static_cast<int32_t>(bits % static_cast<uint64_t>(peers.count - 1));
      if (nth >= peers.index_in_task) ++nth;  // leaves out the anchor's own episode
      const int64_t other = source.members[peers.begin + nth];
      const uint64_t second_bits = mix_bits(state + 2 * 0x9e3779b97f4a7c15u);
      return source.ticks.table[other].first_anchor +
             static_cast<int64_t>(second_bits % static_cast<uint64_t>(source.count_of(other)));
    }
  }
  return source.none();
}

// Draws the moment of a sample.
ROBOCACHE_HD void draw_moment(const MomentBatch& m, int64_t sample) {
  const WindowPlan& plan = m.batch.plan;
  const Draw draw = m.batch.draw(sample);
  const WindowSource& windows = plan.sources == nullptr ? plan.first : plan.sources[draw.source];
  const MomentSource& source = m.sources[draw.source];
  const Anchor anchor = windows.anchors.at(draw.anchor);
  const int64_t number = m.batch.anchors != nullptr ? m.batch.anchors[sample] : m.batch.first_position + sample;
  uint64_t state = 0;
  const uint64_t parts[] = {m.seed, m.epoch, static_cast<uint64_t>(number), m.key};
  for (const uint64_t part : parts) state = mix_bits((state ^ part) + 0x9e3779b97f4a7c15u);
  const int64_t tick = moment_of(m, source, anchor, state);
  const Anchor moment = source.ticks.at(tick);
  const bool has_none = tick == source.none();
  m.moments[sample] = source.first_tick + tick;
  const bool is_later = moment.time_ns >= anchor.time_ns;
  uint64_t distance =
      is_later ? ns_between(moment.time_ns, anchor.time_ns) : ns_between(anchor.time_ns, moment.time_ns);
  if (distance > static_cast<uint64_t>(INT64_MAX)) distance = static_cast<uint64_t>(INT64_MAX);
  const int64_t offset_ns = has_none   ? INT64_MIN
                            : is_later ? static_cast<int64_t>(distance)
                                       : -static_cast<int64_t>(distance);
  for (int64_t key = 0; key < m.keys; ++key) {
    if (m.offset_ns != nullptr) m.offset_ns[key * m.key_stride + sample] = offset_ns;
    if (m.episode != nullptr) m.episode[key * m.key_stride + sample] = moment.episode;
  }
}

}  // namespace robocache
