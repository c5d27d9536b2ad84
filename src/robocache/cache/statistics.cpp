#include "robocache/cache/statistics.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <type_traits>

#include "robocache/core/half.hpp"
#include "robocache/core/thread_pool.hpp"
#include "robocache/core/time.hpp"
#include "robocache/core/with_type.hpp"

namespace robocache::cache {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr std::array<double, 5> kQuantiles{0.01, 0.10, 0.50, 0.90, 0.99};
constexpr double kGapPeriods = 1.5;

// A thread copies this many bytes of columns at most, and at least one column.
constexpr int64_t kColumnBytes = int64_t{128} << 20;
constexpr int64_t kCacheLine = 64;

// The type a column is copied to: what the elements compare as.
template <class T>
struct ColumnType {
  using type = T;
};
template <>
struct ColumnType<Float16> {
  using type = float;
};
template <>
struct ColumnType<BFloat16> {
  using type = float;
};

template <class T>
typename ColumnType<T>::type to_column(T x) {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
    return to_float(x);
  } else {
    return x;
  }
}

// Sums term(x) over the column: in eight lanes, block by block, so that the rounding error grows with the length of a
// block and the number of blocks instead of their product.
template <class C, class Term>
double sum(const C* column, int64_t n, const Term& term) {
  constexpr int64_t kLanes = 8;
  constexpr int64_t kBlock = 8192;
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    std::array<double, kLanes> lanes{};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) lanes[static_cast<size_t>(lane)] += term(column[i + lane]);
    }
    for (; i < end; ++i) lanes[0] += term(column[i]);
    total += ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  }
  return total;
}

// Order statistics of a column by repeated selection: each selection leaves the column partitioned, which narrows those
// after it.
template <class C>
class Selector {
 public:
  Selector(C* column, int64_t n) : column_(column), n_(n) { cuts_ = {0, n}; }

  C nth(int64_t rank) {
    const auto above = std::upper_bound(cuts_.begin(), cuts_.end(), rank);
    const int64_t begin = *(above - 1);
    if (!std::binary_search(selected_.begin(), selected_.end(), rank)) {
      std::nth_element(column_ + begin, column_ + rank, column_ + *above);
      cuts_.insert(above, {rank, rank + 1});
      selected_.insert(std::upper_bound(selected_.begin(), selected_.end(), rank), rank);
    }
    return column_[rank];
  }

  // numpy.quantile(column.astype(float64), q), method "linear"; between equal infinities the infinity instead of NaN.
  double quantile(double q) {
    const double virtual_index = static_cast<double>(n_ - 1) * q;
    const auto below = std::min(static_cast<int64_t>(std::floor(virtual_index)), n_ - 1);
    const double t = virtual_index - static_cast<double>(below);
    const auto a = static_cast<double>(nth(below));
    if (t == 0) return a;
    const auto b = static_cast<double>(nth(below + 1));
    if (a == b) return a;
    const double difference = b - a;
    return t >= 0.5 ? b - difference * (1 - t) : a + difference * t;
  }

 private:
  C* column_;
  int64_t n_;
  std::vector<int64_t> cuts_;      // sorted: no element left of a cut exceeds one right of it
  std::vector<int64_t> selected_;  // sorted: ranks that stand where sorting would put them
};

struct ColumnStatistics {
  std::array<double, kStatistics> values;
  int64_t nan_values = 0;
  int64_t infinite_values = 0;
  bool constant = false;
};

// Reorders the column.
template <class C>
ColumnStatistics column_statistics(C* column, int64_t rows) {
  ColumnStatistics result;
  int64_t n = rows;
  if constexpr (std::is_floating_point_v<C>) {
    n = std::remove_if(column, column + rows, [](C x) { return std::isnan(x); }) - column;
    result.infinite_values = std::count_if(column, column + n, [](C x) { return std::isinf(x); });
  }
  result.nan_values = rows - n;
  if (n == 0) {
    result.values.fill(kNan);
    result.values[kCountRow] = 0;
    result.constant = rows > 0;
    return result;
  }
  C low = column[0];
  C high = column[0];
  for (int64_t i = 1; i < n; ++i) {
    low = std::min(low, column[i]);
    high = std::max(high, column[i]);
  }
  const auto minimum = static_cast<double>(low);
  const auto maximum = static_cast<double>(high);
  result.constant = low == high;
  double mean = minimum;
  double deviation = 0;
  // A constant feature has exactly its value as mean and exactly 0 as std, so that nobody divides by a rounding error.
  if (!result.constant) {
    mean = sum(column, n, [](C x) { return static_cast<double>(x); }) / static_cast<double>(n);
    deviation = std::sqrt(sum(column, n,
                              [mean](C x) {
                                const double d = static_cast<double>(x) - mean;
                                return d * d;
                              }) /
                          static_cast<double>(n));
  } else if (std::isinf(minimum)) {
    deviation = kNan;
  }
  result.values = {mean, deviation, minimum, maximum, 0, 0, 0, 0, 0, static_cast<double>(n)};
  Selector<C> selector(column, n);
  // The median first: it halves what the others search.
  for (const size_t q : {2, 1, 3, 0, 4}) result.values[4 + q] = selector.quantile(kQuantiles[q]);
  // One NaN for all: processors differ in the sign of the NaN that infinities make.
  std::ranges::replace_if(result.values, [](double x) { return std::isnan(x); }, kNan);
  return result;
}

