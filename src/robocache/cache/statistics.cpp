#include "robocache/cache/statistics.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <type_traits>

#include "robocache/cache/columns_cpu.hpp"
#include "robocache/cache/device_statistics_params.hpp"
#include "robocache/cache/order_statistics.hpp"
#include "robocache/cache/scan_clock.hpp"
#include "robocache/core/thread_pool.hpp"
#include "robocache/core/time.hpp"
#include "robocache/core/with_type.hpp"
#include "robocache/interpolation/number.hpp"

namespace robocache::cache {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The most memory for columns that are computed together.
constexpr int64_t kColumnsBytes = int64_t{128} << 20;
constexpr int64_t kMadeColumnsBytes = int64_t{1} << 30;  // for rows that are computed again in every pass
constexpr int64_t kColumnBytes = int64_t{5} << 18;       // of one column
constexpr int64_t kMostWideColumns = 100;                // with wide bins
constexpr int64_t kPart = int64_t{1} << 20;              // numbers that all columns read before the next part

constexpr int64_t kPeriodsAtOnce = int64_t{1} << 17;

// The type for computing with a column's numbers.
template <class T>
using ColumnType = std::conditional_t<std::is_class_v<T>, float, T>;  // the half floats are classes

// The rank below quantile q of n numbers, and the fraction to add towards the next rank, by numpy.quantile's method "linear".
struct QuantileRank {
  QuantileRank(int64_t n, double q) {
    const double position = static_cast<double>(n - 1) * q;
    below = std::min(static_cast<int64_t>(std::floor(position)), n - 1);
    share = position - static_cast<double>(below);
  }

  int64_t below;
  double share;
};

// Equals numpy.quantile(numbers.astype(float64), q) of n numbers. at(rank) is the number with this rank in sorted order.
template <class At>
double quantile(const At& at, int64_t n, double q) {
  const QuantileRank rank(n, q);
  const double a = at(rank.below);
  if (rank.share == 0) return a;
  const double b = at(rank.below + 1);
  if (a == b) return a;
  const double difference = b - a;
  return rank.share >= 0.5 ? b - difference * (1 - rank.share) : a + difference * rank.share;
}

// The statistics of one column. All rows are passed to it in order, several times.
//
// Sums are computed block by block, so the rounding error grows with the length of a block plus the number of blocks,
// not with their product. Row r of a block is added to lane r % 8, except the last rows % 8 of all rows: they are added
// to lane 0. So the order depends only on the number of rows.
template <class C>
class Column {
 public:
  // `quantiles` outlive it.
  Column(int64_t rows, std::span<const double> quantiles, bool wide_bins)
      : rows_(rows), quantiles_(quantiles), order_(rows, wide_bins) {}

  // Takes the next rows, and moves finite numbers to the front.
  void add(std::span<C> rows) {
    while (!rows.empty()) {
      const auto in_block = rows.first(static_cast<size_t>(std::min(std::ssize(rows), kSumBlock - row_ % kSumBlock)));
      rows = rows.subspan(in_block.size());
      bool all_finite = pass_ > 0 && n_ == rows_;
      if (pass_ < 2) all_finite = add_terms(in_block) == std::ssize(in_block);
      row_ += std::ssize(in_block);
      if (row_ % kSumBlock == 0) end_block();
      auto finite = in_block;
      if constexpr (std::is_floating_point_v<C>) {
        if (!all_finite) {
          if (pass_ == 0) infinite_values_ += column_kernels<C>().count_infinite(in_block.data(), std::ssize(in_block));
          finite = in_block.first(in_block.size() -
                                  std::ranges::remove_if(in_block, [](C x) { return !std::isfinite(x); }).size());
        }
      }
      if (!is_found_) add_to_order(finite);
    }
  }

  // Ends a pass. Returns whether another one is needed.
  bool end_pass() {
    end_block();
    row_ = 0;
    order_.add(waiting_);
    waiting_.clear();
    if (n_ == 0) return false;
    if (pass_++ == 0) {
      mean_ = sum_ / static_cast<double>(n_);
      ranks_ = quantile_ranks(n_, quantiles_);
      is_found_ = order_.find(ranks_);
      return !is_constant();
    }
    if (!is_found_) is_found_ = order_.find(ranks_);
    return !is_found_;
  }

