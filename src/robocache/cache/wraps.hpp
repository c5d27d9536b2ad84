// Finds features that jump from one end of a full turn to the other, as angles do. A line between two such rows leads
// the long way round.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "robocache/cache/dataset.hpp"

namespace robocache::cache {

struct Wraps {
  int64_t feature;
  int64_t count;
  int64_t episode, row;  // the row after the first jump, counted in its episode
  double from, to;
  double turn;  // in the feature's unit: 2 pi or 360
};

// Finds the features of a float stream whose numbers span 0.75 to 1.05 turns and step by more than 0.75 turns in these
// episodes. Two kinds are no angles: features in which steps of 0.25 to 0.75 turns are more than a tenth as frequent,
// and switches, which hardly move between such steps. Looks at up to `most_rows` rows, in evenly spread episodes.
std::vector<Wraps> find_wraps(const Stream& stream, std::span<const int64_t> episodes, int64_t most_rows);

}  // namespace robocache::cache
