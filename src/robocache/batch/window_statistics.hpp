// Statistics of what a key of a batch holds: after its window, methods and conversions, before normalisation and before the
// rounding to the batch's dtype; of every anchor that a source draws, each once. Padding, NaN and infinity are left out.
//
// The values are those of a Loader's own batches, made anew in each of several passes, so memory does not grow with their number.
// Sums are float64, in an order that depends on no number of threads; quantiles are exact. Floating values of a CUDA loader are made and
// reduced on its device, unless its memory does not suffice: the table has the same bits where the values have the same bits.
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

// Called between batches: `done` of `all` anchors have been read in this pass. It may throw.
using WindowProgress = std::function<void(int64_t done, int64_t all)>;

struct WindowStatistics {
  bool per_step = false;  // each step by itself, or all steps of a window together
  std::vector<double> quantiles = {0.01, 0.1, 0.5, 0.9, 0.99};  // in [0, 1]
};

// Returns a table [5 + quantiles, features], or [5 + quantiles, steps, features]: mean, std, min, max, each quantile, count. It is
// kept in memory, and in the cache's folder `statistics` if it can be written. `options` are complete, and the request is of
// numbers that the source has. `episodes`: none: all of the dataset. `check` is called between batches, and may throw.
std::shared_ptr<const std::vector<double>> window_statistics(
    const LoaderOptions& options, size_t source, size_t request, const std::optional<std::vector<int64_t>>& episodes,
    const WindowStatistics& asked, const WindowProgress& progress = [](int64_t, int64_t) {});

}  // namespace robocache
