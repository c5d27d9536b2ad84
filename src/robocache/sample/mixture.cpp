#include "robocache/sample/mixture.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "robocache/core/arguments.hpp"

namespace robocache {
namespace {

// The weights, or nothing where every anchor is drawn once.
std::vector<double> weights_of(std::span<const int64_t> anchors, const MixtureOptions& options) {
  const auto given = std::count_if(options.weights.begin(), options.weights.end(),
                                   [](const std::optional<double>& weight) { return weight.has_value(); });
  if (options.temperature) {
    if (given > 0) refuse("temperature: goes without weights, got both");
    if (!(*options.temperature > 0 && std::isfinite(*options.temperature))) {
      refuse("temperature: expected a finite number above 0, got ", number_text(*options.temperature));
    }
    // Of the largest source 1, so that nothing overflows.
    const auto most = static_cast<double>(*std::max_element(anchors.begin(), anchors.end()));
    std::vector<double> weights;
    for (const int64_t count : anchors) {
      weights.push_back(std::pow(static_cast<double>(count) / most, 1 / *options.temperature));
    }
    return weights;
  }
  if (given == 0) return {};
  std::vector<double> weights;
  for (size_t source = 0; source < options.weights.size(); ++source) {
    const std::optional<double>& weight = options.weights[source];
    const std::string name = "sources[" + std::to_string(source) + "].weight";
    if (!weight) refuse(name, ": expected a weight, as other sources have, got none");
    if (!(*weight > 0 && std::isfinite(*weight))) {
      refuse(name, ": expected a finite number above 0, got ", number_text(*weight));
    }
    weights.push_back(*weight);
  }
  return weights;
}

// Whole shares of a block, by largest remainder; of two as large the earlier source's.
std::vector<int64_t> shares_of(const std::vector<double>& weights) {
  const double largest = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (const double weight : weights) sum += weight / largest;
  std::vector<int64_t> shares;
  std::vector<double> remainders;
  for (const double weight : weights) {
    const double exact = weight / largest / sum * kMixtureBlock;
    shares.push_back(static_cast<int64_t>(exact));
    remainders.push_back(exact - std::floor(exact));
  }
  std::vector<size_t> by_remainder(weights.size());
  std::iota(by_remainder.begin(), by_remainder.end(), size_t{0});
  std::stable_sort(by_remainder.begin(), by_remainder.end(),
                   [&](size_t a, size_t b) { return remainders[a] > remainders[b]; });
  int64_t left = kMixtureBlock - std::accumulate(shares.begin(), shares.end(), int64_t{0});
  for (size_t i = 0; left > 0; ++i, --left) ++shares[by_remainder[i % by_remainder.size()]];
  if (left < 0) *std::max_element(shares.begin(), shares.end()) += left;  // a quotient was rounded up to a whole number
  for (size_t source = 0; source < shares.size(); ++source) {
    if (shares[source] > 0) continue;
    refuse("sources[", std::to_string(source), "].weight: expected at least one draw of ",
           std::to_string(kMixtureBlock), ", got ", number_text(weights[source]), " of ", number_text(sum * largest));
  }
  return shares;
}

}  // namespace

MixtureTables::MixtureTables(std::span<const int64_t> anchors, const MixtureOptions& options) {
  const std::vector<double> weights = weights_of(anchors, options);
  const bool weighted = !weights.empty();
  const std::vector<int64_t> shares = weighted ? shares_of(weights) : std::vector<int64_t>(anchors.size());
  int64_t anchor = 0;
  int64_t place = 0;
  for (size_t source = 0; source < anchors.size(); ++source) {
    table_.push_back({anchor, place, Order::of(anchors[source], options.shuffle)});
    anchor += anchors[source];
    place += shares[source];
  }
  table_.push_back({anchor, place, {}});
  mixture_.anchors = anchor;
  mixture_.samples = anchor;
  mixture_.sources = static_cast<int32_t>(anchors.size());
  mixture_.weighted = weighted;
  mixture_.order = Order::of(weighted ? kMixtureBlock : anchor, options.shuffle);
  if (options.samples_per_epoch) {
    if (!weighted) refuse("samples_per_epoch: goes with weights or a temperature, got neither");
    if (*options.samples_per_epoch < 1 || *options.samples_per_epoch > int64_t{1} << 53) {
      refuse("samples_per_epoch: expected from 1 to 2^53, got ", std::to_string(*options.samples_per_epoch));
    }
    mixture_.samples = *options.samples_per_epoch;
  }
}

Mixture MixtureTables::mixture() const {
  Mixture mixture = mixture_;
  mixture.table = table_.data();
  return mixture;
}

}  // namespace robocache
