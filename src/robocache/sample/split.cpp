#include "robocache/sample/split.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "robocache/core/error.hpp"
#include "robocache/sample/order.hpp"

namespace robocache {

std::vector<int64_t> split(int64_t n, std::span<const int64_t> counts, uint64_t seed) {
  int64_t remaining = n;
  for (const int64_t count : counts) {
    if (count < 0 || count > remaining) {
      throw ArgumentError("shares: expected counts of at least 0, together at most " + std::to_string(n) + ", got " +
                          std::to_string(count) + " of the " + std::to_string(remaining) + " left");
    }
    remaining -= count;
  }
  // All hashes differ, since the multiplier is odd and mix_bits is a bijection.
  const uint64_t key = mix_bits(seed + 0x9e3779b97f4a7c15u);
  std::vector<std::pair<uint64_t, int64_t>> order(static_cast<size_t>(n));
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = {mix_bits(key + 0x9e3779b97f4a7c15u * static_cast<uint64_t>(i)), static_cast<int64_t>(i)};
  }
  std::ranges::sort(order);
  std::vector<int64_t> part(order.size(), -1);
  auto next = order.begin();
  for (size_t part_index = 0; part_index < counts.size(); ++part_index) {
    for (int64_t i = 0; i < counts[part_index]; ++i)
      part[static_cast<size_t>((next++)->second)] = static_cast<int64_t>(part_index);
  }
  return part;
}

}  // namespace robocache
