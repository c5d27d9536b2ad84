#include "robocache/sample/mixture.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "robocache/core/arguments.hpp"

namespace robocache {
namespace {

std::string weight_name(const MixtureOptions& options, size_t source) {
  return options.changed.empty() ? "sources[" + std::to_string(source) + "].weight" : options.changed[source];
}

// Returns the weights; empty if every anchor is drawn once an epoch.
std::vector<double> weights_of(std::span<const int64_t> anchors, const MixtureOptions& options) {
  const auto given_count = std::count_if(options.weights.begin(), options.weights.end(),
                                         [](const std::optional<double>& weight) { return weight.has_value(); });
  if (options.temperature) {
    if (given_count > 0) refuse("temperature: goes without weights, got both");
    if (!(*options.temperature > 0 && std::isfinite(*options.temperature))) {
      refuse("temperature: expected a finite number above 0, got ", number_text(*options.temperature));
    }
    // The largest source has weight 1, so that nothing overflows.
    const auto largest_count = static_cast<double>(*std::max_element(anchors.begin(), anchors.end()));
    std::vector<double> weights;
    for (const int64_t count : anchors) {
      weights.push_back(std::pow(static_cast<double>(count) / largest_count, 1 / *options.temperature));
    }
    return weights;
  }
  if (given_count == 0) return {};
  std::vector<double> weights;
  for (size_t source = 0; source < options.weights.size(); ++source) {
    const std::optional<double>& weight = options.weights[source];
    const std::string name = weight_name(options, source);
    const bool may_be_0 = !options.changed.empty();
    if (!weight) refuse(name, ": expected a weight, as other sources have, got none");
    if (!((may_be_0 ? *weight >= 0 : *weight > 0) && std::isfinite(*weight))) {
      refuse(name, ": expected a finite number ", may_be_0 ? "of at least 0" : "above 0", ", got ",
             number_text(*weight));
    }
    weights.push_back(*weight);
  }
  if (*std::ranges::max_element(weights) == 0) refuse("weights: expected one above 0, got 0 for all sources");
  return weights;
}

// Divides `slots` into whole shares by the largest remainders; of two equal remainders the earlier wins. It computes in
// integers, which hold every bit of weights down to 2^-34 of the largest: rounding would put equal remainders in a
// random order.
std::vector<int64_t> shares_of(const std::vector<double>& weights, int64_t slots) {
  __extension__ using Whole = unsigned __int128;  // weights are below 2^87, times a block below 2^103
  int exponent = 0;
  std::frexp(*std::max_element(weights.begin(), weights.end()), &exponent);
  std::vector<Whole> parts;
  Whole sum = 0;
  for (const double weight : weights) {
    parts.push_back(static_cast<Whole>(std::ldexp(weight, 87 - exponent)));
    sum += parts.back();
  }
  std::vector<int64_t> shares;
  for (Whole& part : parts) {
    part *= static_cast<Whole>(slots);
    shares.push_back(static_cast<int64_t>(part / sum));
    part %= sum;  // now the remainder
  }
  std::vector<size_t> by_remainder(weights.size());
  std::iota(by_remainder.begin(), by_remainder.end(), size_t{0});
  std::stable_sort(by_remainder.begin(), by_remainder.end(), [&](size_t a, size_t b) { return parts[a] > parts[b]; });
  const int64_t remaining = slots - std::accumulate(shares.begin(), shares.end(), int64_t{0});
  for (int64_t i = 0; i < remaining; ++i) ++shares[by_remainder[static_cast<size_t>(i)]];
  return shares;
}

std::vector<int64_t> shares_of_sources(const std::vector<double>& weights, const MixtureOptions& options) {
  std::vector<int64_t> shares = shares_of(weights, kMixtureBlock);
  for (size_t source = 0; source < shares.size(); ++source) {
    if (shares[source] > 0 || weights[source] == 0) continue;
    refuse(weight_name(options, source), ": expected a weight that gives at least one draw of ",
           std::to_string(kMixtureBlock), ", got ", number_text(weights[source]), " of ",
           number_text(std::accumulate(weights.begin(), weights.end(), 0.0)));
  }
  return shares;
}

// Returns the shares of a source's parts. Each is at least 1, taken from the largest if needed; all are 0 without
// slots.
std::vector<int64_t> shares_of_parts(const std::vector<double>& weights, int64_t slots, const std::string& name) {
  if (slots == 0) return std::vector<int64_t>(weights.size());
  if (std::ssize(weights) > slots) {
    refuse(name, ": expected at most as many classes of weight_by or balance as the source's ", std::to_string(slots),
           " of ", std::to_string(kMixtureBlock), " draws, got ", std::to_string(weights.size()));
  }
  std::vector<int64_t> shares = shares_of(weights, slots);
  for (int64_t& share : shares) {
    if (share > 0) continue;
    --*std::max_element(shares.begin(), shares.end());
    share = 1;
  }
  return shares;
}

}  // namespace

MixtureTables::MixtureTables(std::span<const int64_t> anchors, const MixtureOptions& options) {
  const bool has_parts = std::ranges::any_of(options.parts, [](const auto& parts) { return !parts.empty(); });
  std::vector<int64_t> source_anchors(anchors.begin(), anchors.end());
  if (has_parts) {
    source_anchors.clear();
    size_t part = 0;
    for (const auto& parts : options.parts) {
      int64_t sum = 0;
      for (size_t i = 0; i < std::max<size_t>(parts.size(), 1); ++i) sum += anchors[part++];
      source_anchors.push_back(sum);
    }
  }
  std::vector<double> weights = weights_of(source_anchors, options);
  if (weights.empty() && has_parts) weights.assign(source_anchors.begin(), source_anchors.end());
  const bool weighted = !weights.empty();
  std::vector<int64_t> shares = weighted ? shares_of_sources(weights, options) : std::vector<int64_t>(anchors.size());
  if (has_parts) {
    std::vector<int64_t> part_shares;
    for (size_t source = 0; source < shares.size(); ++source) {
      const auto& parts = options.parts[source];
      const std::string name =
          options.changed.empty() ? "sources[" + std::to_string(source) + "]" : options.changed[source];
      const std::vector<int64_t> source_shares =
          parts.empty() ? std::vector{shares[source]} : shares_of_parts(parts, shares[source], name);
      part_shares.insert(part_shares.end(), source_shares.begin(), source_shares.end());
    }
    shares = std::move(part_shares);
  }
  int64_t anchor = 0;
  int64_t slot = 0;
  for (size_t source = 0; source < anchors.size(); ++source) {
    const uint64_t reciprocal = UINT64_MAX / static_cast<uint64_t>(anchors[source]);
    table_.push_back({anchor, slot, reciprocal, Order::of(anchors[source], options.shuffle)});
    anchor += anchors[source];
    slot += shares[source];
  }
  table_.push_back({anchor, slot, 0, {}});
  mixture_.anchors = anchor;
  mixture_.samples = anchor;
  mixture_.sources = static_cast<int32_t>(anchors.size());
  mixture_.weighted = weighted;
  mixture_.order = Order::of(anchor, options.shuffle);
  if (options.samples_per_epoch) {
    if (!weighted) refuse("samples_per_epoch: goes with weights or a temperature, got neither");
    if (*options.samples_per_epoch < 1 || *options.samples_per_epoch > int64_t{1} << 53) {
      refuse("samples_per_epoch: expected from 1 to 2^53, got ", std::to_string(*options.samples_per_epoch));
    }
    mixture_.samples = *options.samples_per_epoch;
  }
}

void MixtureTables::continue_from(const Mixture& before, uint64_t draw) {
  Mixture next = before;
  next.table = table_.data();
  for (int32_t source = 0; source < next.sources; ++source) {
    table_[static_cast<size_t>(source)].offset = before.drawn(source, draw) - next.drawn(source, draw);
  }
}

Mixture MixtureTables::mixture() const {
  Mixture mixture = mixture_;
  mixture.table = table_.data();
  return mixture;
}

}  // namespace robocache
