#include "robocache/cache/scan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numbers>
#include <random>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "robocache/core/thread_pool.hpp"
#include "robocache/core/with_type.hpp"
#include "robocache/interpolation/number.hpp"
#include "tests/cpp/not_finite.hpp"
#include "tests/cpp/trials.hpp"

namespace robocache::cache {
namespace {

using test::kInfinity;
using test::kNan;

// The oracle: it visits row after row by the definitions in scan.hpp, and shares no code with the scan.
struct Table {
  DType dtype = DType::kFloat64;
  int64_t features = 1;
  std::vector<int64_t> row_offsets;
  std::vector<double> numbers;               // in the precision of the dtype
  std::array<std::vector<double>, 6> stats;  // mean and quantiles
  std::vector<double> low, high;
  std::vector<int64_t> quaternions;

  int64_t rows() const { return row_offsets.back(); }
  double at(int64_t row, int64_t f) const { return numbers[static_cast<size_t>(row * features + f)]; }
  bool begins(int64_t row) const { return std::ranges::binary_search(row_offsets, row); }
  bool is_single() const { return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16; }
  // The difference is rounded to the type in which the scan compares numbers.
  double step(int64_t row, int64_t f) const {
    if (is_single()) return static_cast<double>(static_cast<float>(at(row, f)) - static_cast<float>(at(row - 1, f)));
    return at(row, f) - at(row - 1, f);
  }
  int64_t episode(int64_t row) const {
    int64_t index = 0;
    while (row_offsets[static_cast<size_t>(index) + 1] <= row) ++index;
    return index;
  }
};

using Rows = std::vector<std::pair<int64_t, int64_t>>;

Rows runs_of(const Table& table, int64_t f) {
  Rows runs;
  int64_t begin = 0;
  for (int64_t row = 1; row <= table.rows(); ++row) {
    if (row < table.rows() && !table.begins(row) && table.step(row, f) == 0) continue;
    if (row - begin >= 20) runs.emplace_back(begin, row);
    begin = row;
  }
  return runs;
}

std::vector<std::tuple<int64_t, JumpKind, double>> jumps_of(const Table& table, int64_t f, int64_t chunk) {
  std::vector<std::tuple<int64_t, JumpKind, double>> jumps;
  if (!is_floating(table.dtype)) return jumps;
  for (int64_t begin = 0; begin < table.rows(); begin += chunk) {
    const int64_t first = std::max<int64_t>(begin, 1);
    const int64_t end = std::min(begin + chunk, table.rows());
    std::vector<double> steps;
    std::vector<double> moved_steps;
    for (int64_t row = first; row < end; ++row) {
      const double step = table.begins(row) ? 0 : table.step(row, f);
      steps.push_back(std::abs(step) < kInfinity ? step : 0);
      if (steps.back() != 0) moved_steps.push_back(std::abs(steps.back()));
    }
    if (moved_steps.size() < 100 || 2 * moved_steps.size() < steps.size()) continue;
    std::ranges::sort(moved_steps);
    const double bound = 10 * moved_steps[static_cast<size_t>(0.99 * static_cast<double>(moved_steps.size() - 1))];
    for (size_t i = 0; i < steps.size(); ++i) {
      const double step_to = steps[i];
      if (std::abs(step_to) <= bound) continue;
      const double step_back = i + 1 < steps.size() ? steps[i + 1] : 0;
      const int64_t row = first + static_cast<int64_t>(i);
      if (std::abs(step_back) > bound && std::abs(step_to + step_back) < 0.2 * std::abs(step_to)) {
        jumps.emplace_back(row, JumpKind::kSpike, step_to);
        ++i;
      } else {
        const auto is_near = [&](double turn) { return std::abs(std::abs(step_to) / turn - 1) < 0.05; };
        jumps.emplace_back(row, is_near(2 * std::numbers::pi) || is_near(360) ? JumpKind::kWrap : JumpKind::kStep,
                           step_to);
      }
    }
  }
  return jumps;
}

// Count, first row, worst size.
using Deviation = std::tuple<int64_t, int64_t, double>;

void add_deviation(std::map<std::pair<BeyondKind, int64_t>, Deviation>& deviations, BeyondKind kind, int64_t feature,
                   int64_t row, double size) {
  auto& [count, first, worst] = deviations.try_emplace({kind, feature}, 0, row, 0.0).first->second;
  ++count;
  worst = std::max(worst, size);
}

std::map<std::pair<BeyondKind, int64_t>, Deviation> beyond_of(const Table& table) {
  std::map<std::pair<BeyondKind, int64_t>, Deviation> deviations;
  for (int64_t row = 0; row < table.rows(); ++row) {
    for (int64_t f = 0; f < table.features && !table.low.empty(); ++f) {
      const double low = table.low[static_cast<size_t>(f)];
      const double high = table.high[static_cast<size_t>(f)];
      const double x = table.at(row, f);
      if (std::isnan(low) || std::isnan(high)) continue;
      if (x < low) add_deviation(deviations, BeyondKind::kLimits, f, row, low - x);
      if (x > high) add_deviation(deviations, BeyondKind::kLimits, f, row, x - high);
    }
    for (const int64_t q : table.quaternions) {
      double square = 0;
      double dot = 0;
      for (int64_t part = q; part < q + 4; ++part) {
        square += table.at(row, part) * table.at(row, part);
        if (row > 0) dot += table.at(row, part) * table.at(row - 1, part);
      }
      const double error = std::abs(std::sqrt(square) - 1);
      if (error > 0.01) add_deviation(deviations, BeyondKind::kNorm, q, row, error);
      if (!table.begins(row) && dot < -0.5) add_deviation(deviations, BeyondKind::kFlip, q, row, -dot);
    }
  }
  return deviations;
}

FeatureStats stats_of(const Table& table) {
  return {.mean = table.stats[0],
          .q01 = table.stats[1],
          .q10 = table.stats[2],
          .q50 = table.stats[3],
          .q90 = table.stats[4],
          .q99 = table.stats[5]};
}

void expect_column(const Table& table, int64_t f, const ColumnScan& column) {
  std::vector<double> finite;
  int64_t still = 0;
  for (int64_t row = 0; row < table.rows(); ++row) {
    if (std::isfinite(static_cast<double>(table.at(row, f)))) finite.push_back(table.at(row, f));
    if (!table.begins(row) && table.step(row, f) == 0) ++still;
  }
  EXPECT_EQ(column.count, std::ssize(finite));
  EXPECT_EQ(column.still, still);
  if (finite.empty()) return;
  EXPECT_EQ(column.least, std::ranges::min(finite));
  EXPECT_EQ(column.greatest, std::ranges::max(finite));
  const double mean = table.stats[0][static_cast<size_t>(f)];
  const double centre = std::isfinite(mean) ? mean : 0;
  long double sum = 0;
  long double square_sum = 0;
  long double size_sum = 0;
  for (const double x : finite) {
    const long double deviation = static_cast<long double>(x) - centre;
    sum += deviation;
    square_sum += deviation * deviation;
    size_sum += std::abs(deviation);
  }
  if (std::isfinite(static_cast<double>(square_sum))) {
    EXPECT_NEAR(column.sum, static_cast<double>(sum), 1e-13 * static_cast<double>(size_sum));
    EXPECT_NEAR(column.squares, static_cast<double>(square_sum), 1e-13 * static_cast<double>(square_sum));
  } else {
    EXPECT_FALSE(std::isfinite(column.squares));
  }
  for (size_t q = 0; q < kScanQuantiles; ++q) {
    const double quantile = table.stats[q + 1][static_cast<size_t>(f)];
    EXPECT_EQ(column.below[q], std::ranges::count_if(finite, [&](double x) { return x < quantile; })) << q;
    EXPECT_EQ(column.equal[q], std::ranges::count(finite, quantile)) << q;
  }
}

template <class T>
void expect_scan(Table table) {
  std::vector<T> values;
  for (double& x : table.numbers) {
    values.push_back(from_work<T>(x));
    x = to_work<double>(values.back());
  }
  const FeatureStats stats = stats_of(table);
  const int64_t chunk = std::clamp<int64_t>((1 << 22) / table.features, 1, 1 << 15);
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    ValueScan scan(values.data(), table.dtype, table.rows(), table.features, table.row_offsets,
                   {stats, table.low, table.high, table.quaternions});
    while (scan.add(threads == 1 ? 1 : 1 << 20) < table.rows()) {
    }
    std::map<int64_t, Rows> runs;
    for (const StuckRun& run : scan.runs()) runs[run.feature].emplace_back(run.begin, run.end);
    std::map<int64_t, std::vector<std::tuple<int64_t, JumpKind, double>>> jumps;
    for (const Jump& jump : scan.jumps()) jumps[jump.feature].emplace_back(jump.row, jump.kind, jump.step);
    std::map<std::tuple<int64_t, int64_t, bool>, std::pair<int64_t, int64_t>> not_finite;  // count and first row
    for (const NotFinite& finding : scan.not_finite()) {
      auto& [count, first] =
          not_finite.try_emplace({finding.feature, finding.episode, finding.is_nan}, 0, finding.first_row)
              .first->second;
      count += finding.count;
    }
    std::map<std::tuple<int64_t, int64_t, bool>, std::pair<int64_t, int64_t>> expected_not_finite;
    for (int64_t f = 0; f < table.features; ++f) {
      SCOPED_TRACE(testing::Message() << "feature " << f << " of " << table.features << ", "
                                      << dtype_name(table.dtype));
      expect_column(table, f, scan.columns()[static_cast<size_t>(f)]);
      EXPECT_EQ(runs[f], runs_of(table, f));
      EXPECT_EQ(jumps[f], jumps_of(table, f, chunk));
      for (int64_t row = 0; row < table.rows(); ++row) {
        const double x = table.at(row, f);
        if (std::isfinite(x)) continue;
        ++expected_not_finite.try_emplace({f, table.episode(row), std::isnan(x)}, 0, row).first->second.first;
      }
    }
    EXPECT_EQ(not_finite, expected_not_finite);
    std::map<std::pair<BeyondKind, int64_t>, Deviation> beyond;
    for (const Beyond& finding : scan.beyond()) {
      EXPECT_TRUE(
          beyond.try_emplace({finding.kind, finding.feature}, finding.count, finding.first_row, finding.worst).second);
    }
    EXPECT_EQ(beyond, beyond_of(table));
  }
  set_num_threads(2);
}

// Returns noise, whole numbers and waves in episodes of any length, with faults.
Table random_table(std::mt19937_64& random, DType dtype, int64_t rows, int64_t features, int64_t episodes) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  Table table;
  table.dtype = dtype;
  table.features = features;
  table.row_offsets = {0, rows};
  for (int64_t e = 1; e < episodes; ++e) table.row_offsets.push_back(below(rows + 1));
  std::ranges::sort(table.row_offsets);
  std::normal_distribution<double> noise;
  const bool is_signed = dtype != DType::kBool && !dtype_name(dtype).starts_with("uint");
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t f = 0; f < features; ++f) {
      double x = f % 4 == 0   ? noise(random)
                 : f % 4 == 1 ? std::round(noise(random))
                 : f % 4 == 2 ? std::sin(0.01 * static_cast<double>(row + f)) + 0.001 * noise(random)
                              : 1;
      if (!is_floating(dtype)) x = std::round(4 * x);
      if (!is_signed) x = dtype == DType::kBool ? (x > 0 ? 1 : 0) : std::abs(x);
      table.numbers.push_back(x);
    }
  }
  const auto number = [&](int64_t row, int64_t f) -> double& {
    return table.numbers[static_cast<size_t>(row * features + f)];
  };
  for (int64_t fault = 0; fault < 8; ++fault) {
    const int64_t f = below(features);
    const int64_t begin = below(rows);
    const int64_t end =
        std::min(rows, begin + std::array<int64_t, 5>{1, 19, 20, 21, 1500}[static_cast<size_t>(below(5))]);
    for (int64_t row = begin; row < end && below(2) == 0; ++row) number(row, f) = number(begin, f);
    for (int64_t row = begin; row < end; ++row) number(row, f) = number(begin, f);
    if (!is_floating(dtype)) continue;
    const int64_t fault_row = below(rows);
    const double fault_value = std::array{kNan, kInfinity, -kInfinity, 30.0, 1e4, -0.0}[static_cast<size_t>(below(6))];
    number(fault_row, f) = fault_value;
    if (below(3) == 0) {
      for (int64_t row = begin; row < end; ++row) number(row, f) = fault_value;
    }
    if (below(3) == 0) {
      for (int64_t row = fault_row; row < rows; ++row)
        number(row, f) += std::array{2 * std::numbers::pi, 50.0}[static_cast<size_t>(below(2))];
    }
  }
  for (size_t s = 0; s < table.stats.size(); ++s) {
    for (int64_t f = 0; f < features; ++f) {
      // A number of the column, or a float64 that no float32 equals.
      const double occurring = number(below(rows), f);
      table.stats[s].push_back(below(2) == 0 ? occurring : 0.3 + 1e-12);
    }
  }
  if (below(2) == 0) {
    for (int64_t f = 0; f < features; ++f) {
      table.low.push_back(below(9) == 0 ? kNan : -2);
      table.high.push_back(std::array{1.5, 1.5, 1.5, kInfinity, kNan}[static_cast<size_t>(below(5))]);
    }
  }
  if (features >= 7 && is_floating(dtype)) table.quaternions = {0, 3};
  return table;
}

