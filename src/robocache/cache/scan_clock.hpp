// What the doctor asks of a stream's stamps, in one pass over them. docs/doctor.md says what comes of it.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace robocache::cache {

// Periods are the times from a row to the next of its episode, held against the median period P.
inline constexpr double kGap = 1.5;
inline constexpr double kLongGap = 10;
inline constexpr double kRegular = 0.5;  // off P, of those that a rate is made of
inline constexpr double kBurst = 0.25;   // and so many of these in a row
inline constexpr int64_t kBurstLength = 3;
// Of a picture: as many parts of the rows, and of long gaps the first.
inline constexpr int64_t kPictureParts = 240;
inline constexpr int64_t kPictureGaps = 400;

struct EpisodePeriods {
  int64_t regular = 0;  // within P / 2 of P
  double regular_ns = 0;
  int64_t long_gaps = 0;  // over 10 P
  double longest_gap_ns = 0;
  int64_t longest_gap_row = 0;  // the row behind it, of several as long the last
};

struct PicturePart {
  int64_t count = 0;
  double least_ns = std::numeric_limits<double>::infinity();
  double greatest_ns = -std::numeric_limits<double>::infinity();
  double sum_ns = 0;
};

struct ClockScan {
  std::vector<EpisodePeriods> episodes;

  int64_t moving = 0;  // periods over 0
  int64_t zeros = 0;
  int64_t first_zero_row = 0;  // with the stamp of the row before
  double lost_ns = 0;          // what gaps are longer than P
  int64_t short_gaps = 0;      // from 1.5 to 10 P
  double longest_short_gap_ns = 0;
  int64_t longest_short_gap_row = 0;  // the row behind it, of several as long the first
  int64_t bursts = 0;                 // of 3 periods and more below P / 4
  int64_t burst_periods = 0;          // in all of them
  int64_t longest_burst = 0;          // periods of the first of the longest
  int64_t longest_burst_row = 0;      // its first row

  std::array<PicturePart, kPictureParts> parts{};  // of rows, but the last, as many each
  std::vector<int64_t> histogram;      // of periods over 0, in P, between edges; those beyond in the outer ones
  std::vector<int64_t> long_gap_rows;  // the rows behind the first long gaps
};

// `time_ns` do not decrease within an episode, `row_offsets` [episodes + 1]. `edges`, two and more, increase. Where P is 0
// nothing is in the histogram, and what is held against P says nothing.
ClockScan scan_clock(const int64_t* time_ns, std::span<const int64_t> row_offsets, double period_ns,
                     std::span<const double> edges);

}  // namespace robocache::cache