  bool is_constant() const { return n_ == 0 || order_.least() == order_.greatest(); }
  int64_t nan_values() const { return rows_ - n_ - infinite_values_; }
  int64_t infinite_values() const { return infinite_values_; }

  // Returns mean, std, min, max, the quantiles, count.
  std::vector<double> values() const {
    return column_statistics(n_, mean_, squares_, quantiles_, [&](int64_t rank) {
      const C number = rank == 0 ? order_.least() : rank == n_ - 1 ? order_.greatest() : order_.at(rank);
      return static_cast<double>(number);
    });
  }

 private:
  // Adds the terms of rows of one block to its lanes. Returns how many rows are finite.
  int64_t add_terms(std::span<const C> rows) {
    const int64_t lane_rows = rows_ - rows_ % kSumLanes;  // the rows before this go to all lanes, the rest to lane 0
    const auto count = std::ssize(rows);
    int64_t finite = 0;
    int64_t i = 0;
    while (i < count) {
      if constexpr (std::is_floating_point_v<C>) {
        const int64_t aligned = std::min(count - i, lane_rows - row_ - i) / kSumLanes * kSumLanes;
        if ((row_ + i) % kSumLanes == 0 && aligned > 0) {
          const auto& kernels = column_kernels<C>();
          finite += pass_ == 0 ? kernels.sum(rows.data() + i, aligned, lanes_.data())
                               : kernels.sum_squares(rows.data() + i, aligned, mean_, lanes_.data());
          i += aligned;
          continue;
        }
      }
      const auto x = static_cast<double>(rows[static_cast<size_t>(i)]);
      if (std::isfinite(x)) {
        lanes_[static_cast<size_t>(row_ + i < lane_rows ? (row_ + i) % kSumLanes : 0)] +=
            pass_ == 0 ? x : (x - mean_) * (x - mean_);
        ++finite;
      }
      ++i;
    }
    if (pass_ == 0) n_ += finite;
    return finite;
  }

  // Small groups of numbers wait for more: the counts of a column leave the processor's caches while other columns are added.
  void add_to_order(std::span<const C> numbers) {
    constexpr int64_t kFew = 2048;
    if (waiting_.empty() && std::ssize(numbers) > kFew) return order_.add(numbers);
    waiting_.insert(waiting_.end(), numbers.begin(), numbers.end());
    if (std::ssize(waiting_) < kSumBlock) return;
    order_.add(waiting_);
    waiting_.clear();
  }

  void end_block() {
    const auto& [a, b, c, d, e, f, g, h] = lanes_;
    (pass_ == 0 ? sum_ : squares_) += ((a + b) + (c + d)) + ((e + f) + (g + h));
    lanes_ = {};
  }

