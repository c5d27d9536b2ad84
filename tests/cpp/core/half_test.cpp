#include "robocache/core/half.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/cpp/reference.hpp"

namespace robocache {
namespace {

Float16 narrowed(float x, Float16 /*to*/) { return to_float16(x); }
BFloat16 narrowed(float x, BFloat16 /*to*/) { return to_bfloat16(x); }

template <class Half>
class HalfFloat : public testing::Test {
 protected:
  using Format = test::FormatOf<Half>;
  static uint16_t narrow(float x) { return narrowed(x, Half{}).bits; }
};
using Halves = testing::Types<Float16, BFloat16>;
TYPED_TEST_SUITE(HalfFloat, Halves);

TYPED_TEST(HalfFloat, EveryValueWidensExactlyAndNarrowsBack) {
  for (uint32_t pattern = 0; pattern <= 0xffff; ++pattern) {
    const auto bits = static_cast<uint16_t>(pattern);
    const float wide = to_float(TypeParam{bits});
    const double expected = TestFixture::Format::value(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
      ASSERT_TRUE(std::isnan(TestFixture::Format::value(this->narrow(wide)))) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(wide), expected) << bits;
      ASSERT_EQ(std::signbit(wide), std::signbit(expected)) << bits;
      ASSERT_EQ(this->narrow(wide), bits);
    }
  }
}

TYPED_TEST(HalfFloat, MidpointsRoundToEvenAndTheirNeighboursToTheNearest) {
  for (uint16_t below = 0; below < TestFixture::Format::kInfinity; ++below) {
    const double low = TestFixture::Format::value(below);
    const bool is_last = below + 1 == TestFixture::Format::kInfinity;
    const double high = is_last ? std::ldexp(1, TestFixture::Format::kBias + 1)
                                : TestFixture::Format::value(static_cast<uint16_t>(below + 1));
    const auto midpoint = static_cast<float>((low + high) / 2);  // exact: it has one bit more than a 16-bit float
    const int even = below + (below & 1);
    ASSERT_EQ(this->narrow(midpoint), even) << below;
    ASSERT_EQ(this->narrow(-midpoint), even | 0x8000) << below;
    ASSERT_EQ(this->narrow(std::nextafter(midpoint, 0.0F)), below) << below;
    ASSERT_EQ(this->narrow(std::nextafter(midpoint, INFINITY)), below + 1) << below;
    ASSERT_EQ(this->narrow(-std::nextafter(midpoint, INFINITY)), (below + 1) | 0x8000) << below;
  }
}

TYPED_TEST(HalfFloat, FloatsOfEverySizeRoundToTheNearest) {
  // A prime step visits every exponent with 419 mantissas.
  for (uint64_t pattern = 0; pattern <= 0xffffffff; pattern += 20011) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(pattern));
    const uint16_t expected = TestFixture::Format::nearest(x);
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(TestFixture::Format::value(this->narrow(x)))) << pattern;
    } else {
      ASSERT_EQ(this->narrow(x), expected) << pattern;
    }
  }
}

TYPED_TEST(HalfFloat, EndsOfTheRange) {
  using Float = std::numeric_limits<float>;
  EXPECT_EQ(this->narrow(INFINITY), TestFixture::Format::kInfinity);
  EXPECT_EQ(this->narrow(-INFINITY), TestFixture::Format::kInfinity | 0x8000);
  EXPECT_EQ(this->narrow(Float::max()), TestFixture::Format::kInfinity);
  EXPECT_EQ(this->narrow(-Float::max()), TestFixture::Format::kInfinity | 0x8000);
  EXPECT_EQ(this->narrow(Float::denorm_min()), 0);
  EXPECT_EQ(this->narrow(-Float::denorm_min()), 0x8000);
  EXPECT_EQ(this->narrow(-0.0F), 0x8000);
  // NaNs whose payload is in the bits that are cut off.
  for (const uint32_t pattern : {0x7f800001U, 0xff800001U, 0x7fc00000U, 0x7fffffffU, 0xffffffffU}) {
    EXPECT_TRUE(std::isnan(TestFixture::Format::value(this->narrow(std::bit_cast<float>(pattern))))) << pattern;
  }
}

}  // namespace
}  // namespace robocache
