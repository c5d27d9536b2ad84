// A clock in host memory, made from the times of each episode.
#pragma once

#include <cstdint>
#include <vector>

#include "robocache/source/rows.hpp"

namespace robocache::test {

class HostClock {
 public:
  explicit HostClock(const std::vector<std::vector<int64_t>>& episodes) {
    for (const std::vector<int64_t>& times : episodes) {
      EpisodeRows rows{static_cast<int64_t>(time_ns_.size()), static_cast<int64_t>(times.size()), 0, 0};
      if (!times.empty()) rows.first_ns = times.front();
      if (!times.empty() && times.back() > times.front()) {
        rows.rows_per_ns =
            static_cast<double>(times.size() - 1) / (static_cast<double>(times.back()) - static_cast<double>(times[0]));
      }
      episodes_.push_back(rows);
      time_ns_.insert(time_ns_.end(), times.begin(), times.end());
    }
  }

  // Valid as long as this object.
  StreamClock view() const { return {time_ns_.data(), episodes_.data()}; }

 private:
  std::vector<int64_t> time_ns_;
  std::vector<EpisodeRows> episodes_;
};

}  // namespace robocache::test
