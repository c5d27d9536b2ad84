#include "robocache/sample/anchor_classes.hpp"

#include <algorithm>
#include <bit>

namespace robocache {
namespace {

std::vector<uint64_t> distinct(std::vector<uint64_t> keys) {
  std::ranges::sort(keys);
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

}  // namespace

AnchorClasses classes_by_weight(std::span<const double> weights) {
  // The bits of positive doubles, read as integers, are ordered like the numbers.
  std::vector<uint64_t> bits;
  for (const double weight : weights) {
    if (weight > 0) bits.push_back(std::bit_cast<uint64_t>(weight));
  }
  std::vector<uint64_t> keys = distinct(std::move(bits));
  int shift = 0;
  while (std::ssize(keys) > kMostWeightClasses) {
    ++shift;
    for (uint64_t& key : keys) key >>= 1U;
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  }
  AnchorClasses classes;
  classes.weights.resize(keys.size());
  for (const double weight : weights) {
    if (!(weight > 0)) {
      classes.class_of.push_back(-1);
      continue;
    }
    const auto index = std::ranges::lower_bound(keys, std::bit_cast<uint64_t>(weight) >> shift) - keys.begin();
    classes.class_of.push_back(static_cast<int32_t>(index));
    classes.weights[static_cast<size_t>(index)] += weight;
  }
  return classes;
}

AnchorClasses classes_by_number(std::span<const double> numbers) {
  std::vector<double> keys(numbers.begin(), numbers.end());
  std::ranges::sort(keys);
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  AnchorClasses classes{{}, std::vector<double>(keys.size(), 1.0)};
  for (const double number : numbers) {
    classes.class_of.push_back(static_cast<int32_t>(std::ranges::lower_bound(keys, number) - keys.begin()));
  }
  return classes;
}

}  // namespace robocache
