#include "robocache/cache/scan_clock.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <utility>

#include "robocache/core/time.hpp"

namespace robocache::cache {
namespace {

// Counts the numbers between edges. Most numbers are in the same bin as the previous number, or in the next one.
class Histogram {
 public:
  explicit Histogram(std::span<const double> edges) : edges_(edges), counts_(edges.size() - 1) {}

  void add(double x) {
    x = std::clamp(x, edges_.front(), edges_.back());
    if (!(edges_[bin_] <= x && x < edges_[bin_ + 1])) {
      const auto edge_above = std::ranges::upper_bound(edges_.first(edges_.size() - 1), x);
      bin_ = static_cast<size_t>(edge_above - edges_.begin() - 1);
    }
    ++counts_[bin_];
  }

  std::vector<int64_t> counts() && { return std::move(counts_); }

 private:
  std::span<const double> edges_;
  std::vector<int64_t> counts_;
  size_t bin_ = 0;
};

void end_burst(ClockScan& scan, int64_t periods, int64_t row) {
  if (periods < kBurstLength) return;
  ++scan.bursts;
  scan.burst_periods += periods;
  if (periods > scan.longest_burst) {
    scan.longest_burst = periods;
    scan.longest_burst_row = row - periods;
  }
}

}  // namespace

ClockScan scan_clock(const int64_t* time_ns, std::span<const int64_t> row_offsets, double period_ns,
                     std::span<const double> edges) {
  ClockScan scan;
  scan.episodes.resize(row_offsets.size() - 1);
  Histogram histogram(edges);
  const int64_t periods = std::max<int64_t>(row_offsets.back() - 1, 1);
  for (size_t e = 0; e + 1 < row_offsets.size(); ++e) {
    EpisodePeriods& episode = scan.episodes[e];
    const int64_t last = row_offsets[e + 1] - 1;
    int64_t short_periods = 0;
    for (int64_t begin = row_offsets[e]; begin < last;) {
      // The periods of these rows belong to one part of the picture.
      const int64_t part = begin * kPictureParts / periods;
      const int64_t end = std::min(last, ((part + 1) * periods + kPictureParts - 1) / kPictureParts);
      PicturePart& picture = scan.parts[static_cast<size_t>(part)];
      picture.count += end - begin;
      for (int64_t row = begin + 1; row <= end; ++row) {
        const auto period = static_cast<double>(ns_between(time_ns[row], time_ns[row - 1]));
        picture.least_ns = std::min(picture.least_ns, period);
        picture.greatest_ns = std::max(picture.greatest_ns, period);
        picture.sum_ns += period;
        if (period > 0) {
          ++scan.moving;
          if (period_ns > 0) histogram.add(period / period_ns);
        } else if (scan.zeros++ == 0) {
          scan.first_zero_row = row;
        }
        if (std::abs(period - period_ns) <= kRegular * period_ns) {
          ++episode.regular;
          episode.regular_ns += period;
        }
        if (period < kBurst * period_ns) {
          ++short_periods;
        } else if (short_periods > 0) {
          end_burst(scan, short_periods, row - 1);
          short_periods = 0;
        }
        if (period > kGap * period_ns) scan.lost_ns += period - period_ns;
        if (period > kLongGap * period_ns && std::ssize(scan.long_gap_rows) < kPictureGaps) {
          scan.long_gap_rows.push_back(row);
        }
      }
      begin = end;
    }
    end_burst(scan, short_periods, last);
  }
  scan.histogram = std::move(histogram).counts();
  return scan;
}

}  // namespace robocache::cache