  int64_t rows_;
  std::span<const double> quantiles_;
  OrderStatistics<C> order_;
  std::vector<C> waiting_;
  std::array<double, kSumLanes> lanes_{};
  int pass_ = 0;
  int64_t row_ = 0;  // the next row of this pass
  int64_t n_ = 0;    // count of finite numbers
  int64_t infinite_values_ = 0;
  double sum_ = 0;
  double mean_ = 0;
  double squares_ = 0;
  std::vector<int64_t> ranks_;
  bool is_found_ = false;
};

// Copies columns of `rows` [count, features] to `copies`, each column `column_size` after the previous one. It copies a few
// rows at a time, so that no cache line is read twice.
template <class T, class C>
void copy_columns(const T* rows, int64_t count, int64_t features, std::span<const int64_t> columns, C* copies,
                  int64_t column_size) {
  if constexpr (std::is_same_v<T, C> && std::is_floating_point_v<T>) {
    if (columns.back() - columns.front() + 1 == std::ssize(columns)) {
      column_kernels<T>().copy_columns(rows + columns.front(), features, count, std::ssize(columns), copies,
                                       column_size);
      return;
    }
  }
  constexpr int64_t kRows = 8;
  for (int64_t row = 0; row < count; row += kRows, rows += kRows * features) {
    C* copy = copies + row;
    for (const int64_t column : columns) {
      if (count - row >= kRows) {
        for (int64_t i = 0; i < kRows; ++i) copy[i] = to_work<C>(rows[i * features + column]);
      } else {
        for (int64_t i = 0; i < count - row; ++i) copy[i] = to_work<C>(rows[i * features + column]);
      }
      copy += column_size;
    }
  }
}

// Passes rows [count, features] to the columns with the indices `chosen`.
template <class T, class C>
void add_rows(const T* rows, int64_t count, int64_t features, std::span<const int64_t> chosen,
              std::span<Column<C>> columns) {
  // This is not a power of two, which would map many columns to the same cache lines.
  const int64_t column_size = std::min(count, kSumBlock) + kCacheLine / static_cast<int64_t>(sizeof(C));
  const auto copies = std::make_unique_for_overwrite<C[]>(chosen.size() * static_cast<size_t>(column_size));
  for (int64_t row = 0; row < count; row += kSumBlock) {
    const int64_t block = std::min(kSumBlock, count - row);
    copy_columns(rows + row * features, block, features, chosen, copies.get(), column_size);
    for (size_t c = 0; c < chosen.size(); ++c) {
      C* const copy = copies.get() + static_cast<int64_t>(c) * column_size;
      columns[static_cast<size_t>(chosen[c])].add({copy, static_cast<size_t>(block)});
    }
  }
}

// The columns that are copied together: as many as fit in a cache line, so each line of the values is read once.
template <class T>
constexpr int64_t kTogether = kCacheLine / static_cast<int64_t>(sizeof(T));

// Returns the next rows of `rows`, at most `most`. `first` is the first range that is not finished, and `skipped`
// counts its finished rows.
std::vector<RowRange> next_part(std::span<const RowRange> rows, size_t& first, int64_t& skipped, int64_t most) {
  std::vector<RowRange> part;
  while (most > 0 && first < rows.size()) {
    const int64_t begin = rows[first].begin + skipped;
    const int64_t end = std::min(rows[first].end, begin + most);
    if (end > begin) part.push_back({begin, end});
    most -= end - begin;
    skipped += end - begin;
    if (end == rows[first].end) {
      ++first;
      skipped = 0;
    }
  }
  return part;
}

// A run of rows [count, features].
template <class T>
struct Run {
  const T* first;
  int64_t count;
};

// Passes the rows to the columns of the features from `begin` on, as often as each column needs. `pass(most, take)` calls
// take(runs) for one part of the rows after another, each of about `most` rows. All columns read a part before any column reads
// the next.
template <class T, class C, class Pass>
void pass_rows(const Pass& pass, int64_t features, int64_t begin, std::vector<Column<C>>& columns) {
  std::vector<int64_t> unfinished(columns.size());
  std::iota(unfinished.begin(), unfinished.end(), int64_t{0});
  while (!unfinished.empty()) {
    const int64_t width = std::ssize(unfinished);
    const int64_t group = std::clamp((width + num_threads() - 1) / num_threads(), int64_t{1}, kTogether<T>);
    pass(std::max(kSumBlock, kPart / width / kSumBlock * kSumBlock), [&](std::span<const Run<T>> part) {
      parallel_for(width, group, [&](int64_t first, int64_t last) {
        const std::span<const int64_t> chosen(unfinished.data() + first, static_cast<size_t>(last - first));
        for (const Run<T>& run : part) add_rows(run.first + begin, run.count, features, chosen, std::span(columns));
      });
    });
    std::vector<char> needs_pass(unfinished.size());
    parallel_for(width, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const auto column = static_cast<size_t>(i);
        needs_pass[column] = columns[static_cast<size_t>(unfinished[column])].end_pass() ? 1 : 0;
      }
    });
    std::erase_if(unfinished, [&, i = size_t{0}](int64_t) mutable { return needs_pass[i++] == 0; });
  }
}

