#include "robocache/interpolation/methods/slerp.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace robocache {
namespace {

TEST(Rotation, SinesAndTangentsAreWithin2Ulp) {
  constexpr double kTwoUlps = 2 * 0x1p-23;  // an ulp of float32 is at most 2^-23 of the number
  for (int i = 0; i <= 1'000'000; ++i) {
    const auto x = static_cast<float>(i * 1e-6);
    const double tangent = std::atan(static_cast<double>(x));
    EXPECT_LE(std::abs(arc_tangent(x) - tangent), kTwoUlps * tangent) << x;
    const auto angle = static_cast<float>(i * 1e-6 * 1.5707964);
    const double exact = std::sin(static_cast<double>(angle));
    EXPECT_LE(std::abs(sine_of_quarter_turn(angle) - exact), kTwoUlps * exact) << angle;
  }
}

}  // namespace
}  // namespace robocache
