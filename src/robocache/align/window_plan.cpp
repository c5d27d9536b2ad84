#include "robocache/align/window_plan.hpp"

#include <algorithm>
#include <map>

#include "robocache/interpolation/methods.hpp"

namespace robocache {
namespace {

// Returns the number of neighbouring features that are loaded and stored at once: all vectors are then aligned, in a
// row and in a step of the batch. Curved methods move the features that belong together, whatever their alignment: a
// quaternion, or one feature.
int32_t vector_of(const FeatureBlock& block, const WindowStream& stream) {
  if (is_curved(block.method)) return features_together(block.method);
  if (!is_floating(stream.rows.dtype)) return 1;
  // This is divisible by 4 or 2 if all four numbers are.
  const int64_t all_bits = block.begin | (block.end - block.begin) | stream.rows.features | stream.out_features;
  return all_bits % 4 == 0 ? 4 : all_bits % 2 == 0 ? 2 : 1;
}

// A group to which segments are added.
struct Draft {
  // The requested steps of a segment.
  struct Steps {
    WindowClock clock;            // without its moments
    std::vector<int64_t> deltas;  // a copy: add() passes a temporary stream of missing features
    int64_t array;                // the out_offset of the stream
    int64_t step;                 // the segment's first step
    int64_t feature;              // the segment's first feature
    int32_t strips;
  };

