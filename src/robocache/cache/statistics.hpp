// What is computed once, when a cache is closed: statistics of each feature's values and findings about each clock.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/core/dtype.hpp"

namespace robocache::cache {

// The rows of stats.npy, in this order.
inline constexpr int64_t kStatistics = 10;  // mean, std, min, max, q01, q10, q50, q90, q99, count
inline constexpr int64_t kCountRow = kStatistics - 1;

// [begin, end).
struct RowRange {
  int64_t begin;
  int64_t end;
};

// What a table [kStatistics, features] says; it lives as long as the table.
FeatureStats feature_stats(const double* table, int64_t features);

struct ValueStatistics {
  std::vector<double> table;  // [kStatistics, features], row-major
  int64_t nan_values = 0;
  int64_t infinite_values = 0;
  std::vector<int64_t> constant_features;
};

// Statistics of `values` [rows, features] of `dtype`, as FeatureStats says. Sums are float64 and each feature is summed
// by one thread in an order that depends on `rows` alone: no result depends on the number of threads. The values are
// read several times, some MB at once, after each of which `end_part` is called: memory does not grow with `rows`.
ValueStatistics value_statistics(
    const void* values, DType dtype, int64_t rows, int64_t features, const std::function<void()>& end_part = [] {});

// The same of these rows alone, none of them twice, in their order: the bits that they would have if they were all there are.
ValueStatistics value_statistics(const void* values, DType dtype, std::span<const RowRange> rows, int64_t features);

// The part of the findings that the stamps tell. `row_offsets` [episodes + 1]; `end_part` as above.
StreamFindings clock_findings(
    const int64_t* time_ns, std::span<const int64_t> row_offsets, const std::function<void()>& end_part = [] {});

}  // namespace robocache::cache
