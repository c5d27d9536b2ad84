// Statistics of a key's values in batches: after its window, methods and conversions, before normalisation and before the
// rounding to the batch's dtype; over all anchors that a source draws, each once. Padding, NaN and infinity are left out.
//
// A Loader makes the values anew in each of several passes, so memory does not grow with their number. Sums are float64, in an
// order that does not depend on the number of threads; quantiles are exact. For a CUDA loader the device makes and reduces
// floating values, unless its memory does not suffice. Equal bits of values give equal bits of the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "robocache/batch/options.hpp"

namespace robocache {

// Called between batches: `done` of `all` anchors are read in this pass. It may throw.
using WindowProgress = std::function<void(int64_t done, int64_t all)>;

struct WindowStatistics {
  bool per_step = false;  // each step by itself; else all steps of a window together
  std::vector<double> quantiles = {0.01, 0.1, 0.5, 0.9, 0.99};  // in [0, 1]
};

// Returns a table [5 + quantiles, features], or [5 + quantiles, steps, features]: mean, std, min, max, each quantile, count. It
// is kept in memory, and in the cache's folder `statistics` if that can be written. `options` are complete. The request is of
// numbers, and the source has its stream. Without `episodes` it covers the whole dataset.
std::shared_ptr<const std::vector<double>> window_statistics(
    const LoaderOptions& options, size_t source, size_t request, const std::optional<std::vector<int64_t>>& episodes,
    const WindowStatistics& requested, const WindowProgress& progress = [](int64_t, int64_t) {});

}  // namespace robocache
