#include "robocache/points/voxels/fixed_point.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "robocache/core/order_key.hpp"
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

// a * 2^p against b * 2^q, exactly: below, equal or above 0. Where the leading bits stand together, both fit in 128 bits.
int compare(Wide a, int p, Wide b, int q) {
  if (a == 0 || b == 0) return static_cast<int>(a != 0) - static_cast<int>(b != 0);
  const int difference = width_of(a) + p - width_of(b) - q;
  if (difference != 0) return difference;
  if (p > q) a <<= p - q;
  if (q > p) b <<= q - p;
  return a < b ? -1 : a > b ? 1 : 0;
}

// The nearest number of the format, ties to even, to magnitude * 2^exponent / divisor: found by halving the range of bit
// patterns, decided by exact comparison.
template <class Out>
uint64_t nearest_bits(uint64_t magnitude, int exponent, uint64_t divisor) {
  using Format = FloatFormat<Out>;
  const auto against = [&](uint64_t bits,
                           bool halfway) {  // the pattern's value, or the middle above it, with the truth
    const uint64_t field = bits >> (Format::digits - 1);
    const uint64_t hidden = uint64_t{1} << (Format::digits - 1);
    const uint64_t digits = (bits & (hidden - 1)) | (field == 0 ? 0 : hidden);
    const int unit = Format::least + (field == 0 ? 0 : static_cast<int>(field) - 1);
    return compare(Wide{2 * digits + static_cast<uint64_t>(halfway)} * divisor, unit - 1, magnitude, exponent);
  };
  uint64_t low = 0;  // at most the truth
  uint64_t high = Format::infinity;
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    (against(middle, false) <= 0 ? low : high) = middle;
  }
  const int side = against(low, true);
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

// Sums of every width, many of them near a middle between two floats.
int64_t random_sum(test::Random& random) {
  uint64_t bits = random.bits() >> (1 + random.below(63));
  if (random.one_in(2)) bits &= ~uint64_t{0} << random.below(63);
  if (random.one_in(3)) bits += static_cast<uint64_t>(random.below(3)) - 1;
  if (random.one_in(100)) bits = uint64_t{1} << 63;
  return static_cast<int64_t>(random.one_in(2) ? -bits : bits);
}

template <class Out>
class Rounding : public testing::Test {};
using Outs = testing::Types<Float16, BFloat16, float, double>;
TYPED_TEST_SUITE(Rounding, Outs);

