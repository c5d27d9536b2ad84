#include "robocache/cache/statistics.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "robocache/core/half.hpp"
#include "robocache/core/thread_pool.hpp"
#include "tests/cpp/not_finite.hpp"

namespace robocache::cache {
namespace {

using test::kNan;

double as_double(Float16 x) { return to_float(x); }
double as_double(BFloat16 x) { return to_float(x); }
template <class T>
double as_double(T x) {
  return static_cast<double>(x);
}

// By sorting, in long double.
std::vector<double> oracle(std::vector<double> column) {
  std::erase_if(column, [](double x) { return !std::isfinite(x); });
  const auto n = column.size();
  if (n == 0) return {kNan, kNan, kNan, kNan, kNan, kNan, kNan, kNan, kNan, 0};
  std::sort(column.begin(), column.end());
  long double sum = 0;
  for (const double x : column) sum += x;
  const long double mean = sum / static_cast<long double>(n);
  long double squares = 0;
  for (const double x : column) squares += (x - mean) * (x - mean);
  std::vector<double> expected{static_cast<double>(mean),
                               static_cast<double>(std::sqrt(squares / static_cast<long double>(n))), column.front(),
                               column.back()};
  for (const double q : {0.01, 0.1, 0.5, 0.9, 0.99}) {
    const double at = static_cast<double>(n - 1) * q;
    const double t = at - std::floor(at);
    const double a = column[static_cast<size_t>(at)];
    const double b = column[std::min(n - 1, static_cast<size_t>(at) + 1)];
    expected.push_back(t >= 0.5 ? b - (b - a) * (1 - t) : a + (b - a) * t);
  }
  expected.push_back(static_cast<double>(n));
  return expected;
}

template <class T>
void expect_statistics(const std::vector<T>& values, DType dtype, int64_t features) {
  const int64_t rows = static_cast<int64_t>(values.size()) / features;
  const ValueStatistics statistics = value_statistics(values.data(), dtype, rows, features);
  for (int64_t f = 0; f < features; ++f) {
    std::vector<double> column;
    for (int64_t row = 0; row < rows; ++row)
      column.push_back(as_double(values[static_cast<size_t>(row * features + f)]));
    const std::vector<double> expected = oracle(column);
    for (int64_t s = 0; s < kStatistics; ++s) {
      const double got = statistics.table[static_cast<size_t>(s * features + f)];
      const double want = expected[static_cast<size_t>(s)];
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(got)) << s;
      } else if (s < 2) {
        // Sums of at most 2^14 float64 terms: their rounding stays far below this.
        EXPECT_NEAR(got, want, 1e-12 * std::max(1.0, std::max(std::abs(expected[2]), std::abs(expected[3])))) << s;
      } else {
        EXPECT_EQ(got, want) << "statistic " << s << " of feature " << f << ", " << dtype_name(dtype);
      }
    }
  }
}

template <class T>
std::vector<T> random_values(int64_t n, double low, double high) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> distribution(low, high);
  std::vector<T> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<T>(distribution(random)));
  return values;
}

TEST(ValueStatistics, EveryDTypeAgainstSorting) {
  for (const int64_t features : {1, 3, 40}) {
    const int64_t n = 257 * features;
    expect_statistics(random_values<uint8_t>(n, 0, 1.9), DType::kBool, features);
    expect_statistics(random_values<int8_t>(n, -128, 127), DType::kInt8, features);
    expect_statistics(random_values<uint8_t>(n, 0, 255), DType::kUInt8, features);
    expect_statistics(random_values<int16_t>(n, -32768, 32767), DType::kInt16, features);
    expect_statistics(random_values<uint16_t>(n, 0, 65535), DType::kUInt16, features);
    expect_statistics(random_values<int32_t>(n, -2e9, 2e9), DType::kInt32, features);
    expect_statistics(random_values<uint32_t>(n, 0, 4e9), DType::kUInt32, features);
    expect_statistics(random_values<int64_t>(n, -9e18, 9e18), DType::kInt64, features);
    expect_statistics(random_values<uint64_t>(n, 0, 1.8e19), DType::kUInt64, features);
    expect_statistics(random_values<float>(n, -5, 5), DType::kFloat32, features);
    expect_statistics(random_values<double>(n, -5, 5), DType::kFloat64, features);
    std::vector<Float16> halves;
    std::vector<BFloat16> brains;
    for (const float x : random_values<float>(n, -5, 5)) {
      halves.push_back(to_float16(x));
      brains.push_back(to_bfloat16(x));
    }
    expect_statistics(halves, DType::kFloat16, features);
    expect_statistics(brains, DType::kBFloat16, features);
  }
}

