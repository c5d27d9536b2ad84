// Draws parts of a dataset at random, for training and validation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace robocache {

// Draws counts[p] of n things, such as episodes, for each part p. Returns the part of each thing, or -1 for none.
//
// The first counts[0] things in the order of a hash of (seed, index) are part 0, the next counts[1] part 1, and so on. A
// pure function of its arguments, the same on every machine. Things that are added at the end leave that order as it is, so at
// equal shares few of the old ones change their part.
//
//   const std::vector<int64_t> part = split(dataset->num_episodes(), std::array<int64_t, 2>{90, 10}, seed);
//
// Throws ArgumentError if a count is negative, or if their sum exceeds n.
std::vector<int64_t> split(int64_t n, std::span<const int64_t> counts, uint64_t seed);

}  // namespace robocache
