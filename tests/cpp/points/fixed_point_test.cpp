#include "robocache/points/voxels/fixed_point.hpp"

#include <gtest/gtest.h>

#include <bit>

#include "tests/cpp/random_data.hpp"
#include "tests/cpp/trials.hpp"

namespace robocache {
namespace {

using Wide = unsigned __int128;

int width_of(Wide x) {
  int width = 0;
  for (; x != 0; x >>= 1) ++width;
  return width;
}

// Compares a * 2^p with b * 2^q exactly: returns below, equal to or above 0. If the leading bits have the same weight,
// both fit in 128 bits.
int compare(Wide a, int p, Wide b, int q) {
  if (a == 0 || b == 0) return static_cast<int>(a != 0) - static_cast<int>(b != 0);
  const int difference = width_of(a) + p - width_of(b) - q;
  if (difference != 0) return difference;
  if (p > q) a <<= p - q;
  if (q > p) b <<= q - p;
  return a < b ? -1 : a > b ? 1 : 0;
}

// Returns the bits of the number nearest to magnitude * 2^exponent / divisor, ties to even. Finds it by bisection of the
// bit patterns, with exact comparisons.
template <class Out>
uint64_t nearest_bits(uint64_t magnitude, int exponent, uint64_t divisor) {
  using Format = FloatFormat<Out>;
  // Compares the value of a bit pattern, or the middle between it and the next value, with the true value.
  const auto compare_with_true = [&](uint64_t bits, bool halfway) {
    const uint64_t field = bits >> (Format::digits - 1);
    const uint64_t hidden = uint64_t{1} << (Format::digits - 1);
    const uint64_t digits = (bits & (hidden - 1)) | (field == 0 ? 0 : hidden);
    const int unit = Format::least + (field == 0 ? 0 : static_cast<int>(field) - 1);
    return compare(Wide{2 * digits + static_cast<uint64_t>(halfway)} * divisor, unit - 1, magnitude, exponent);
  };
  uint64_t low = 0;  // its value is at most the true value
  uint64_t high = Format::infinity;
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    (compare_with_true(middle, false) <= 0 ? low : high) = middle;
  }
  const int side = compare_with_true(low, true);
  return side < 0 || (side == 0 && (low & 1) != 0) ? high : low;
}

template <class Out>
uint64_t bits_of(Out x) {
  return std::bit_cast<typename FloatFormat<Out>::Bits>(x);
}

template <class Out>
uint64_t expected_bits(int64_t sum, int exponent, int64_t points) {
  const uint64_t sign = sum < 0 ? uint64_t{1} << (8 * sizeof(Out) - 1) : 0;
  return sign | nearest_bits<Out>(sum < 0 ? -static_cast<uint64_t>(sum) : static_cast<uint64_t>(sum), exponent,
                                  static_cast<uint64_t>(points));
}

// Returns sums of every width, many of them near the middle between two floats.
int64_t random_sum(test::Random& random) {
  uint64_t bits = random.bits() >> (1 + random.below(63));
  if (random.one_in(2)) bits &= ~uint64_t{0} << random.below(63);
  if (random.one_in(3)) bits += static_cast<uint64_t>(random.below(3)) - 1;
  if (random.one_in(100)) bits = uint64_t{1} << 63;
  return static_cast<int64_t>(random.one_in(2) ? -bits : bits);
}

template <class Out>
class Rounding : public testing::Test {};
using RoundedTypes = testing::Types<Float16, BFloat16, float, double>;
TYPED_TEST_SUITE(Rounding, RoundedTypes);

TYPED_TEST(Rounding, SumsAreRoundedOnce) {
  test::Random random(1);
  const int lowest = FloatFormat<TypeParam>::least;
  const int highest = std::is_same_v<TypeParam, double> ? 1023 : std::is_same_v<TypeParam, Float16> ? 15 : 127;
  for (int i = 0; i < test::trials(50'000); ++i) {
    const int64_t sum = random_sum(random);
    const int exponent = random.one_in(3) ? lowest : lowest + static_cast<int>(random.below(highest - lowest + 1));
    ASSERT_EQ(bits_of(rounded_sum<TypeParam>(sum, exponent)), expected_bits<TypeParam>(sum, exponent, 1))
        << sum << " * 2^" << exponent;
  }
}

TYPED_TEST(Rounding, MeansAreRoundedOnce) {
  test::Random random(2);
  const int lowest = FloatFormat<TypeParam>::least;
  const int highest = std::is_same_v<TypeParam, double> ? 1023 : std::is_same_v<TypeParam, Float16> ? 15 : 127;
  for (int i = 0; i < test::trials(50'000); ++i) {
    const int64_t points = 1 + (random.below((int64_t{1} << 31) - 1) >> random.below(31));
    int64_t sum = random_sum(random);
    if (random.one_in(3)) sum -= sum % points;  // exact means, so that middles occur
    const int exponent = random.one_in(3) ? lowest : lowest + static_cast<int>(random.below(highest - lowest + 1));
    const uint64_t expected = expected_bits<TypeParam>(sum, exponent, points);
    ASSERT_EQ(bits_of(rounded_quotient<TypeParam>(sum, exponent, points)), expected)
        << sum << " * 2^" << exponent << " / " << points;
    if constexpr (!std::is_same_v<TypeParam, double>) {
      if (points > kMostByFloat64) continue;
      ASSERT_EQ(bits_of(rounded_quotient_by_float64<TypeParam>(sum, exponent, points, 1.0 / points)), expected)
          << sum << " * 2^" << exponent << " / " << points;
    }
  }
}

TYPED_TEST(Rounding, MeansBesideAMiddleRoundToTheirSide) {
  using Format = FloatFormat<TypeParam>;
  test::Random random(3);
  for (int i = 0; i < test::trials(50'000); ++i) {
    // The sums are middle * points times a power of two, and one less and one more.
    const int bits_left = 62 - (Format::digits + 1);
    const int64_t points = 1 + (random.below((int64_t{1} << std::min(bits_left, 26)) - 1) >> random.below(20));
    const int64_t middle =
        static_cast<int64_t>(uint64_t{1} << Format::digits) + 2 * random.below(int64_t{1} << (Format::digits - 1)) + 1;
    const int64_t exact_sum = middle * points;
    const int shift = static_cast<int>(random.below(std::countl_zero(static_cast<uint64_t>(exact_sum)) - 1));
    for (int64_t difference = -1; difference <= 1; ++difference) {
      const int64_t sum = (exact_sum << shift) + difference;
      const uint64_t expected = expected_bits<TypeParam>(sum, -3, points);
      ASSERT_EQ(bits_of(rounded_quotient<TypeParam>(sum, -3, points)), expected) << sum << " / " << points;
      if constexpr (!std::is_same_v<TypeParam, double>) {
        ASSERT_EQ(bits_of(rounded_quotient_by_float64<TypeParam>(sum, -3, points, 1.0 / points)), expected)
            << sum << " / " << points;
      }
    }
  }
}

TYPED_TEST(Rounding, ASumOfZeroIsPositive) {
  EXPECT_EQ(bits_of(rounded_sum<TypeParam>(0, 10)), 0u);
  EXPECT_EQ(bits_of(rounded_quotient<TypeParam>(0, 10, 7)), 0u);
}

}  // namespace
}  // namespace robocache