  std::vector<WindowSegment> segments;
  std::vector<Steps> steps;  // one for each segment
  int32_t picks = 0;
  int32_t strips = 0;
};

template <class T>
void append_bytes(const std::vector<T>& entries, std::vector<char>& bytes) {
  const auto* const from = reinterpret_cast<const char*>(entries.data());
  bytes.insert(bytes.end(), from, from + entries.size() * sizeof(T));
}

// Whether steps on both clocks can share moments.
bool can_share_moments(const WindowClock& a, const WindowClock& b) {
  return a.rows == b.rows && a.counts_rows == b.counts_rows && a.offset_ns == b.offset_ns;
}

// Completes a group with the clocks of its segments, each once, and the targets of their steps, each once per clock.
WindowGroup finish_group(Draft& draft, DeviceTables& tables) {
  draft.strips = 0;
  for (size_t i = 0; i < draft.segments.size(); ++i) {
    draft.segments[i].strip_begin = draft.strips;
    draft.strips += draft.steps[i].strips;
  }
  std::vector<WindowClock> clocks;
  std::vector<std::map<int64_t, std::vector<WindowSlot>>> slots_of_deltas;  // one for each clock
  for (size_t i = 0; i < draft.segments.size(); ++i) {
    WindowSegment& segment = draft.segments[i];
    const Draft::Steps& steps = draft.steps[i];
    const auto clock = std::find_if(clocks.begin(), clocks.end(),
                                    [&](const WindowClock& known) { return can_share_moments(known, steps.clock); });
    const auto index = static_cast<size_t>(clock - clocks.begin());
    if (clock == clocks.end()) {
      clocks.push_back(steps.clock);
      slots_of_deltas.emplace_back();
    }
    segment.clock = static_cast<int16_t>(index);
    for (size_t step = 0; step < steps.deltas.size(); ++step) {
      const auto pick = static_cast<size_t>(segment.pick_begin) + step;
      slots_of_deltas[index][steps.deltas[step]].push_back(
          {static_cast<uint16_t>(i), static_cast<uint16_t>(step), static_cast<uint16_t>(pick)});
    }
  }
  std::vector<WindowMoment> moments;
  std::vector<WindowSlot> slots;
  for (size_t index = 0; index < slots_of_deltas.size(); ++index) {
    clocks[index].moment_begin = static_cast<int32_t>(moments.size());
    for (const auto& [delta, slots_of_delta] : slots_of_deltas[index]) {
      const auto begin = static_cast<int32_t>(slots.size());
      slots.insert(slots.end(), slots_of_delta.begin(), slots_of_delta.end());
      moments.push_back({delta, begin, static_cast<int16_t>(slots_of_delta.size()), static_cast<int16_t>(index)});
    }
    clocks[index].moment_end = static_cast<int32_t>(moments.size());
  }
  // Finds the segments whose steps have consecutive moments.
  for (size_t i = 0; i < draft.segments.size(); ++i) {
    WindowSegment& segment = draft.segments[i];
    const auto has_target = [&](size_t moment, size_t step) {
      return moment < moments.size() && moments[moment].clock == segment.clock &&
             moments[moment].delta == draft.steps[i].deltas[step];
    };
    auto first = static_cast<size_t>(clocks[static_cast<size_t>(segment.clock)].moment_begin);
    while (!has_target(first, 0)) ++first;
    size_t step = 1;
    while (step < draft.steps[i].deltas.size() && has_target(first + step, step)) ++step;
    const bool in_order = step == draft.steps[i].deltas.size();
    segment.first_moment = in_order ? static_cast<int16_t>(first) : int16_t{-1};
    WindowClock& clock = clocks[static_cast<size_t>(segment.clock)];
    const bool has_gaps = moments[first + step - 1].delta - moments[first].delta != static_cast<int64_t>(step) - 1 ||
                          segment.tolerance_ns >= 0;
    clock.in_order = clock.in_order && in_order && !(clock.counts_rows && has_gaps);
  }
  std::vector<char> bytes;
  append_bytes(moments, bytes);
  append_bytes(draft.segments, bytes);
  append_bytes(clocks, bytes);
  append_bytes(slots, bytes);
  return {.tables = tables.put(bytes),
          .segment_count = static_cast<int32_t>(draft.segments.size()),
          .clock_count = static_cast<int32_t>(clocks.size()),
          .moment_count = static_cast<int32_t>(moments.size()),
          .picks = draft.picks,
          .strips = draft.strips};
}

// Adds the steps of a run of features to the last draft while it has room, then to new ones.
void add(const WindowStream& stream, const FeatureBlock& block, int32_t most_picks, std::vector<Draft>& drafts) {
  const int64_t value_bytes = dtype_size(stream.rows.dtype);
  const int64_t out_bytes = dtype_size(stream.out_dtype);
  const int64_t step_bytes = stream.out_features * out_bytes;
  const std::vector<int64_t>& deltas = stream.deltas();
  const auto count = static_cast<int64_t>(deltas.size());
  WindowSegment common{};
  common.file = stream.rows.file;
  common.file.offset += block.begin * value_bytes;
  if (stream.rows.values != nullptr) {
    common.values = static_cast<const char*>(stream.rows.values) + block.begin * value_bytes;
  }
  if (stream.scale != nullptr) {
    const int64_t skipped = block.begin * (stream.rows.dtype == DType::kFloat64 ? 8 : 4);
    common.scale = static_cast<const char*>(stream.scale) + skipped;
    common.shift = static_cast<const char*>(stream.shift) + skipped;
    common.scale_step = stream.scale_per_step ? stream.rows.features : 0;
    common.clip = stream.clip;
  }
  common.features = block.end - block.begin;
  common.row_bytes = stream.rows.features * value_bytes;
  common.step_bytes = step_bytes;
  common.max_gap_ns = stream.max_gap_ns;
  common.tolerance_ns = stream.tolerance_ns;
  common.causal = stream.causal;
  common.out_sample = count * step_bytes;
  common.mask_steps = count;
  common.vector = vector_of(block, stream);
  common.value_dtype = stream.rows.dtype;
  common.out_dtype = stream.out_dtype;
  common.method = block.method;

  // The first block writes the masks and ages of the steps.
  const bool is_first_block = &block == stream.methods.data();
  common.vectors = static_cast<int32_t>(common.features / common.vector);
  common.lanes = std::clamp(common.vectors, 1, kTileVectors);
  common.columns = (common.vectors + kTileVectors - 1) / kTileVectors;
  common.lane_share = (65536 + common.lanes - 1) / common.lanes;
  common.tile_steps = kTileVectors / common.lanes;
  const int64_t strip_steps = int64_t{common.tile_steps} * kStripTiles;
  const int64_t most_steps = std::clamp<int64_t>((1 << 20) / std::max(common.columns, 1), 1, most_picks);
  for (int64_t step = 0; step < count;) {
    if (drafts.empty() || drafts.back().picks == most_picks || drafts.back().strips >= 1 << 20 ||
        drafts.back().segments.size() == kMaxGroupSegments) {
      drafts.emplace_back();
    }
    Draft& draft = drafts.back();
    const int64_t step_count = std::min({count - step, int64_t{most_picks - draft.picks}, most_steps});
    WindowSegment segment = common;
    segment.first_delta = deltas[static_cast<size_t>(step)];
    segment.steps = static_cast<int32_t>(step_count);
    segment.out_offset = stream.out_offset + step * step_bytes + block.begin * out_bytes;
    if (common.scale != nullptr) {
      const int64_t skipped_bytes = step * common.scale_step * (stream.rows.dtype == DType::kFloat64 ? 8 : 4);
      segment.scale = static_cast<const char*>(common.scale) + skipped_bytes;
      segment.shift = static_cast<const char*>(common.shift) + skipped_bytes;
    }
    segment.pad_offset = is_first_block && stream.pad_offset >= 0 ? stream.pad_offset + step : -1;
    segment.age_offset = is_first_block && stream.age_offset >= 0 ? stream.age_offset + 8 * step : -1;
    segment.pick_begin = draft.picks;
    draft.picks += static_cast<int32_t>(step_count);
    const int32_t strips = static_cast<int32_t>((step_count + strip_steps - 1) / strip_steps) * common.columns;
    draft.strips += strips;
    draft.segments.push_back(segment);
    const auto deltas_begin = deltas.begin() + step;
    const WindowClock clock{.rows = stream.rows.clock,
                            .offset_ns = stream.counts_rows() ? stream.offset_ns : 0,
                            .moment_begin = 0,
                            .moment_end = 0,
                            .counts_rows = stream.counts_rows(),
                            .in_order = true};
    draft.steps.push_back(
        {clock, {deltas_begin, deltas_begin + step_count}, stream.out_offset, step, block.begin, strips});
    step += step_count;
  }
}

// Adds the windows of a stream, and zeros for the features that it lacks.
void add(const WindowStream& stream, int32_t most_picks, std::vector<Draft>& drafts) {
  for (const FeatureBlock& block : stream.methods) add(stream, block, most_picks, drafts);
  if (stream.rows.features == stream.out_features) return;
  WindowStream missing_features = stream;
  missing_features.rows = {.clock = {}, .values = nullptr, .features = stream.out_features, .dtype = stream.rows.dtype};
  missing_features.scale = nullptr;
  add(missing_features, {stream.rows.features, stream.out_features, InterpolationMethod::kPrevious}, most_picks,
      drafts);
}

// Returns the only segment of an array in a draft, or null.
WindowSegment* only_segment(Draft& draft, int64_t array) {
  WindowSegment* only = nullptr;
  for (size_t i = 0; i < draft.segments.size(); ++i) {
    if (draft.steps[i].array != array) continue;
    if (only != nullptr) return nullptr;
    only = &draft.segments[i];
  }
  return only;
}

bool has_array(const Draft& draft, int64_t array) {
  return std::ranges::any_of(draft.steps, [&](const Draft::Steps& steps) { return steps.array == array; });
}

// Whether segments can convert a key: each group with segments of the key must have its base, in one segment. Poses also
// need whole rows of float32.
bool segments_can_convert(std::vector<std::vector<Draft>>& sources, const ConvertActionsParams& key) {
  for (std::vector<Draft>& drafts : sources) {
    bool has_base = false;
    for (Draft& draft : drafts) {
      if (!has_array(draft, key.x_offset)) continue;
      const WindowSegment* const base = only_segment(draft, key.base_row_offset);
      if (base == nullptr || base->features != key.base_row || !is_floating(base->value_dtype)) return false;
      if (key.poses_only && base->value_dtype != DType::kFloat32) return false;
      for (size_t i = 0; key.poses_only && i < draft.segments.size(); ++i) {
        const bool has_rows =
            draft.segments[i].features == key.features && draft.segments[i].value_dtype == DType::kFloat32;
        if (draft.steps[i].array == key.x_offset && !has_rows) return false;
      }
      has_base = true;
    }
    if (!has_base) return false;
  }
  return true;
}

// Lets the segments of a key convert, normalise, and write the results. The base has no strips of its own, and poses have
// none.
void convert_segments(Draft& draft, const ConvertActionsParams& key, const ConvertActionsParams* poses,
                      int64_t source) {
  WindowSegment& base = *only_segment(draft, key.base_row_offset);
  for (size_t i = 0; i < draft.segments.size(); ++i) {
    WindowSegment& segment = draft.segments[i];
    Draft::Steps& steps = draft.steps[i];
    if (&segment == &base) steps.strips = 0;
    if (steps.array != key.x_offset) continue;
    const int64_t out_bytes = dtype_size(key.out_dtype);
    segment.out_dtype = key.out_dtype;
    segment.step_bytes = key.features * out_bytes;
    segment.out_sample = key.steps * segment.step_bytes;
    segment.out_offset = key.out_offset + steps.step * segment.step_bytes + steps.feature * out_bytes;
    if (!key.shows_ages) segment.age_offset = -1;
    segment.poses = poses;
    if (poses != nullptr) {
      steps.strips = 0;
    } else {
      segment.subtracted = key.subtracted + steps.feature;
    }
    segment.base_offset = key.base_offset + steps.feature * int64_t{sizeof(float)};
    segment.base_sample = key.features * int64_t{sizeof(float)};
    segment.base_pick = base.pick_begin;
    segment.base = static_cast<int16_t>(&base - draft.segments.data());
    segment.base_dtype = base.value_dtype;
    if (key.scale == nullptr) continue;
    const int64_t row = source * key.scale_rows + (key.scale_per_step ? steps.step : 0);
    segment.scale = static_cast<const float*>(key.scale) + row * key.features + steps.feature;
    segment.shift = static_cast<const float*>(key.shift) + row * key.features + steps.feature;
    segment.scale_step = key.scale_per_step ? key.features : 0;
    segment.clip = key.clip;
  }
}

}  // namespace

WindowPlan window_plan(std::span<const WindowStreams> sources, DeviceTables& tables,
                       std::vector<ConvertActionsParams>* conversions) {
  WindowPlan plan{};
  for (const WindowStreams& source : sources) {
    for (const WindowStream& stream : source.streams) {
      plan.special = plan.special || stream.counts_rows() || stream.scale_per_step || stream.clip;
      for (const FeatureBlock& block : stream.methods) plan.curved = plan.curved || is_curved(block.method);
    }
  }
  std::vector<std::vector<Draft>> source_drafts(sources.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    for (const WindowStream& stream : sources[i].streams) {
      add(stream, plan.curved ? kMaxGroupCurvePicks : kMaxGroupPicks, source_drafts[i]);
    }
  }
  if (conversions != nullptr && !plan.curved) {
    std::erase_if(*conversions, [&](const ConvertActionsParams& key) {
      if ((key.subtracted == nullptr && !key.poses_only) || !segments_can_convert(source_drafts, key)) return false;
      const ConvertActionsParams* const poses = key.poses_only ? tables.put(std::span(&key, 1)) : nullptr;
      for (size_t i = 0; i < sources.size(); ++i) {
        for (Draft& draft : source_drafts[i]) {
          if (has_array(draft, key.x_offset)) convert_segments(draft, key, poses, static_cast<int64_t>(i));
        }
      }
      plan.subtracts = plan.subtracts || poses == nullptr;
      plan.has_poses = plan.has_poses || poses != nullptr;
      plan.special = plan.special || key.scale_per_step || key.clip;
      return true;
    });
  }
  std::vector<WindowSource> planned;
  for (size_t i = 0; i < sources.size(); ++i) {
    const WindowStreams& source = sources[i];
    std::vector<WindowGroup> groups;
    int64_t sample_bytes = 0;
    for (Draft& draft : source_drafts[i]) {
      for (const WindowSegment& segment : draft.segments) {
        sample_bytes += segment.steps * segment.features * dtype_size(segment.out_dtype);
      }
      groups.push_back(finish_group(draft, tables));
      plan.most_picks = std::max(plan.most_picks, groups.back().picks);
      plan.most_moments = std::max(plan.most_moments, groups.back().moment_count);
    }
    plan.sample_bytes = std::max(plan.sample_bytes, sample_bytes);
    planned.push_back({.anchors = source.anchors,
                       .groups = tables.put(groups),
                       .constants = tables.put(source.constants),
                       .group_count = static_cast<int32_t>(groups.size()),
                       .constant_count = static_cast<int32_t>(source.constants.size())});
    plan.group_count = std::max(plan.group_count, planned.back().group_count);
    plan.has_constants = plan.has_constants || !source.constants.empty();
  }
  plan.first = planned[0];
  if (planned.size() > 1) plan.sources = tables.put(planned);
  return plan;
}

}  // namespace robocache
