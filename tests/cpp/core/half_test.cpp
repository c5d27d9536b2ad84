#include "robocache/core/half.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace robocache {
namespace {

// The value of a 16-bit float from its fields, in double, where every one of them is exact.
double value_of(uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits >> 15) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

template <class Half>
struct Format;
template <>
struct Format<Float16> {
  static constexpr int kExponentBits = 5;
  static Float16 from(float x) { return to_float16(x); }
};
template <>
struct Format<BFloat16> {
  static constexpr int kExponentBits = 8;
  static BFloat16 from(float x) { return to_bfloat16(x); }
};

template <class Half>
class HalfFloat : public testing::Test {
 protected:
  static constexpr int kExponentBits = Format<Half>::kExponentBits;
  static double value(uint16_t bits) { return value_of(bits, kExponentBits, 15 - kExponentBits); }
};
using Halves = testing::Types<Float16, BFloat16>;
TYPED_TEST_SUITE(HalfFloat, Halves);

TYPED_TEST(HalfFloat, EveryValueWidensExactlyAndComesBack) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const TypeParam half{static_cast<uint16_t>(bits)};
    const float wide = to_float(half);
    const double expected = this->value(half.bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
      ASSERT_TRUE(std::isnan(to_float(Format<TypeParam>::from(wide)))) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(wide), expected) << bits;
      ASSERT_EQ(Format<TypeParam>::from(wide).bits, half.bits) << bits;
    }
  }
}

TYPED_TEST(HalfFloat, RoundsToTheNearestTiesToEven) {
  const uint16_t infinity = static_cast<uint16_t>(((1 << this->kExponentBits) - 1) << (15 - this->kExponentBits));
  for (uint16_t below = 0; below + 1 < infinity; ++below) {
    const double low = this->value(below);
    const double high = this->value(static_cast<uint16_t>(below + 1));
    const float middle = static_cast<float>((low + high) / 2);  // exact: one bit more than a half has
    const uint16_t even = (below & 1) != 0 ? static_cast<uint16_t>(below + 1) : below;
    ASSERT_EQ(Format<TypeParam>::from(middle).bits, even) << below;
    ASSERT_EQ(Format<TypeParam>::from(-middle).bits, even | 0x8000) << below;
    ASSERT_EQ(Format<TypeParam>::from(std::nextafter(middle, 0.0f)).bits, below) << below;
    ASSERT_EQ(Format<TypeParam>::from(std::nextafter(middle, INFINITY)).bits, below + 1) << below;
  }
}

TYPED_TEST(HalfFloat, TooLargeBecomesInfinity) {
  EXPECT_TRUE(std::isinf(to_float(Format<TypeParam>::from(std::numeric_limits<float>::max()))));
  EXPECT_TRUE(std::isinf(to_float(Format<TypeParam>::from(-INFINITY))));
}

}  // namespace
}  // namespace robocache
