#include "robocache/live/chunks.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "robocache/core/arguments.hpp"

namespace robocache {

Chunks::Chunks(ChunkOptions options) : options_(options) {
  if (!(options.fade_ns > 0)) refuse("fade_s: expected above 0, got ", number_text(options.fade_ns / 1e9));
  if (!std::isfinite(options.decay)) refuse("decay: expected a finite number, got ", number_text(options.decay));
}

void Chunks::put(std::span<const int64_t> time_ns, std::span<const double> actions) {
  const auto steps = std::ssize(time_ns);
  if (steps == 0 || actions.empty() || std::ssize(actions) % steps != 0) {
    refuse("actions: expected as many numbers for each of ", std::to_string(steps), " steps, got ",
           std::to_string(actions.size()), " in all");
  }
  if (std::ranges::adjacent_find(time_ns, std::greater_equal()) != time_ns.end()) {
    refuse("time_ns: expected ascending stamps");
  }
  if (!std::ranges::all_of(actions, [](double number) { return std::isfinite(number); })) {
    refuse("actions: expected finite numbers");
  }
  const int64_t features = std::ssize(actions) / steps;
  if (features_ != 0 && features != features_) {
    refuse("actions: expected ", std::to_string(features_), " features, got ", std::to_string(features));
  }
  features_ = features;
  const int64_t length = steps > 1 ? time_ns[time_ns.size() - 1] - time_ns[time_ns.size() - 2] : 1;
  Chunk chunk{{time_ns.begin(), time_ns.end()}, {actions.begin(), actions.end()}, time_ns.back() + length};
  const auto behind =
      std::ranges::upper_bound(chunks_, time_ns.front(), {}, [](const Chunk& one) { return one.time_ns.front(); });
  if (behind == chunks_.end()) fades_from_.reset();  // an older one may come late
  chunks_.insert(behind, std::move(chunk));
}

bool Chunks::at(int64_t time_ns, std::span<double> action) {
  while (chunks_.size() > 1 && chunks_.front().end_ns <= time_ns) chunks_.pop_front();
  found_.clear();
  for (const Chunk& chunk : chunks_) {
    const auto step = std::ranges::upper_bound(chunk.time_ns, time_ns) - chunk.time_ns.begin() - 1;
    if (step >= 0 && time_ns < chunk.end_ns) found_.push_back(chunk.actions.data() + step * features_);
  }
  if (found_.empty()) {
    ++starved_;
    return false;
  }
  if (std::ssize(action) != features_) {
    refuse("action: expected ", std::to_string(features_), " numbers, got ", std::to_string(action.size()));
  }
  const auto features = static_cast<size_t>(features_);
  std::copy_n(found_.back(), features, action.begin());
  if (options_.mode == ChunkMode::kEnsemble) {
    std::ranges::fill(action, 0);
    double weights = 0;
    for (size_t i = 0; i < found_.size(); ++i) {
      const double weight = std::exp(-options_.decay * static_cast<double>(i));
      weights += weight;
      for (size_t k = 0; k < features; ++k) action[k] += weight * found_[i][k];
    }
    for (double& number : action) number /= weights;
  } else if (options_.mode == ChunkMode::kCrossFade && found_.size() > 1) {
    if (!fades_from_) fades_from_ = time_ns;
    const double share = std::min(1.0, static_cast<double>(time_ns - *fades_from_) / options_.fade_ns);
    const double* const before = found_[found_.size() - 2];
    for (size_t k = 0; k < features; ++k) action[k] = before[k] + share * (action[k] - before[k]);
  }
  return true;
}

Chunks::Rest Chunks::leftover(int64_t time_ns) const {
  if (chunks_.empty()) return {};
  const Chunk& newest = chunks_.back();
  const auto begun = static_cast<size_t>(frozen(time_ns));
  return {std::span(newest.time_ns).subspan(begun),
          std::span(newest.actions).subspan(begun * static_cast<size_t>(features_))};
}

int64_t Chunks::frozen(int64_t time_ns) const {
  if (chunks_.empty()) return 0;
  const std::vector<int64_t>& stamps = chunks_.back().time_ns;
  return std::ranges::upper_bound(stamps, time_ns) - stamps.begin();
}

std::optional<int64_t> Chunks::covered_until_ns() const {
  std::optional<int64_t> until;
  for (const Chunk& chunk : chunks_) until = std::max(until.value_or(chunk.end_ns), chunk.end_ns);
  return until;
}

}  // namespace robocache
