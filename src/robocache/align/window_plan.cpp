#include "robocache/align/window_plan.hpp"

#include <algorithm>
#include <map>

#include "robocache/align/window_math.hpp"

namespace robocache {
namespace {

// How many neighbours of a row and of a batch's step can be moved at once. Rotations go by quaternions, whatever their
// alignment, other curves one by one.
int32_t vector_of(const FeatureBlock& block, const StreamRows& rows) {
  if (block.method == InterpolationMethod::kSlerp) return 4;
  if (is_curved(block.method) || !is_floating(rows.dtype)) return 1;
  const int64_t together = block.begin | (block.end - block.begin) | rows.features;
  return together % 4 == 0 ? 4 : together % 2 == 0 ? 2 : 1;
}

struct Planner {
  // A segment's steps as they were asked for.
  struct Steps {
    StreamClock clock;
    std::span<const int64_t> delta_ns;
  };

  bool curved = false;
  std::vector<WindowSegment> segments;
  std::vector<Steps> steps;  // of each segment
  std::vector<WindowGroup> groups;
  std::vector<WindowClock> clocks;
  std::vector<WindowMoment> moments;
  std::vector<WindowSlot> slots;
  int32_t picks = 0;  // of the last group

  // A run of features into groups, steps by steps: what is left of the open group, then new ones.
  void add(const WindowStream& stream, const FeatureBlock& block) {
    const int64_t value_bytes = dtype_size(stream.rows.dtype);
    const int64_t out_bytes = dtype_size(stream.out_dtype);
    const int64_t step_bytes = stream.rows.features * out_bytes;
    const auto count = static_cast<int64_t>(stream.delta_ns.size());
    WindowSegment whole{};
    whole.values = static_cast<const char*>(stream.rows.values) + block.begin * value_bytes;
    if (stream.scale != nullptr) {
      const int64_t skipped = block.begin * (stream.rows.dtype == DType::kFloat64 ? 8 : 4);
      whole.scale = static_cast<const char*>(stream.scale) + skipped;
      whole.shift = static_cast<const char*>(stream.shift) + skipped;
    }
    whole.features = block.end - block.begin;
    whole.row_features = stream.rows.features;
    whole.max_gap_ns = stream.max_gap_ns;
    whole.out_sample = count * step_bytes;
    whole.pad_sample = count;
    whole.vector = vector_of(block, stream.rows);
    whole.value_dtype = stream.rows.dtype;
    whole.out_dtype = stream.out_dtype;
    whole.method = block.method;

    const int32_t most_picks = curved ? kMaxGroupCurvePicks : kMaxGroupPicks;
    const int64_t vectors = whole.features / whole.vector;
    const int64_t most_steps = std::clamp<int64_t>((int64_t{1} << 24) / std::max<int64_t>(vectors, 1), 1, most_picks);
    for (int64_t step = 0; step < count;) {
      if (groups.empty() || picks == most_picks || groups.back().items >= 1 << 24 ||
          groups.back().segment_end - groups.back().segment_begin == kMaxGroupSegments) {
        const auto next = static_cast<int32_t>(segments.size());
        groups.push_back({});
        groups.back().segment_begin = groups.back().segment_end = next;
        picks = 0;
      }
      WindowGroup& group = groups.back();
      const int64_t take = std::min({count - step, int64_t{most_picks - picks}, most_steps});
      WindowSegment segment = whole;
      segment.first_delta_ns = stream.delta_ns[static_cast<size_t>(step)];
      segment.steps = static_cast<int32_t>(take);
      segment.out_offset = stream.out_offset + step * step_bytes + block.begin * out_bytes;
      segment.pad_offset = block.begin == 0 ? stream.pad_offset + step : -1;
      segment.pick_begin = picks;
      segment.item_begin = group.items;
      picks += static_cast<int32_t>(take);
      group.items += static_cast<int32_t>(take * vectors);
      ++group.segment_end;
      segments.push_back(segment);
      steps.push_back({stream.rows.clock,
                       std::span(stream.delta_ns).subspan(static_cast<size_t>(step), static_cast<size_t>(take))});
      step += take;
    }
  }

  // The clocks of a group's segments, each once, and the times that their steps aim at, each once a clock.
  void search(WindowGroup& group) {
    group.clock_begin = static_cast<int32_t>(clocks.size());
    group.moment_begin = static_cast<int32_t>(moments.size());
    std::vector<std::map<int64_t, std::vector<WindowSlot>>> aims;  // of each clock
    for (int32_t at = group.segment_begin; at < group.segment_end; ++at) {
      const Steps& asked = steps[static_cast<size_t>(at)];
      const auto first = clocks.begin() + group.clock_begin;
      const auto clock =
          std::find_if(first, clocks.end(), [&](const WindowClock& known) { return known.rows == asked.clock; });
      const auto place = static_cast<size_t>(clock - first);
      if (clock == clocks.end()) {
        clocks.push_back({asked.clock, 0, 0});
        aims.emplace_back();
      }
      segments[static_cast<size_t>(at)].clock = static_cast<int16_t>(place);
      for (size_t step = 0; step < asked.delta_ns.size(); ++step) {
        const auto pick = static_cast<size_t>(segments[static_cast<size_t>(at)].pick_begin) + step;
        aims[place][asked.delta_ns[step]].push_back({static_cast<uint16_t>(at - group.segment_begin),
                                                     static_cast<uint16_t>(step), static_cast<uint16_t>(pick)});
      }
    }
    for (size_t place = 0; place < aims.size(); ++place) {
      WindowClock& clock = clocks[static_cast<size_t>(group.clock_begin) + place];
      clock.moment_begin = static_cast<int32_t>(moments.size());
      for (const auto& [delta_ns, served] : aims[place]) {
        const auto begin = static_cast<int32_t>(slots.size());
        slots.insert(slots.end(), served.begin(), served.end());
        moments.push_back({delta_ns, begin, static_cast<int32_t>(slots.size())});
      }
      clock.moment_end = static_cast<int32_t>(moments.size());
    }
    group.clock_end = static_cast<int32_t>(clocks.size());
    group.moment_end = static_cast<int32_t>(moments.size());
  }
};

}  // namespace

WindowPlan window_plan(std::span<const WindowStream> streams, DeviceTables& tables) {
  Planner planner;
  for (const WindowStream& stream : streams) {
    for (const FeatureBlock& block : stream.methods) planner.curved = planner.curved || is_curved(block.method);
  }
  for (const WindowStream& stream : streams) {
    for (const FeatureBlock& block : stream.methods) planner.add(stream, block);
  }
  for (WindowGroup& group : planner.groups) planner.search(group);
  WindowPlan plan{};
  plan.segments = tables.put(planner.segments);
  plan.clocks = tables.put(planner.clocks);
  plan.moments = tables.put(planner.moments);
  plan.slots = tables.put(planner.slots);
  plan.groups = tables.put(planner.groups);
  plan.group_count = static_cast<int32_t>(planner.groups.size());
  plan.curved = planner.curved;
  return plan;
}

}  // namespace robocache
