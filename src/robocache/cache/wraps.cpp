#include "robocache/cache/wraps.hpp"

#include <algorithm>
#include <cmath>

#include "robocache/cache/scan.hpp"
#include "robocache/core/with_type.hpp"
#include "robocache/interpolation/number.hpp"

namespace robocache::cache {
namespace {

constexpr double kLeastTurns = 0.75;
constexpr double kMostTurns = 1.05;
constexpr double kOrdinaryTurns = 0.25;

struct Candidate {
  Wraps wraps;
  int64_t other_steps = 0;  // from kOrdinaryTurns to kLeastTurns
  int64_t small_steps = 0;  // up to kOrdinaryTurns, and not 0
};

template <class T>
void count_steps(const Stream& stream, int64_t episode, int64_t begin, int64_t end,
                 std::vector<Candidate>& candidates) {
  const auto* const values = static_cast<const T*>(stream.values);
  for (int64_t row = begin + 1; row < end; ++row) {
    const T* const current = values + row * stream.features;
    for (Candidate& candidate : candidates) {
      Wraps& wraps = candidate.wraps;
      const auto from = to_work<double>(current[wraps.feature - stream.features]);
      const auto to = to_work<double>(current[wraps.feature]);
      const double step = std::abs(to - from);
      if (!(step > kOrdinaryTurns * wraps.turn)) {  // also if it is NaN
        candidate.small_steps += step > 0;
      } else if (step <= kLeastTurns * wraps.turn) {
        ++candidate.other_steps;
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
      if (kLeastTurns * turn < span && span < kMostTurns * turn) candidates.push_back({{f, 0, 0, 0, 0, 0, turn}});
    }
  }
  if (candidates.empty() || episodes.empty()) return {};
  int64_t rows = 0;
  for (const int64_t episode : episodes) rows += stream.rows_of(episode);
  const auto episode_stride = static_cast<size_t>(std::max<int64_t>(1, (rows + most_rows - 1) / most_rows));
  for (size_t i = 0; i < episodes.size(); i += episode_stride) {
    const int64_t begin = stream.first_row(episodes[i]);
    const int64_t end = std::min(begin + stream.rows_of(episodes[i]), begin + most_rows);
    with_floating(stream.dtype,
                  [&](auto element) { count_steps<decltype(element)>(stream, episodes[i], begin, end, candidates); });
  }
  std::vector<Wraps> result;
  for (const Candidate& candidate : candidates) {
    const int64_t count = candidate.wraps.count;
    if (count > 0 && candidate.other_steps * 10 <= count && candidate.small_steps >= count)
      result.push_back(candidate.wraps);
  }
  return result;
}

}  // namespace robocache::cache
