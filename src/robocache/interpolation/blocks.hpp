// Converts the blocks of features that callers give methods to the runs of features that segments need.
#pragma once

#include <cstdint>
#include <vector>

#include "robocache/interpolation/method.hpp"

namespace robocache {

inline constexpr int64_t kAllFeatures = INT64_MAX;

// The features [begin, end) with one method. Callers may count either bound from the back, as in Python. The end
// kAllFeatures means the number of features.
struct FeatureBlock {
  int64_t begin;
  int64_t end;
  InterpolationMethod method;
};

// Returns the features [0, features) as runs in ascending order: features in `named` have their own methods, the others
// `method`. A pose is split into its position and its rotation. Neighbours with one method become one run, so a slerp
// run holds one or more quaternions. Without features there is one empty run.
//
// Throws ArgumentError naming `method` or `methods` if blocks overlap, are empty or lie outside the features, or if a
// slerp block is not 4 or a pose block not 7 features wide.
//
//   feature_blocks(10, kLinear, {{0, 7, kPose}})   // {0, 3, kLinear}, {3, 7, kSlerp}, {7, 10, kLinear}
std::vector<FeatureBlock> feature_blocks(int64_t features, InterpolationMethod method,
                                         const std::vector<FeatureBlock>& named);

}  // namespace robocache