// `makes_rows` says that a pass makes its rows, which takes longer than reading them. Fewer passes then read more
// columns.
template <class T, class Pass>
ValueStatistics typed_statistics(const Pass& pass, int64_t rows, int64_t features, std::span<const double> quantiles,
                                 bool makes_rows) {
  using C = ColumnType<T>;
  ValueStatistics result;
  result.table.resize((5 + quantiles.size()) * static_cast<size_t>(features));
  const int64_t columns_at_once = (makes_rows ? kMadeColumnsBytes : kColumnsBytes) / kColumnBytes;
  const bool wide_bins = makes_rows && features <= kMostWideColumns;
  for (int64_t begin = 0; begin < features; begin += columns_at_once) {
    const int64_t end = std::min(features, begin + columns_at_once);
    std::vector<Column<C>> columns(static_cast<size_t>(end - begin), Column<C>(rows, quantiles, wide_bins));
    pass_rows<T>(pass, features, begin, columns);
    for (size_t c = 0; c < columns.size(); ++c) {
      const int64_t f = begin + static_cast<int64_t>(c);
      const std::vector<double> column = columns[c].values();
      for (size_t s = 0; s < column.size(); ++s) {
        result.table[s * static_cast<size_t>(features) + static_cast<size_t>(f)] = column[s];
      }
      if (rows > 0 && columns[c].is_constant()) result.constant_features.push_back(f);
      result.nan_values += columns[c].nan_values();
      result.infinite_values += columns[c].infinite_values();
    }
  }
  return result;
}

ValueStatistics statistics_of_ranges(const void* values, DType dtype, std::span<const RowRange> rows, int64_t features,
                                     std::span<const double> quantiles, const std::function<void()>& end_part) {
  int64_t count = 0;
  for (const RowRange& range : rows) count += range.end - range.begin;
  return with_type(dtype, [&]<class T>(T) {
    const auto pass = [&](int64_t most, const auto& take) {
      size_t range = 0;
      int64_t skipped = 0;
      while (true) {
        std::vector<Run<T>> part;
        for (const RowRange& rows_of_part : next_part(rows, range, skipped, most)) {
          part.push_back(
              {static_cast<const T*>(values) + rows_of_part.begin * features, rows_of_part.end - rows_of_part.begin});
        }
        if (part.empty()) break;
        take(std::span<const Run<T>>(part));
        end_part();
      }
    };
    return typed_statistics<T>(pass, count, features, quantiles, false);
  });
}

}  // namespace

ValueStatistics value_statistics(const void* values, DType dtype, int64_t rows, int64_t features,
                                 const std::function<void()>& end_part) {
  const std::vector<RowRange> all(rows > 0 ? 1 : 0, RowRange{0, rows});
  return statistics_of_ranges(values, dtype, all, features, kQuantiles, end_part);
}

ValueStatistics value_statistics(const void* values, DType dtype, std::span<const RowRange> rows, int64_t features,
                                 std::span<const double> quantiles) {
  return statistics_of_ranges(values, dtype, rows, features, quantiles, [] {});
}

template <class Real>
std::vector<double> made_statistics(const MadeRows<Real>& make, int64_t rows, int64_t features,
                                    std::span<const double> quantiles) {
  const auto pass = [&](int64_t, const auto& take) {
    make([&](const Real* first, int64_t count) {
      const Run<Real> run{first, count};
      take(std::span(&run, 1));
    });
  };
  return typed_statistics<Real>(pass, rows, features, quantiles, true).table;
}
template std::vector<double> made_statistics(const MadeRows<float>&, int64_t, int64_t, std::span<const double>);
template std::vector<double> made_statistics(const MadeRows<double>&, int64_t, int64_t, std::span<const double>);

std::vector<int64_t> quantile_ranks(int64_t n, std::span<const double> quantiles) {
  std::set<int64_t> ranks;
  for (const double q : quantiles) {
    const QuantileRank rank(n, q);
    ranks.insert(rank.below);
    if (rank.share > 0) ranks.insert(rank.below + 1);
  }
  return {ranks.begin(), ranks.end()};
}

