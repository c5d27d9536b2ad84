#include "robocache/interpolation/methods/angle.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/cpp/random_data.hpp"
#include "tests/cpp/trials.hpp"

namespace robocache {
namespace {

template <class Scalar>
Scalar angle_at(Scalar a, Scalar b, Scalar w) {
  return Angle::value(CurveWeights<Scalar>{.along = w}, 0, 0, {a, b});
}

using test::Random;
using Real = long double;

constexpr Real kPi = 3.14159265358979323846264338327950288L;

Real on_circle(Real angle) { return std::remainder(angle, 2 * kPi); }

// Samples up to a thousand turns away, against long double; its 2 pi is off by 2^-62, which a thousand turns make 2^-52 of
// what float32 resolves and too much for float64: those stay within a turn.
template <class Scalar>
void expect_angles_are_within_their_bound(double unit, double farthest) {
  Random random(17);
  for (int trial = 0; trial < test::trials(100'000); ++trial) {
    const auto a = static_cast<Scalar>(random.between(-farthest, farthest));
    auto b = static_cast<Scalar>(random.between(-farthest, farthest));
    if (random.one_in(3)) b = static_cast<Scalar>(a + std::exp2(-random.between(0, 40)));
    const auto w = static_cast<Scalar>(random.one_in(4) ? random.between(-3, 4) : random.between(0, 1));
    const Scalar y = angle_at(a, b, w);
    EXPECT_GE(y, -Turn<Scalar>::kHalf);
    EXPECT_LT(y, Turn<Scalar>::kHalf);
    const Real apart = static_cast<Real>(b) - static_cast<Real>(a);
    const Real way = on_circle(apart);
    if (kPi - std::abs(way) < 4 * unit * (1 + std::abs(apart))) continue;  // half a turn: two ways
    const Real off = on_circle(static_cast<Real>(y) - (static_cast<Real>(a) + way * static_cast<Real>(w)));
    ASSERT_LE(std::abs(off), unit * (20 + std::abs(w) * (std::abs(apart) + 16))) << a << " " << b << " " << w;
    ASSERT_NEAR(Angle::way(a, b), static_cast<double>(way), 8 * 0x1p-53 * (1 + farthest));
  }
}

TEST(Angle, OfFloat32IsWithinItsBound) { expect_angles_are_within_their_bound<float>(0x1p-24, 6000); }
TEST(Angle, OfFloat64IsWithinItsBound) { expect_angles_are_within_their_bound<double>(0x1p-53, 6); }

TEST(Angle, IsLinearBitForBitWhereNothingWraps) {
  Random random(18);
  for (int trial = 0; trial < test::trials(100'000); ++trial) {
    const auto a = static_cast<float>(random.between(-1.5, 1.5));
    const auto b = static_cast<float>(random.between(-1.5, 1.5));
    const auto w = static_cast<float>(random.between(0, 1));
    ASSERT_EQ(angle_at(a, b, w), lerp(a, b, w));
  }
}

// Every float32 from 0 to the end: whatever comes in, what comes out is on the circle or NaN.
TEST(Angle, AnyFloat32EndsOnTheCircle) {
  for (uint32_t bits = 0; bits < 0x7f800000u; bits += 1009) {
    const float x = std::bit_cast<float>(bits);
    for (const float a : {x, -x}) {
      const float y = angle_at(a, a, 0.5f);
      ASSERT_TRUE(y >= -Turn<float>::kHalf && y < Turn<float>::kHalf) << a;
    }
  }
}

TEST(Angle, IsNanWhereASampleIsNotFinite) {
  for (const double bad : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_TRUE(std::isnan(angle_at(bad, 1.0, 0.5)));
    EXPECT_TRUE(std::isnan(angle_at(1.0, bad, 0.5)));
    EXPECT_TRUE(std::isnan(angle_at(1.0, 2.0, bad)));
  }
}

TEST(Angle, PiItselfIsMinusPi) {
  EXPECT_EQ(angle_at(Turn<float>::kHalf, Turn<float>::kHalf, 0.5f), -Turn<float>::kHalf);
  EXPECT_EQ(angle_at(Turn<double>::kHalf, Turn<double>::kHalf, 0.5), -Turn<double>::kHalf);
}

}  // namespace
}  // namespace robocache