template <class T>
ValueStatistics typed_statistics(const T* values, int64_t rows, int64_t features) {
  using C = typename ColumnType<T>::type;
  ValueStatistics result;
  result.table.resize(static_cast<size_t>(kStatistics * features));
  std::vector<char> constant(static_cast<size_t>(features));
  std::atomic<int64_t> nan_values{0};
  std::atomic<int64_t> infinite_values{0};

  // A cache line's worth of columns is copied at once, so that each line of the values is read once.
  const int64_t element = static_cast<int64_t>(sizeof(C));
  const int64_t group = std::clamp(kColumnBytes / std::max<int64_t>(1, rows * element), int64_t{1},
                                   kCacheLine / static_cast<int64_t>(sizeof(T)));
  parallel_for(features, group, [&](int64_t begin, int64_t end) {
    const int64_t width = end - begin;
    const auto columns = std::make_unique_for_overwrite<C[]>(static_cast<size_t>(width * rows));
    for (int64_t row = 0; row < rows; ++row) {
      const T* source = values + row * features + begin;
      for (int64_t c = 0; c < width; ++c) columns[static_cast<size_t>(c * rows + row)] = to_column(source[c]);
    }
    for (int64_t c = 0; c < width; ++c) {
      const ColumnStatistics column = column_statistics(columns.get() + c * rows, rows);
      for (int64_t s = 0; s < kStatistics; ++s) {
        result.table[static_cast<size_t>(s * features + begin + c)] = column.values[static_cast<size_t>(s)];
      }
      constant[static_cast<size_t>(begin + c)] = column.constant ? 1 : 0;
      nan_values += column.nan_values;
      infinite_values += column.infinite_values;
    }
  });
  for (int64_t f = 0; f < features; ++f) {
    if (constant[static_cast<size_t>(f)] != 0) result.constant_features.push_back(f);
  }
  result.nan_values = nan_values;
  result.infinite_values = infinite_values;
  return result;
}

}  // namespace

ValueStatistics value_statistics(const void* values, DType dtype, int64_t rows, int64_t features) {
  return with_type(dtype, [&]<class T>(T) { return typed_statistics(static_cast<const T*>(values), rows, features); });
}

StreamFindings clock_findings(const int64_t* time_ns, std::span<const int64_t> row_offsets) {
  StreamFindings findings;
  std::vector<uint64_t> periods;
  for (size_t e = 0; e + 1 < row_offsets.size(); ++e) {
    if (row_offsets[e] == row_offsets[e + 1]) ++findings.empty_episodes;
    for (int64_t row = row_offsets[e] + 1; row < row_offsets[e + 1]; ++row) {
      periods.push_back(ns_between(time_ns[row], time_ns[row - 1]));
    }
  }
  if (periods.empty()) return findings;

  const auto [shortest, longest] = std::ranges::minmax(periods);
  constexpr auto kLongest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  findings.min_period_ns = static_cast<int64_t>(std::min(shortest, kLongest));
  findings.max_period_ns = static_cast<int64_t>(std::min(longest, kLongest));
  findings.duplicates = std::ranges::count(periods, uint64_t{0});
  const auto n = static_cast<int64_t>(periods.size());
  findings.period_ns = Selector<uint64_t>(periods.data(), n).quantile(0.5);

  const double gap =
      findings.period_ns > 0 ? kGapPeriods * findings.period_ns : std::numeric_limits<double>::infinity();
  double squares = 0;
  for (const uint64_t period : periods) {
    const double deviation = static_cast<double>(period) - findings.period_ns;
    if (static_cast<double>(period) > gap) {
      ++findings.gaps;
    } else {
      squares += deviation * deviation;
    }
  }
  findings.jitter_ns = std::sqrt(squares / static_cast<double>(n - findings.gaps));
  return findings;
}

}  // namespace robocache::cache