TEST(ValueStatistics, EveryNumberOfRows) {
  for (int64_t rows = 1; rows < 130; ++rows) expect_statistics(random_values<float>(rows, -1, 1), DType::kFloat32, 1);
  expect_statistics(random_values<float>(20000, 1e6, 1e6 + 1), DType::kFloat32, 2);
}

TEST(ValueStatistics, PartsEndAsOftenAsMemoryIsToStayLow) {
  const std::vector<float> values = random_values<float>(int64_t{3} << 20, -1, 1);
  int parts = 0;
  value_statistics(values.data(), DType::kFloat32, std::ssize(values), 1, [&] { ++parts; });
  EXPECT_EQ(parts, 2 * 3);  // the numbers of a part, looked at twice
}

TEST(ClockFindings, OfMoreStampsThanAreLookedAtAtOnce) {
  constexpr int64_t kRows = 300'000;
  std::mt19937_64 random(3);
  std::vector<int64_t> times{0};
  std::vector<int64_t> periods;
  for (int64_t row = 1; row < kRows; ++row) {
    periods.push_back(row % 1000 == 0 ? 0 : static_cast<int64_t>(900'000 + random() % 200'000));
    times.push_back(times.back() + periods.back());
  }
  const std::vector<int64_t> offsets{0, kRows};
  const StreamFindings findings = clock_findings(times.data(), offsets);
  std::ranges::sort(periods);
  EXPECT_EQ(findings.period_ns, static_cast<double>(periods[periods.size() / 2]));  // of an odd number
  EXPECT_EQ(findings.min_period_ns, 0);
  EXPECT_EQ(findings.max_period_ns, periods.back());
  EXPECT_EQ(findings.duplicates, 299);
}

// Of some rows: the bits that they have when they are all there are.
TEST(ValueStatistics, OfRangesOfRows) {
  std::mt19937_64 random(7);
  constexpr int64_t kFeatures = 3;
  std::vector<float> values;
  std::vector<float> chosen;
  std::vector<RowRange> ranges;
  for (int64_t row = 0; row < 70'000;) {
    const auto rows = static_cast<int64_t>(1 + random() % (ranges.size() % 5 == 0 ? 9000 : 60));
    const bool is_chosen = random() % 3 != 0;
    if (is_chosen) ranges.push_back({row, row + rows});
    for (int64_t i = 0; i < rows * kFeatures; ++i) {
      values.push_back(random() % 50 == 0 ? NAN : static_cast<float>(random() % 1000) - 300);
      if (is_chosen) chosen.push_back(values.back());
    }
    row += rows;
  }
  const auto some = value_statistics(values.data(), DType::kFloat32, ranges, kFeatures);
  const auto alone = value_statistics(chosen.data(), DType::kFloat32, std::ssize(chosen) / kFeatures, kFeatures);
  EXPECT_EQ(some.table, alone.table);
  EXPECT_EQ(some.nan_values, alone.nan_values);
  const auto none = value_statistics(values.data(), DType::kFloat32, std::vector<RowRange>{}, kFeatures);
  EXPECT_EQ(none.table[kCountRow * kFeatures], 0);
}

}  // namespace
}  // namespace robocache::cache
