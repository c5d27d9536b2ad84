#include "robocache/interpolation/methods/slerp.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace robocache {
namespace {

TEST(Rotation, SinesAndTangentsAreWithin2Ulp) {
  // An ulp of float32 is at most 2 * 2^-24 of the number.
  for (int i = 0; i <= 1'000'000; ++i) {
    const auto x = static_cast<float>(i * 1e-6);
    const double tangent = std::atan(static_cast<double>(x));
    EXPECT_LE(std::abs(arc_tangent(x) - tangent), 2 * 0x1p-24 * 2 * tangent) << x;
    const auto angle = static_cast<float>(i * 1e-6 * 1.5707964);
    const double exact = std::sin(static_cast<double>(angle));
    EXPECT_LE(std::abs(sine_of_quarter_turn(angle) - exact), 2 * 0x1p-24 * 2 * exact) << angle;
  }
}

}  // namespace
}  // namespace robocache
