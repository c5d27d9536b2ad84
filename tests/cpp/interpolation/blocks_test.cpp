#include "robocache/interpolation/blocks.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "robocache/core/error.hpp"

namespace robocache {
namespace {

using M = InterpolationMethod;

std::string text(const std::vector<FeatureBlock>& blocks) {
  std::string all;
  for (const FeatureBlock& block : blocks) {
    all += std::to_string(block.begin) + "-" + std::to_string(block.end) + " " +
           std::string(method_name(block.method)) + "; ";
  }
  return all;
}

std::string blocks(int64_t features, M method, const std::vector<FeatureBlock>& named = {}) {
  try {
    return text(feature_blocks(features, method, named));
  } catch (const ArgumentError& error) {
    return error.what();
  }
}

TEST(FeatureBlocks, AreRunsInTheFeaturesOrder) {
  EXPECT_EQ(blocks(5, M::kPchip), "0-5 pchip; ");
  EXPECT_EQ(blocks(0, M::kLinear), "0-0 linear; ");
  EXPECT_EQ(blocks(7, M::kPose), "0-3 linear; 3-7 slerp; ");
  EXPECT_EQ(blocks(10, M::kLinear, {{0, 7, M::kPose}}), "0-3 linear; 3-7 slerp; 7-10 linear; ");
  EXPECT_EQ(blocks(10, M::kNext, {{6, 8, M::kPrevious}, {1, 3, M::kNearest}}),
            "0-1 next; 1-3 nearest; 3-6 next; 6-8 previous; 8-10 next; ");
}

TEST(FeatureBlocks, CountFromTheBackAsInPython) {
  EXPECT_EQ(blocks(10, M::kLinear, {{-4, 10, M::kSlerp}, {0, -8, M::kAkima}}), "0-2 akima; 2-6 linear; 6-10 slerp; ");
}

TEST(FeatureBlocks, NeighboursOfOneMethodBecomeOne) {
  EXPECT_EQ(blocks(12, M::kLinear, {{8, 12, M::kSlerp}, {0, 4, M::kSlerp}, {4, 8, M::kSlerp}}), "0-12 slerp; ");
  EXPECT_EQ(blocks(14, M::kLinear, {{0, 7, M::kPose}, {7, 14, M::kPose}}),
            "0-3 linear; 3-7 slerp; 7-10 linear; 10-14 slerp; ");
  EXPECT_EQ(blocks(8, M::kLinear, {{1, 8, M::kPose}}), "0-4 linear; 4-8 slerp; ");
}

TEST(FeatureBlocks, RefusesWhatCannotBe) {
  EXPECT_EQ(blocks(9, M::kLinear, {{0, 3, M::kPchip}, {2, 5, M::kAkima}}),
            "methods: slice(0, 3) and slice(2, 5) overlap");
  for (const FeatureBlock& bad :
       {FeatureBlock{3, 3, M::kAkima}, {5, 2, M::kAkima}, {0, 10, M::kAkima}, {-10, 2, M::kAkima}, {9, 9, M::kAkima}}) {
    EXPECT_EQ(blocks(9, M::kLinear, {bad}), "methods: expected slices of one feature or more of [0, 9), got slice(" +
                                                std::to_string(bad.begin) + ", " + std::to_string(bad.end) + ")");
  }
  EXPECT_EQ(blocks(8, M::kSlerp), "method: 'slerp' expects 4 features, got 8; name each quaternion by its slice");
  EXPECT_EQ(blocks(6, M::kPose), "method: 'pose' expects 7 features, got 6; name each pose by its slice");
  EXPECT_EQ(blocks(9, M::kLinear, {{0, 8, M::kSlerp}}),
            "methods: 'slerp' expects 4 features, got 8; name each quaternion by its slice");
}

}  // namespace
}  // namespace robocache
