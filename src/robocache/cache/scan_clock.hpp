// Scans a stream's stamps for the doctor in one pass. docs/doctor.md explains the findings.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace robocache::cache {

// A period is the time from a row to the next row of its episode. It is compared with the median period P: above kGap P
// it is a gap, above kLongGap P a long gap.
inline constexpr double kGap = 1.5;
inline constexpr double kLongGap = 10;
inline constexpr double kRegular = 0.5;  // a period within this share of P is regular, and counts for the rate
inline constexpr double kBurst = 0.25;   // a burst is kBurstLength or more periods below this share of P
inline constexpr int64_t kBurstLength = 3;
// A picture divides the rows into kPictureParts and shows the first kPictureGaps long gaps.
inline constexpr int64_t kPictureParts = 240;
inline constexpr int64_t kPictureGaps = 400;

struct EpisodePeriods {
  int64_t regular = 0;  // within P / 2 of P
  double regular_ns = 0;
};

struct PicturePart {
  int64_t count = 0;
  double least_ns = std::numeric_limits<double>::infinity();
  double greatest_ns = -std::numeric_limits<double>::infinity();
  double sum_ns = 0;
};

struct ClockScan {
  std::vector<EpisodePeriods> episodes;

  int64_t moving = 0;  // periods above 0
  int64_t zeros = 0;
  int64_t first_zero_row = 0;     // the first row with the same stamp as its previous row
  double lost_ns = 0;             // the sum of (gap - P)
  int64_t bursts = 0;             // of 3 or more periods below P / 4
  int64_t burst_periods = 0;      // the periods in all bursts
  int64_t longest_burst = 0;      // the length of the longest burst in periods
  int64_t longest_burst_row = 0;  // the first row of the first such burst

  std::array<PicturePart, kPictureParts> parts{};  // equal parts of the rows, except the last one
  // Counts the periods above 0 by their length in units of P. The outer bins include periods beyond the edges.
  std::vector<int64_t> histogram;
  std::vector<int64_t> long_gap_rows;  // the rows after the first gaps over 10 P
};

// `time_ns` does not decrease within an episode; `row_offsets` is [episodes + 1]; `edges` are at least two and
// increase. If P is 0, the histogram is empty and everything compared with P is meaningless.
ClockScan scan_clock(const int64_t* time_ns, std::span<const int64_t> row_offsets, double period_ns,
                     std::span<const double> edges);

}  // namespace robocache::cache
