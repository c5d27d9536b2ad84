#include "robocache/batch/plans.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "robocache/align/window_batch.hpp"
#include "robocache/align/window_plan.hpp"

namespace robocache {

WindowBatch samples_of(const LoaderOptions& options, const Wanted& wanted, const Mixture& mixture) {
  const BatchPosition& position = wanted.position;
  WindowBatch batch{};
  batch.count = wanted.count;
  batch.first_position =
      options.shard_episodes ? position.samples / options.world_size : position.samples + options.rank * wanted.count;
  batch.mixture = mixture;
  batch.seed = position.seed;
  batch.epoch = static_cast<uint64_t>(position.epoch);
  return batch;
}

PartPlans::PartPlans(Part part, const BatchKeys& keys, const LoaderStreams& streams, const Draws& draws,
                     const AnchorArrays& anchors, std::span<const GoalArrays> goals)
    : part_(part),
      keys_(keys),
      streams_(streams),
      draws_(draws),
      device_(part == Part::kHost ? Device{} : streams.options().device),
      draw_tables_(part == Part::kHost ? draws.on_host() : draws.on_device()),
      tables_(device_) {
  for (const GoalArrays& goal : goals) rules_.push_back(goal.rule);
  anchors_ = plan_of({}, anchors);
  for (const GoalArrays& goal : goals) {
    GoalPlan& plan = goals_.emplace_back(GoalPlan{goal, moment_batch(goal.rule), plan_of(goal.rule, {})});
    plan.moments.keys = std::ranges::count(keys, goal.rule, [](const auto& key) { return key->spec().moment; });
    // In int64: the keys' arrays lie side by side, at multiples of 256 bytes.
    plan.moments.key_stride = (streams.options().batch_size * 8 + 255) / 256 * 32;
    plan.moments.sources = draw_tables_.moments_of_parts;
  }
}

bool PartPlans::converts_at(const BatchKey& key, const Moment& moment) const {
  const auto order_of = [&](const Moment& plan_moment) {  // the plan of the anchors runs first
    return plan_moment ? std::ranges::find(rules_, *plan_moment) - rules_.begin() + 1 : 0;
  };
  return order_of(moment) == std::max(order_of(key.spec().moment), order_of(key.base_moment()));
}

PartPlans::Plan PartPlans::plan_of(const Moment& moment, const AnchorArrays& arrays) {
  std::vector<WindowStreams> windows;
  std::vector<size_t> sources;  // the source of each window
  const auto add = [&](size_t source, const AnchorIndex& anchors) {
    WindowStreams& window = windows.emplace_back(WindowStreams{anchors, {}, {}});
    sources.push_back(source);
    for (const auto& key : keys_) key->add_window(part_, moment, source, window, tables_);
  };
  const bool has_source_constants =
      arrays.source >= 0 && draws_.has_weighted_parts();  // the plan itself would write the part
  if (moment) {
    for (size_t i = 0; i < draw_tables_.moments.size(); ++i) add(i, draw_tables_.moments[i].ticks);
  } else {
    for (size_t i = 0; i < draws_.parts().size(); ++i) {
      const size_t source = draws_.parts()[i].source;
      add(source, draw_tables_.parts[i]);
      if (!has_source_constants) continue;
      const auto number = std::bit_cast<std::array<uint8_t, 8>>(static_cast<int64_t>(source));
      const uint8_t* const value = tables_.put(std::span<const uint8_t>(number));
      windows.back().constants.push_back({value, std::ssize(number), arrays.source});
    }
  }
  std::vector<ConvertActionsParams> conversions;
  for (const auto& key : keys_) {
    if (converts_at(*key, moment)) key->add_conversion(part_, sources, conversions, tables_);
  }
  WindowPlan plan = window_plan(windows, tables_, &conversions);
  plan.conversions = tables_.put(conversions);
  plan.conversion_count = static_cast<int32_t>(conversions.size());
  // Converting one number takes as long as copying 4 or 16 bytes.
  for (const ConvertActionsParams& params : conversions) {
    plan.sample_bytes += int64_t{params.steps} * params.out_features * (params.by_feature ? 4 : 16);
  }
  plan.time_offset = arrays.time;
  plan.episode_offset = arrays.episode;
  plan.source_offset = has_source_constants ? -1 : arrays.source;
  plan.anchor_offset = arrays.anchor;
  plan.snap_ns = streams_.spec(0).snap_ns;
  return {plan, arrays.time >= 0 || plan.group_count > 0 || plan.has_constants || !conversions.empty()};
}

WindowBatch PartPlans::batch_of(const Wanted& wanted, const Plan& plan, const Mixture& mixture, void* memory) const {
  WindowBatch batch = samples_of(streams_.options(), wanted, mixture);
  batch.plan = plan.windows;
  batch.memory = memory;
  if (wanted.anchors.empty()) return batch;
  batch.anchors = part_ == Part::kHost ? wanted.anchors.data() : wanted.anchors_on_device;
  batch.draws = part_ == Part::kHost ? wanted.draws.data() : wanted.draws_on_device;
  return batch;
}

void PartPlans::run(const Wanted& wanted, void* memory, CudaStream stream) const {
  const WindowBatch around_anchors = batch_of(wanted, anchors_, draws_.mixture_at(wanted.position, device_), memory);
  if (anchors_.runs) window_batch(around_anchors, device_, stream);
  for (const auto& [arrays, moments, plan] : goals_) {
    if (!plan.runs && arrays.offset < 0) continue;
    const auto pointer_at = [&](int64_t offset) {
      return offset < 0 ? nullptr : reinterpret_cast<int64_t*>(static_cast<char*>(memory) + offset);
    };
    MomentBatch drawn = moments;
    drawn.batch = around_anchors;
    drawn.seed = around_anchors.seed;
    drawn.epoch = around_anchors.epoch;
    drawn.moments = pointer_at(arrays.moments);
    drawn.offset_ns = pointer_at(arrays.offset);
    drawn.episode = pointer_at(arrays.episode);
    draw_moments(drawn, device_, stream);
    if (!plan.runs) continue;
    WindowBatch around_moments = batch_of(wanted, plan, draw_tables_.moment_mixture, memory);
    around_moments.anchors = drawn.moments;
    window_batch(around_moments, device_, stream);
  }
}

int64_t PartPlans::sample_bytes() const {
  int64_t bytes = anchors_.windows.sample_bytes;
  for (const GoalPlan& goal : goals_) bytes += goal.plan.windows.sample_bytes;
  return bytes;
}

}  // namespace robocache