TYPED_TEST(Rounding, SumsGoToTheNearestOnce) {
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

TYPED_TEST(Rounding, MeansGoToTheNearestOnce) {
  test::Random random(2);
  const int lowest = FloatFormat<TypeParam>::least;
  const int highest = std::is_same_v<TypeParam, double> ? 1023 : std::is_same_v<TypeParam, Float16> ? 15 : 127;
  for (int i = 0; i < test::trials(50'000); ++i) {
    const int64_t points = 1 + (random.below((int64_t{1} << 31) - 1) >> random.below(31));
    int64_t sum = random_sum(random);
    if (random.one_in(3)) sum -= sum % points;  // exact, so that middles are met
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

TYPED_TEST(Rounding, MeansBesideAMiddleGoToItsSide) {
  using Format = FloatFormat<TypeParam>;
  test::Random random(3);
  for (int i = 0; i < test::trials(50'000); ++i) {
    // middle * points, times a power of two, and one more and one less, where that fits.
    const int bits_left = 62 - (Format::digits + 1);
    const int64_t points = 1 + (random.below((int64_t{1} << std::min(bits_left, 26)) - 1) >> random.below(20));
    const int64_t middle =
        static_cast<int64_t>(uint64_t{1} << Format::digits) + 2 * random.below(int64_t{1} << (Format::digits - 1)) + 1;
    const int64_t exact = middle * points;
    const int shift = static_cast<int>(random.below(std::countl_zero(static_cast<uint64_t>(exact)) - 1));
    for (int64_t beside = -1; beside <= 1; ++beside) {
      const int64_t sum = (exact << shift) + beside;
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

TEST(Quantum, ExponentAboveIsTheLeast) {
  test::Random random(4);
  for (int i = 0; i < test::trials(100'000); ++i) {
    const double x = std::ldexp(random.between(-1, 1), static_cast<int>(random.below(2140)) - 1100);
    if (x == 0 || !std::isfinite(x)) continue;
    int e = 0;
    std::frexp(x, &e);
    ASSERT_EQ(exponent_above(x), e) << x;
    const float y = static_cast<float>(x);
    if (y == 0 || !std::isfinite(y)) continue;
    std::frexp(y, &e);
    ASSERT_EQ(exponent_above(y), std::max(e, -126)) << y;
  }
  EXPECT_EQ(exponent_above(0.0), -1074);
  EXPECT_EQ(exponent_above(0.0F), -126);
}

// Any number of values up to the largest fits, and each is off by no more than is promised.
TEST(Quantum, SumsFitAndEachValueIsNear) {
  test::Random random(5);
  for (int i = 0; i < test::trials(100'000); ++i) {
    const bool is_double = random.one_in(2);
    const int32_t least = is_double ? -1074 : -149;
    double largest = std::ldexp(random.between(0.5, 1), static_cast<int>(random.below(is_double ? 2098 : 277)) + least);
    if (!is_double) largest = static_cast<float>(largest);
    if (random.one_in(50)) largest = is_double ? 0x1.fffffffffffffp1023 : 0x1.fffffep127;
    if (largest == 0) continue;
    const int64_t points = 1 + (random.below((int64_t{1} << 31) - 1) >> random.below(31));
    const int32_t e = is_double ? exponent_above(largest) : exponent_above(static_cast<float>(largest));
    const int32_t exponent = own_quantum(e, points, least);
    const QuantumScale scale = quantum_scale(exponent);
    double x = largest * random.between(-1, 1);
    if (!is_double) x = static_cast<float>(x);
    for (const double feature : {x, largest, -largest}) {
      const int64_t quanta = is_double ? to_quanta(feature, scale) : to_quanta(static_cast<float>(feature), scale);
      ASSERT_EQ(quanta, to_quanta(feature, scale));
      ASSERT_LE(static_cast<Wide>(std::abs(quanta)) * static_cast<Wide>(points), Wide{1} << 62);
      // |feature - quanta * 2^exponent| <= 2^(exponent - 1), in long double with its 64 digits, scaled to whole numbers.
      const long double exact = std::ldexp(static_cast<long double>(feature), -exponent);
      ASSERT_LE(std::fabs(exact - static_cast<long double>(quanta)), 0.5L);
      ASSERT_EQ(static_cast<long double>(quanta), std::nearbyint(exact));
      if (exponent > least) {
        ASSERT_LE(std::ldexp(0.5L, exponent), std::ldexp(static_cast<long double>(largest), -31));
      } else {
        ASSERT_EQ(exact, static_cast<long double>(quanta));  // a multiple of the dtype's least number is met exactly
      }
    }
  }
}

TEST(Quantum, AGivenOneTakesWhatFitsInt64) {
  int64_t quanta = 0;
  EXPECT_TRUE(to_given_quanta(1.5, quantum_scale(-1), quanta));
  EXPECT_EQ(quanta, 3);
  EXPECT_TRUE(to_given_quanta(0.75, quantum_scale(-1), quanta));
  EXPECT_EQ(quanta, 2);  // ties to even
  EXPECT_TRUE(to_given_quanta(-0x1p63, quantum_scale(0), quanta));
  EXPECT_EQ(quanta, INT64_MIN);
  EXPECT_FALSE(to_given_quanta(0x1p63, quantum_scale(0), quanta));
  EXPECT_FALSE(to_given_quanta(1e300, quantum_scale(-1074), quanta));
  EXPECT_TRUE(to_given_quanta(1e300, quantum_scale(1023), quanta));
  EXPECT_EQ(quanta, 0);
  EXPECT_TRUE(to_given_quanta(0x1p-1074, quantum_scale(-1074), quanta));
  EXPECT_EQ(quanta, 1);
}

TEST(Quantum, OverflowIsThatOfTheTrueSum) {
  test::Random random(6);
  const int64_t least = INT64_MIN;
  const int64_t most = INT64_MAX;
  int overflown = 0;
  for (int i = 0; i < test::trials(50'000); ++i) {
    __int128 truth = 0;
    uint64_t wrapped = 0;
    int64_t coarse_sum = 0;
    const auto add = [&](int64_t quanta) {
      truth += quanta;
      wrapped += static_cast<uint64_t>(quanta);
      coarse_sum += coarse(quanta);
    };
    const int64_t count = 1 + random.below(8);
    for (int64_t k = 0; k < count; ++k) {
      add(static_cast<int64_t>(random.bits()) >> (random.one_in(2) ? 0 : random.below(64)));
    }
    if (random.one_in(2)) {  // to the edge, and one past it
      const __int128 gap = (truth < 0 ? static_cast<__int128>(least) : static_cast<__int128>(most)) - truth;
      if (gap >= least && gap <= most) add(static_cast<int64_t>(gap));
      add(random.below(3) - 1);
    }
    const bool overflows = truth < least || truth > most;
    overflown += static_cast<int>(overflows);
    ASSERT_EQ(sum_overflows(static_cast<int64_t>(wrapped), coarse_sum), overflows);
  }
  EXPECT_GT(overflown, 500);
  for (const int64_t small : {int64_t{-1} << 30, (int64_t{1} << 30) - 1, int64_t{0}}) EXPECT_EQ(coarse(small), 0);
  EXPECT_EQ(coarse(int64_t{1} << 30), 1);
}

TEST(Marks, SayWhatASumOfThemIs) {
  EXPECT_EQ(mark_of(1.0F) | mark_of(-0.0), 0u);
  EXPECT_EQ(mark_of(HUGE_VALF), kHasInfinity);
  EXPECT_EQ(mark_of(-HUGE_VAL), kHasMinusInfinity);
  EXPECT_EQ(mark_of(std::nan("")), kHasNan);
  EXPECT_EQ(marked_sum(kHasInfinity), HUGE_VALF);
  EXPECT_EQ(marked_sum(kHasMinusInfinity), -HUGE_VALF);
  EXPECT_TRUE(std::isnan(marked_sum(kHasInfinity | kHasMinusInfinity)));
  EXPECT_TRUE(std::isnan(marked_sum(kHasInfinity | kHasNan)));
}

template <class T>
void expect_order(const std::vector<T>& ascending) {
  for (size_t i = 0; i < ascending.size(); ++i) {
    T back{};
    from_order_key(order_key(ascending[i]), back);
    EXPECT_EQ(back, ascending[i]);
    EXPECT_EQ(std::signbit(static_cast<double>(back)), std::signbit(static_cast<double>(ascending[i])));
    EXPECT_EQ(max_key(ascending[i]), order_key(ascending[i]));
    EXPECT_EQ(min_key(ascending[i]), order_key(ascending[i]));
    if (i > 0) {
      EXPECT_LT(order_key(ascending[i - 1]), order_key(ascending[i]));
    }
  }
}

template <class T>
void expect_nan_wins() {
  for (const T nan : {std::numeric_limits<T>::quiet_NaN(), -std::numeric_limits<T>::quiet_NaN()}) {
    EXPECT_GT(max_key(nan), max_key(std::numeric_limits<T>::infinity()));
    EXPECT_LT(min_key(nan), min_key(-std::numeric_limits<T>::infinity()));
    T back = 0;
    from_order_key(max_key(nan), back);
    EXPECT_TRUE(std::isnan(back));
    from_order_key(min_key(nan), back);
    EXPECT_TRUE(std::isnan(back));
  }
}

TEST(OrderKey, AscendsAndComesBack) {
  expect_order<float>({-HUGE_VALF, -2.0F, -1e-45F, -0.0F, 0.0F, 1e-45F, 2.0F, HUGE_VALF});
  expect_order<double>({-HUGE_VAL, -2.0, -5e-324, -0.0, 0.0, 5e-324, 2.0, HUGE_VAL});
  expect_order<int32_t>({INT32_MIN, -1, 0, 1, INT32_MAX});
  expect_order<uint32_t>({0, 1, UINT32_MAX});
  expect_order<int64_t>({INT64_MIN, -1, 0, 1, INT64_MAX});
}

TEST(OrderKey, NanWins) {
  expect_nan_wins<float>();
  expect_nan_wins<double>();
}

}  // namespace
}  // namespace robocache
