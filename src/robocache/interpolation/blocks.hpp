// Turns methods by blocks of features, as callers pass them, into runs, as segments need them.
#pragma once

#include <cstdint>
#include <vector>

#include "robocache/interpolation/method.hpp"

namespace robocache {

inline constexpr int64_t kAllFeatures = INT64_MAX;

// The features [begin, end) with one method. Callers may count either bound from the back, as in Python. An end at
// kAllFeatures means the number of features.
struct FeatureBlock {
  int64_t begin;
  int64_t end;
  InterpolationMethod method;
};

// Returns the features [0, features) as runs in their order: those in `named` with their methods, the others with
// `method`. A pose becomes its position and its rotation. Neighbours with one method become one run, so a slerp run
// holds one or more quaternions. Without features there is one empty run.
//
// Throws ArgumentError naming `method` or `methods` where blocks overlap, are empty or outside the features, where
// slerp is not 4 or pose not 7 features wide.
//
//   feature_blocks(10, kLinear, {{0, 7, kPose}})   // {0, 3, kLinear}, {3, 7, kSlerp}, {7, 10, kLinear}
std::vector<FeatureBlock> feature_blocks(int64_t features, InterpolationMethod method,
                                         const std::vector<FeatureBlock>& named);

}  // namespace robocache
