// Statistics of each feature's values and findings about each clock, computed when a cache is closed.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/core/dtype.hpp"
#include "robocache/core/row_range.hpp"

namespace robocache::cache {

// The rows of stats.npy, in this order.
inline constexpr int64_t kStatistics = 10;  // mean, std, min, max, q01, q10, q50, q90, q99, count
inline constexpr int64_t kCountRow = kStatistics - 1;
inline constexpr std::array<double, 5> kQuantiles{0.01, 0.10, 0.50, 0.90, 0.99};

// Returns a view of a table [kStatistics, features]. It is valid as long as the table.
FeatureStats feature_stats(const double* table, int64_t features);

struct ValueStatistics {
  std::vector<double> table;  // [kStatistics, features], row-major
  int64_t nan_values = 0;
  int64_t infinite_values = 0;
  std::vector<int64_t> constant_features;
};

// Computes the statistics of `values` [rows, features] of `dtype`, as FeatureStats describes them. Sums are float64.
// One thread sums each feature, in an order that depends only on `rows`, so no result depends on the number of threads.
// The values are read several times, a few MB at a time, and `end_part` is called after each part: memory does not grow
// with `rows`.
ValueStatistics value_statistics(
    const void* values, DType dtype, int64_t rows, int64_t features, const std::function<void()>& end_part = [] {});

// Does the same for only these rows, in their order and without repetition. The bits equal those of a cache with only
// these rows. The table has these quantiles in place of kQuantiles.
ValueStatistics value_statistics(const void* values, DType dtype, std::span<const RowRange> rows, int64_t features,
                                 std::span<const double> quantiles = kQuantiles);

// Calls take(rows, count) for all rows [count, features], in the same blocks and order each time.
template <class Real>
using MadeRows = std::function<void(const std::function<void(const Real* rows, int64_t count)>& take)>;

// Returns the same statistics of float or double rows that `make` makes anew for every pass: a table [5 + quantiles, features]
// of mean, std, min, max, each quantile and count. NaN and infinity are left out. `rows` is the number of rows. `quantiles` are
// in [0, 1].
template <class Real>
std::vector<double> made_statistics(const MadeRows<Real>& make, int64_t rows, int64_t features,
                                    std::span<const double> quantiles);

// Returns the ranks that the quantiles of n numbers need, ascending and each once. A quantile is one of the numbers or
// lies between two.
std::vector<int64_t> quantile_ranks(int64_t n, std::span<const double> quantiles);

// Returns the table of one column with n numbers: mean, std, min, max, each quantile, count. `squares` is the sum of
// (number - mean)^2. at(rank) returns the number with that rank; it is called for quantile_ranks(), 0 and n - 1.
std::vector<double> column_statistics(int64_t n, double mean, double squares, std::span<const double> quantiles,
                                      const std::function<double(int64_t rank)>& at);

// Computes the findings from the stamps. `row_offsets` is [episodes + 1]; `end_part` as above.
StreamFindings clock_findings(
    const int64_t* time_ns, std::span<const int64_t> row_offsets, const std::function<void()>& end_part = [] {});

}  // namespace robocache::cache
