// Statistics of the rows that some episodes have of a stream, equal to those of a cache of these rows alone. They are
// computed once and kept: in memory, and in a folder `statistics` of the cache if that can be written.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "robocache/cache/dataset.hpp"

namespace robocache::cache {

inline constexpr const char* kSelectionsDirectory = "statistics";

// [kStatistics, features] as in stats.npy, for a stream that has_statistics(). `episodes` may be in any order; each
// counts once. Any number of threads and processes may call it at once: a kept file gets its name when it is complete,
// and a damaged one is made anew. A folder that cannot be written stays as it is.
std::shared_ptr<const std::vector<double>> selection_statistics(const Dataset& dataset, int64_t stream,
                                                                std::span<const int64_t> episodes);

}  // namespace robocache::cache
