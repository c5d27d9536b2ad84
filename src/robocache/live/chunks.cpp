#include "robocache/live/chunks.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "robocache/core/arguments.hpp"
#include "robocache/interpolation/methods/angle.hpp"
#include "robocache/interpolation/methods/slerp.hpp"
#include "robocache/source/ring.hpp"

namespace robocache {

Chunks::Chunks(ChunkOptions options) : options_(std::move(options)) {
  if (!(options_.fade_ns > 0)) refuse("fade_s: expected above 0, got ", options_.fade_ns / 1e9);
  if (!std::isfinite(options_.decay)) refuse("decay: expected a finite number, got ", options_.decay);
}

namespace {

// Converts numbers of one form of rotations to another. Returns false if they are no rotation. Lengths do not matter.
bool convert(const RotationForm& source, const double* x, const RotationForm& target, double* y) {
  double padded[kMostRotation] = {};
  double converted[kMostRotation];
  std::copy_n(x, source.width, padded);
  const bool is_rotation = convert_rotation(source, target, padded, std::numeric_limits<double>::infinity(), converted);
  std::copy_n(converted, target.width, y);
  return is_rotation;
}

}  // namespace

void Chunks::mix_turns(std::vector<double>& action, const double* target, double share) const {
  static const RotationForm quaternion = rotation_form("quat_xyzw", "turns");
  for (const ChunkTurn& turn : options_.turns) {
    double* const from = action.data() + turn.begin;
    const double* const towards = target + turn.begin;
    if (!turn.rotation) {
      from[0] = Angle::value(CurveWeights<double>{.along = share}, 1, 1, {from[0], towards[0]});
      continue;
    }
    double a[4];
    double b[4];
    double mixed[4];
    if (!convert(*turn.rotation, from, quaternion, a) || !convert(*turn.rotation, towards, quaternion, b)) {
      std::copy_n(towards, turn.width(), from);  // nothing to mix
      continue;
    }
    slerp(a, b, share, 1 - share, mixed);
    convert(quaternion, mixed, *turn.rotation, from);
  }
}

void Chunks::put(std::span<const int64_t> time_ns, std::span<const double> actions) {
  const auto steps = std::ssize(time_ns);
  if (steps == 0 || actions.empty() || std::ssize(actions) % steps != 0) {
    refuse("actions: expected as many numbers for each of ", steps, " steps, got ", actions.size(), " in all");
  }
  if (std::ranges::adjacent_find(time_ns, std::greater_equal()) != time_ns.end()) {
    refuse("time_ns: expected ascending stamps");
  }
  if (time_ns.front() <= -kLatestNs || time_ns.back() >= kLatestNs) {
    refuse("time_ns: expected stamps between -2^62 and 2^62 ns, got ", time_ns.front(), " to ", time_ns.back());
  }
  if (!std::ranges::all_of(actions, [](double number) { return std::isfinite(number); })) {
    refuse("actions: expected finite numbers");
  }
  const int64_t features = std::ssize(actions) / steps;
  const int64_t length = steps > 1 ? time_ns[time_ns.size() - 1] - time_ns[time_ns.size() - 2] : 1;
  const int64_t end_ns = time_ns.back() + std::min(length, kLatestNs);  // without overflow
  Chunk chunk{{time_ns.begin(), time_ns.end()}, {actions.begin(), actions.end()}, end_ns, {}};
  const std::scoped_lock lock(mutex_);
  if (features_ != 0 && features != features_) {
    refuse("actions: expected ", features_, " features, got ", features);
  }
  for (const ChunkTurn& turn : options_.turns) {
    if (turn.begin + turn.width() > features) {
      refuse("actions: expected at least ", turn.begin + turn.width(), " features, got ", features);
    }
  }
  features_ = features;
  const auto first_later =
      std::ranges::upper_bound(chunks_, time_ns.front(), {}, [](const Chunk& other) { return other.time_ns.front(); });
  chunks_.insert(first_later, std::move(chunk));
  if (chunks_.size() > kMostChunks) chunks_.pop_front();
}

bool Chunks::at(int64_t time_ns, std::vector<double>& action) {
  const std::scoped_lock lock(mutex_);
  while (chunks_.size() > 1 && chunks_.front().end_ns <= time_ns) chunks_.pop_front();
  candidates_.clear();
  for (Chunk& chunk : chunks_) {
    const int64_t step = begun_steps(chunk, time_ns);
    if (step == 0 || time_ns >= chunk.end_ns) continue;
    // The first chunk has nothing to fade from. It keeps that even if an older chunk comes late.
    if (!chunk.fades_from) chunk.fades_from = candidates_.empty() ? INT64_MIN : time_ns;
    candidates_.push_back({&chunk, chunk.actions.data() + (step - 1) * features_});
  }
  if (candidates_.empty()) {
    ++starved_;
    return false;
  }
  const auto features = static_cast<size_t>(features_);
  if (candidates_.size() == 1 || options_.mode == ChunkMode::kNewest) {
    action.assign(candidates_.back().action, candidates_.back().action + features_);
    return true;
  }
  // Relative to the heaviest chunk, so that none overflows; of a negative decay that is the newest.
  const double heaviest = options_.decay < 0 ? static_cast<double>(candidates_.size() - 1) : 0;
  const auto weight_of = [&](size_t i) { return std::exp(-options_.decay * (static_cast<double>(i) - heaviest)); };
  action.assign(candidates_[0].action, candidates_[0].action + features_);
  mixed_turns_ = action;
  double weights = weight_of(0);
  if (options_.mode == ChunkMode::kEnsemble) {
    for (double& number : action) number *= weights;
  }
  for (size_t i = 1; i < candidates_.size(); ++i) {
    const auto& [chunk, target] = candidates_[i];
    if (options_.mode == ChunkMode::kEnsemble) {
      const double weight = weight_of(i);
      if (weight == 0) continue;
      weights += weight;
      for (size_t k = 0; k < features; ++k) action[k] += weight * target[k];
      mix_turns(mixed_turns_, target, weight / weights);
      continue;
    }
    const int64_t fade_begin = *chunk->fades_from;
    const double share =
        fade_begin == INT64_MIN ? 1 : std::max(0.0, static_cast<double>(time_ns - fade_begin) / options_.fade_ns);
    if (share >= 1) {
      std::copy_n(target, features, action.begin());
      std::copy_n(target, features, mixed_turns_.begin());
      continue;
    }
    for (size_t k = 0; k < features; ++k) action[k] += share * (target[k] - action[k]);
    mix_turns(mixed_turns_, target, share);
  }
  if (options_.mode == ChunkMode::kEnsemble) {
    for (double& number : action) number /= weights;
  }
  for (const ChunkTurn& turn : options_.turns) {
    std::copy_n(mixed_turns_.begin() + turn.begin, turn.width(), action.begin() + turn.begin);
  }
  return true;
}

int64_t Chunks::begun_steps(const Chunk& chunk, int64_t time_ns) {
  return std::ranges::upper_bound(chunk.time_ns, time_ns) - chunk.time_ns.begin();
}

Chunks::Rest Chunks::leftover(int64_t time_ns) const {
  const std::scoped_lock lock(mutex_);
  if (chunks_.empty()) return {};
  const Chunk& newest = chunks_.back();
  const int64_t step = begun_steps(newest, time_ns);
  return {{newest.time_ns.begin() + step, newest.time_ns.end()},
          {newest.actions.begin() + step * features_, newest.actions.end()}};
}

int64_t Chunks::frozen(int64_t time_ns) const {
  const std::scoped_lock lock(mutex_);
  return chunks_.empty() ? 0 : begun_steps(chunks_.back(), time_ns);
}

std::optional<int64_t> Chunks::covered_until_ns() const {
  const std::scoped_lock lock(mutex_);
  std::optional<int64_t> until;
  for (const Chunk& chunk : chunks_) until = std::max(until.value_or(chunk.end_ns), chunk.end_ns);
  return until;
}

int64_t Chunks::starved() const {
  const std::scoped_lock lock(mutex_);
  return starved_;
}

}  // namespace robocache
