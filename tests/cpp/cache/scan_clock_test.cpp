#include "robocache/cache/scan_clock.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tests/cpp/trials.hpp"

namespace robocache::cache {
namespace {

struct Period {
  int64_t row;  // the row at its end
  size_t episode;
  double ns;
};

std::vector<double> edges() {
  std::vector<double> edges;
  for (int i = 0; i <= 52; ++i) edges.push_back(0.05 * std::pow(400.0, i / 52.0));
  edges[26] = 1;  // for a clock without jitter
  return edges;
}

// Compares every part of the scan with a plain computation from a list of all periods.
void expect_scan(const std::vector<int64_t>& time, const std::vector<int64_t>& row_offsets, double period_ns) {
  std::vector<Period> periods;
  for (size_t e = 0; e + 1 < row_offsets.size(); ++e) {
    for (int64_t row = row_offsets[e] + 1; row < row_offsets[e + 1]; ++row) {
      const auto index = static_cast<size_t>(row);
      periods.push_back({row, e, static_cast<double>(time[index] - time[index - 1])});
    }
  }
  const ClockScan scan = scan_clock(time.data(), row_offsets, period_ns, edges());

  EXPECT_EQ(scan.moving, std::ranges::count_if(periods, [](const Period& x) { return x.ns > 0; }));
  EXPECT_EQ(scan.zeros, std::ranges::count_if(periods, [](const Period& x) { return x.ns == 0; }));
  const auto zero = std::ranges::find_if(periods, [](const Period& x) { return x.ns == 0; });
  EXPECT_EQ(scan.first_zero_row, zero == periods.end() ? 0 : zero->row);
  double lost_ns = 0;
  std::vector<int64_t> long_gap_rows;
  for (const Period& x : periods) {
    if (x.ns > 1.5 * period_ns) lost_ns += x.ns - period_ns;
    if (x.ns > 10 * period_ns && long_gap_rows.size() < 400) long_gap_rows.push_back(x.row);
  }
  EXPECT_EQ(scan.lost_ns, lost_ns);
  EXPECT_EQ(scan.long_gap_rows, long_gap_rows);

  ASSERT_EQ(scan.episodes.size() + 1, row_offsets.size());
  for (size_t e = 0; e < scan.episodes.size(); ++e) {
    EpisodePeriods expected;
    for (const Period& x : periods) {
      if (x.episode != e || std::abs(x.ns - period_ns) > 0.5 * period_ns) continue;
      ++expected.regular;
      expected.regular_ns += x.ns;
    }
    const EpisodePeriods& episode = scan.episodes[e];
    EXPECT_EQ(episode.regular, expected.regular);
    EXPECT_EQ(episode.regular_ns, expected.regular_ns);
  }

  int64_t bursts = 0;
  int64_t burst_periods = 0;
  int64_t longest_burst = 0;
  int64_t longest_burst_row = 0;
  for (size_t i = 0; i < periods.size();) {
    size_t end = i;
    while (end < periods.size() && periods[end].episode == periods[i].episode && periods[end].ns < 0.25 * period_ns)
      ++end;
    const auto burst_length = static_cast<int64_t>(end - i);
    if (burst_length >= 3) {
      ++bursts;
      burst_periods += burst_length;
      if (burst_length > longest_burst) longest_burst_row = periods[i].row - 1;
      longest_burst = std::max(longest_burst, burst_length);
    }
    i = std::max(end, i + 1);
  }
  EXPECT_EQ(scan.bursts, bursts);
  EXPECT_EQ(scan.burst_periods, burst_periods);
  EXPECT_EQ(scan.longest_burst, longest_burst);
  EXPECT_EQ(scan.longest_burst_row, longest_burst_row);

  for (int64_t part = 0; part < kPictureParts; ++part) {
    std::vector<double> part_periods;
    for (const Period& x : periods) {
      if ((x.row - 1) * kPictureParts / std::max<int64_t>(row_offsets.back() - 1, 1) == part)
        part_periods.push_back(x.ns);
    }
    const PicturePart& picture = scan.parts[static_cast<size_t>(part)];
    ASSERT_EQ(picture.count, std::ssize(part_periods)) << part;
    if (part_periods.empty()) continue;
    EXPECT_EQ(picture.least_ns, std::ranges::min(part_periods));
    EXPECT_EQ(picture.greatest_ns, std::ranges::max(part_periods));
    double sum = 0;
    for (const double ns : part_periods) sum += ns;
    EXPECT_EQ(picture.sum_ns, sum);
  }
  const std::vector<double> bounds = edges();
  ASSERT_EQ(scan.histogram.size() + 1, bounds.size());
  for (size_t bin = 0; bin + 1 < bounds.size(); ++bin) {
    const int64_t expected = std::ranges::count_if(periods, [&](const Period& x) {
      const bool above = bin == 0 || x.ns / period_ns >= bounds[bin];
      const bool below = bin + 2 == bounds.size() || x.ns / period_ns < bounds[bin + 1];
      return period_ns > 0 && x.ns > 0 && above && below;
    });
    EXPECT_EQ(scan.histogram[bin], expected) << bin;
  }
}

TEST(ScanClock, EveryKindOfClock) {
  std::mt19937_64 random(3);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int trial = 0; trial < test::trials(120); ++trial) {
    const int64_t rows = trial % 3 == 0 ? trial : 200 + below(1200);
    std::vector<int64_t> row_offsets{0, rows};
    for (int64_t e = below(9); e > 0; --e) row_offsets.push_back(below(rows + 1));
    std::ranges::sort(row_offsets);
    const int64_t jitter = std::vector<int64_t>{1, 1000, 400'000}[static_cast<size_t>(below(3))];
    std::vector<int64_t> time;
    int64_t stamp = 1'700'000'000'000'000'000;
    bool in_burst = false;
    for (int64_t row = 0; row < rows; ++row) {
      if (below(12) == 0) in_burst = !in_burst && trial % 2 == 0;
      int64_t period = in_burst ? below(300'000) : 1'000'000 + below(jitter) - jitter / 2;
      if (below(30) == 0)
        period =
            std::vector<int64_t>{
                0, 1'500'000, 1'500'001, 3'000'000, 10'000'000, 10'000'001, 70'000'000, 250'000}[static_cast<size_t>(
                below(8))];
      if (std::ranges::binary_search(row_offsets, row)) period = below(3'000'000'000) - 1'500'000'000;
      time.push_back(stamp += period);
    }
    expect_scan(time, row_offsets, 1'000'000);
    expect_scan(time, row_offsets, trial % 3 == 0 ? 0 : 999'999.5);
  }
}

TEST(ScanClock, KeepsTheFirstOfManyLongGaps) {
  std::vector<int64_t> time;
  for (int64_t row = 0; row < 1000; ++row) time.push_back(row * 20'000);
  const std::vector<int64_t> row_offsets{0, 1000};
  expect_scan(time, row_offsets, 1000);
  EXPECT_EQ(scan_clock(time.data(), row_offsets, 1000, edges()).long_gap_rows.size(), 400);
}

// The stamps are further apart than int64 can count.
TEST(ScanClock, WholeRangeOfStamps) {
  const std::vector<int64_t> time{std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
  const std::vector<int64_t> row_offsets{0, 2};
  const ClockScan scan = scan_clock(time.data(), row_offsets, 1000, edges());
  EXPECT_EQ(scan.lost_ns, 0x1p64 - 1000);
  EXPECT_EQ(scan.histogram.back(), 1);
}

}  // namespace
}  // namespace robocache::cache