std::vector<double> column_statistics(int64_t n, double mean, double squares, std::span<const double> quantiles,
                                      const std::function<double(int64_t rank)>& at) {
  std::vector<double> result(5 + quantiles.size(), kNan);
  result.back() = static_cast<double>(n);
  if (n == 0) return result;
  result[2] = at(0);
  result[3] = at(n - 1);
  if (result[2] == result[3]) {
    // A constant has exactly its value as mean and exactly 0 as std, so that no caller divides by a rounding error.
    std::fill(result.begin(), result.end() - 1, result[2]);
    result[1] = 0;
    return result;
  }
  result[0] = mean;
  result[1] = std::sqrt(squares / static_cast<double>(n));
  for (size_t q = 0; q < quantiles.size(); ++q) result[4 + q] = quantile(at, n, quantiles[q]);
  // Makes all NaN equal, because processors differ in the sign of the NaN that sums beyond float64 give.
  std::ranges::replace_if(result, [](double x) { return std::isnan(x); }, kNan);
  return result;
}

FeatureStats feature_stats(const double* table, int64_t features) {
  FeatureStats stats;
  for (std::span<const double>* row : {&stats.mean, &stats.std, &stats.min, &stats.max, &stats.q01, &stats.q10,
                                       &stats.q50, &stats.q90, &stats.q99, &stats.count}) {
    *row = {table, static_cast<size_t>(features)};
    table += features;
  }
  return stats;
}

StreamFindings clock_findings(const int64_t* time_ns, std::span<const int64_t> row_offsets,
                              const std::function<void()>& end_part) {
  StreamFindings findings;
  int64_t n = 0;
  for (size_t e = 0; e + 1 < row_offsets.size(); ++e) {
    const int64_t rows = row_offsets[e + 1] - row_offsets[e];
    if (rows == 0) ++findings.empty_episodes;
    n += std::max(int64_t{0}, rows - 1);
  }
  if (n == 0) return findings;

  std::vector<uint64_t> block;
  block.reserve(static_cast<size_t>(std::min(n, kPeriodsAtOnce)));
  const auto pass_periods = [&](const auto& take) {
    const auto end_block = [&] {
      take(std::span<const uint64_t>(block));
      block.clear();
      end_part();
    };
    for (size_t e = 0; e + 1 < row_offsets.size(); ++e) {
      for (int64_t row = row_offsets[e] + 1; row < row_offsets[e + 1]; ++row) {
        block.push_back(ns_between(time_ns[row], time_ns[row - 1]));
        if (std::ssize(block) == kPeriodsAtOnce) end_block();
      }
    }
    end_block();
  };

  OrderStatistics<uint64_t> order(n);
  const std::vector<int64_t> ranks = quantile_ranks(n, {{0.5}});
  do {
    pass_periods([&](std::span<const uint64_t> periods) { order.add(periods); });
  } while (!order.find(ranks));
  constexpr auto kLongest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  findings.min_period_ns = static_cast<int64_t>(std::min(order.least(), kLongest));
  findings.max_period_ns = static_cast<int64_t>(std::min(order.greatest(), kLongest));
  findings.period_ns = quantile([&](int64_t rank) { return static_cast<double>(order.at(rank)); }, n, 0.5);

  const double gap = findings.period_ns > 0 ? kGap * findings.period_ns : std::numeric_limits<double>::infinity();
  double squares = 0;
  pass_periods([&](std::span<const uint64_t> periods) {
    for (const uint64_t period : periods) {
      const double deviation = static_cast<double>(period) - findings.period_ns;
      if (period == 0) ++findings.duplicates;
      if (static_cast<double>(period) > gap) {
        ++findings.gaps;
      } else {
        squares += deviation * deviation;
      }
    }
  });
  findings.jitter_ns = std::sqrt(squares / static_cast<double>(n - findings.gaps));
  return findings;
}

}  // namespace robocache::cache