TEST(ValueScan, EveryDTypeEqualsTheOracle) {
  std::mt19937_64 random(5);
  for (const auto& [rows, features, episodes] :
       {std::tuple{1, 1, 1}, {19, 2, 1}, {130, 7, 3}, {1024, 3, 1}, {1025, 8, 40}, {2500, 19, 6}, {3100, 33, 300}}) {
    if (test::kSanitized && rows * features > 10'000) continue;  // the oracle would take minutes
    for (int d = 0; d <= static_cast<int>(DType::kFloat64); ++d) {
      with_type(static_cast<DType>(d), [&]<class T>(T) {
        expect_scan<T>(random_table(random, static_cast<DType>(d), rows, features, episodes));
      });
    }
  }
}

TEST(ValueScan, FaultsAnywhere) {
  std::mt19937_64 random(6);
  for (int trial = 0; trial < test::trials(40); ++trial) {
    expect_scan<float>(random_table(random, DType::kFloat32, 1500 + trial * 7, 5, 1 + trial % 9));
    expect_scan<double>(random_table(random, DType::kFloat64, 1500 + trial * 7, 9, 1 + trial % 9));
  }
}

// A run and a step cross the borders of chunks and blocks. The percentile of steps differs between chunks.
TEST(ValueScan, Chunks) {
  constexpr int64_t kChunk = 1 << 15;
  std::mt19937_64 random(7);
  std::normal_distribution<double> noise;
  Table table;
  table.row_offsets = {0, 3 * kChunk + 500};
  table.dtype = DType::kFloat32;
  table.features = 2;
  for (int64_t row = 0; row < table.rows(); ++row) {
    const double scale = row < kChunk ? 1 : 100;
    for (int64_t f = 0; f < 2; ++f) table.numbers.push_back(scale * noise(random));
  }
  const auto number = [&](int64_t row, int64_t f) -> double& {
    return table.numbers[static_cast<size_t>(row * 2 + f)];
  };
  for (int64_t row = 2 * kChunk - 12; row < 2 * kChunk + 9; ++row) number(row, 0) = 7;
  for (int64_t row = 3 * kChunk - 1100; row < 3 * kChunk; ++row) number(row, 1) = 7;
  number(500, 0) += 300;
  number(kChunk + 500, 0) += 300;    // within the noise of that chunk
  number(kChunk, 1) += 1e5;          // the steps to it and back are in one chunk
  number(2 * kChunk - 1, 1) += 1e5;  // the step back is in the next chunk
  for (auto& statistic : table.stats) statistic = {0.0, 1.0};
  expect_scan<float>(table);
  EXPECT_EQ(jumps_of(table, 0, kChunk).size(), 1);
  EXPECT_EQ(runs_of(table, 0).size(), 1);
}

// All other steps are as large as the 99th percentile.
TEST(ValueScan, JumpAmongEqualSteps) {
  Table table;
  table.row_offsets = {0, 2000};
  for (int64_t row = 0; row < 2000; ++row) table.numbers.push_back(static_cast<double>(row % 2) + (row < 700 ? 0 : 12));
  for (auto& statistic : table.stats) statistic = {0.0};
  expect_scan<double>(table);
  EXPECT_EQ(jumps_of(table, 0, 1 << 15).size(), 1);
}

// Differences of the largest numbers overflow, and so do their sums.
TEST(ValueScan, LargestNumbers) {
  std::mt19937_64 random(8);
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    Table table = random_table(random, dtype, 1300, 6, 2);
    const double greatest =
        dtype == DType::kFloat32 ? std::numeric_limits<float>::max() : std::numeric_limits<double>::max();
    for (const int64_t index : {10, 11, 700, 5000})
      table.numbers[static_cast<size_t>(index)] = index % 2 == 0 ? greatest : -greatest;
    table.quaternions.clear();
    dtype == DType::kFloat32 ? expect_scan<float>(table) : expect_scan<double>(table);
  }
}

TEST(ValueScan, KeepsSomeOfManyFindings) {
  Table table;
  table.row_offsets = {0, 60'000};
  for (int64_t row = 0; row < 60'000; ++row) table.numbers.push_back(static_cast<double>(row / 20));
  for (auto& statistic : table.stats) statistic = {0.0};
  const FeatureStats stats = stats_of(table);
  ValueScan scan(table.numbers.data(), DType::kFloat64, 60'000, 1, table.row_offsets, {stats});
  EXPECT_EQ(scan.add(1 << 30), 60'000);
  EXPECT_EQ(scan.add(1), 60'000);
  EXPECT_EQ(std::ssize(scan.runs()), kMostReported + 1);
  EXPECT_EQ(scan.columns()[0].still, 57'000);
}

}  // namespace
}  // namespace robocache::cache
