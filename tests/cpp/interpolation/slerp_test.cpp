#include "robocache/interpolation/methods/slerp.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/cpp/random_data.hpp"

namespace robocache {
namespace {

using test::Random;

TEST(Rotation, SinesAndTangentsAreWithin2Ulp) {
  for (int i = 0; i <= 1'000'000; ++i) {
    const auto x = static_cast<float>(i * 1e-6);
    const double tangent = std::atan(static_cast<double>(x));
    EXPECT_LE(std::abs(arc_tangent(x) - tangent), 2 * 0x1p-24 * 2 * tangent) << x;
    const auto angle = static_cast<float>(i * 1e-6 * 1.5707964);
    const double exact = std::sin(static_cast<double>(angle));
    EXPECT_LE(std::abs(sine_of_quarter_turn(angle) - exact), 2 * 0x1p-24 * 2 * exact) << angle;
  }
}

template <class Scalar>
void random_quaternion(Random& random, Scalar (&q)[4]) {
  for (Scalar& x : q) x = static_cast<Scalar>(random.between(-1, 1));
}

using Real = long double;

// Turning from a by an angle in the plane of a and b, in long double.
template <class Scalar>
void expect_turned(const Scalar (&a)[4], const Scalar (&b)[4], Scalar w, double tolerance) {
  Real unit_a[4];
  Real unit_b[4];
  Real dot = 0;
  Real length_a = 0;
  Real length_b = 0;
  for (int i = 0; i < 4; ++i) {
    length_a += static_cast<Real>(a[i]) * a[i];
    length_b += static_cast<Real>(b[i]) * b[i];
  }
  for (int i = 0; i < 4; ++i) {
    unit_a[i] = a[i] / std::sqrt(length_a);
    unit_b[i] = b[i] / std::sqrt(length_b);
    dot += unit_a[i] * unit_b[i];
  }
  if (std::abs(dot) < tolerance) return;  // half a turn: two arcs
  Real side[4];                           // of length 1, perpendicular to a, towards b or -b
  Real across = 0;
  for (int i = 0; i < 4; ++i) {
    side[i] = (unit_b[i] - dot * unit_a[i]) * (dot < 0 ? -1 : 1);
    across += side[i] * side[i];
  }
  const Real angle = std::atan2(std::sqrt(across), std::abs(dot)) * w;
  Scalar first[4];
  Scalar second[4];
  Scalar y[4];
  for (int i = 0; i < 4; ++i) {
    first[i] = a[i];
    second[i] = b[i];
  }
  slerp(first, second, w, 1 - w, y);
  for (int i = 0; i < 4; ++i) {
    const Real sideways = across == 0 ? 0 : std::sin(angle) * side[i] / std::sqrt(across);
    EXPECT_NEAR(y[i], static_cast<double>(std::cos(angle) * unit_a[i] + sideways), tolerance * (1 + std::abs(w)));
  }
}

template <class Scalar>
void expect_slerp_is_within_its_bound(double unit) {
  Random random(41);
  for (int trial = 0; trial < 20000; ++trial) {
    Scalar a[4];
    Scalar b[4];
    random_quaternion(random, a);
    random_quaternion(random, b);
    if (random.one_in(3)) {  // nearly the same rotation, or nearly the opposite one
      const double little = std::exp2(-random.between(0, 40));
      const double side = random.one_in(2) ? 1 : -1;
      for (int i = 0; i < 4; ++i) b[i] = static_cast<Scalar>(side * a[i] + little * b[i]);
    }
    if (random.one_in(3)) {
      const double length = std::exp2(random.between(-100, 100));
      for (Scalar& x : b) x = static_cast<Scalar>(x * length);
    }
    const double w = random.one_in(4) ? random.between(-3, 4) : random.between(0, 1);
    expect_turned(a, b, static_cast<Scalar>(w), 64 * unit);
  }
}

TEST(Rotation, SlerpOfFloat32IsWithinItsBound) { expect_slerp_is_within_its_bound<float>(0x1p-24); }
TEST(Rotation, SlerpOfFloat64IsWithinItsBound) { expect_slerp_is_within_its_bound<double>(0x1p-53); }

TEST(Rotation, ASmallAngleKeepsItsDigits) {
  for (const float turn : {1e-3f, 1e-6f, 1e-12f, 1e-20f, 1e-30f}) {
    float a[4] = {0, 0, 0, 1};
    float b[4] = {turn, 0, 0, 1};
    float y[4];
    slerp(a, b, 0.25f, 0.75f, y);
    EXPECT_NEAR(y[0] / turn, 0.25f, 1e-6f) << turn;
    EXPECT_EQ(y[3], 1);
  }
}

TEST(Rotation, LengthZeroAndInfinityAreNan) {
  for (const float bad : {0.0f, INFINITY, NAN}) {
    for (const bool first : {true, false}) {
      float a[4] = {0, 0, 0, 1};
      float b[4] = {0, 0, 0, 1};
      (first ? a : b)[3] = bad;
      float y[4];
      slerp(a, b, 0.5f, 0.5f, y);
      for (const float x : y) EXPECT_TRUE(std::isnan(x));
    }
  }
}

TEST(Rotation, TwoOfLengthZeroAreZero) {
  for (const float w : {0.5f, 3.0f}) {
    float a[4] = {0, -0.0f, 0, 0};
    float b[4] = {0, 0, 0, 0};
    float y[4];
    slerp(a, b, w, 1 - w, y);
    for (const float x : y) EXPECT_EQ(x, 0);
  }
}

}  // namespace
}  // namespace robocache
