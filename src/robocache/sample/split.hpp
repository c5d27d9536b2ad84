// Draws parts of a dataset at random, for training and validation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace robocache {

// Draws counts[p] of n items, such as episodes, for each part p. Returns the part of each item, or -1 for none.
//
// A hash of (seed, index) orders the items: the first counts[0] are part 0, the next counts[1] are part 1, and so on.
// The result depends on the arguments alone and is the same on every machine. Items that are added at the end do not
// reorder the old ones, so few items change their part while the proportions of `counts` stay equal.
//
//   const std::vector<int64_t> part = split(dataset->num_episodes(), std::array<int64_t, 2>{90, 10}, seed);
//
// Throws ArgumentError if a count is negative, or if their sum exceeds n.
std::vector<int64_t> split(int64_t n, std::span<const int64_t> counts, uint64_t seed);

}  // namespace robocache
