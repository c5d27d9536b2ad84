// Computes the statistics of a stream over some episodes. They equal those of a cache with only these episodes. They
// are computed once and kept in memory, and in the cache's folder `statistics` if it can be written.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "robocache/cache/dataset.hpp"

namespace robocache::cache {

inline constexpr const char* kSelectionsDirectory = "statistics";

// Returns [kStatistics, features] as in stats.npy, for a stream that has_statistics(). `episodes` may be in any order,
// and each counts once. Threads and processes may call it at the same time: a kept file appears only when it is
// complete, and a damaged one is replaced.
std::shared_ptr<const std::vector<double>> selection_statistics(const Dataset& dataset, int64_t stream,
                                                                std::span<const int64_t> episodes);

}  // namespace robocache::cache
