#include "robocache/cache/wraps.hpp"

#include <algorithm>
#include <cmath>

#include "robocache/cache/scan.hpp"
#include "robocache/core/with_type.hpp"
#include "robocache/interpolation/number.hpp"

namespace robocache::cache {
namespace {

constexpr double kLeast = 0.75;
constexpr double kMost = 1.05;
constexpr double kOrdinary = 0.25;

struct Candidate {
  Wraps wraps;
  int64_t between = 0;
  int64_t ordinary = 0;
};

template <class T>
void count_steps(const Stream& stream, int64_t episode, int64_t begin, int64_t end,
                 std::vector<Candidate>& candidates) {
  const auto* const values = static_cast<const T*>(stream.values);
  for (int64_t row = begin + 1; row < end; ++row) {
    const T* const now = values + row * stream.features;
    for (Candidate& candidate : candidates) {
      Wraps& wraps = candidate.wraps;
      const auto from = to_work<double>(now[wraps.feature - stream.features]);
      const auto to = to_work<double>(now[wraps.feature]);
      const double step = std::abs(to - from);
      if (!(step > kOrdinary * wraps.turn)) {  // NaN too
        candidate.ordinary += step > 0;
      } else if (step <= kLeast * wraps.turn) {
        ++candidate.between;
      } else if (wraps.count++ == 0) {
        wraps.episode = episode;
        wraps.row = row - begin;
        wraps.from = from;
        wraps.to = to;
      }
    }
  }
}

}  // namespace

std::vector<Wraps> find_wraps(const Stream& stream, std::span<const int64_t> episodes, int64_t most_rows) {
  std::vector<Candidate> candidates;
  if (!is_floating(stream.dtype) || !stream.has_statistics() || stream.stats.min.empty()) return {};
  for (int64_t f = 0; f < stream.features; ++f) {
    const double span = stream.stats.max[static_cast<size_t>(f)] - stream.stats.min[static_cast<size_t>(f)];
    for (const double turn : kTurns) {
      if (kLeast * turn < span && span < kMost * turn) candidates.push_back({{f, 0, 0, 0, 0, 0, turn}});
    }
  }
  if (candidates.empty() || episodes.empty()) return {};
  int64_t rows = 0;
  for (const int64_t episode : episodes) rows += stream.rows_of(episode);
  const auto each = static_cast<size_t>(std::max<int64_t>(1, (rows + most_rows - 1) / most_rows));
  for (size_t i = 0; i < episodes.size(); i += each) {
    const int64_t begin = stream.first_row(episodes[i]);
    const int64_t end = std::min(begin + stream.rows_of(episodes[i]), begin + most_rows);
    with_floating(stream.dtype,
                  [&](auto element) { count_steps<decltype(element)>(stream, episodes[i], begin, end, candidates); });
  }
  std::vector<Wraps> found;
  for (const Candidate& candidate : candidates) {
    const int64_t count = candidate.wraps.count;
    if (count > 0 && candidate.between * 10 <= count && candidate.ordinary >= count) found.push_back(candidate.wraps);
  }
  return found;
}

}  // namespace robocache::cache
