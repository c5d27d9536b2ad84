#include "robocache/align/window_math.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "tests/cpp/random_data.hpp"
#include "tests/cpp/reference.hpp"

namespace robocache {
namespace {

template <class Half>
void expect_one_rounding(double x) {
  const auto actual = rounded_once<Half>(x);
  const auto expected = test::rounded<Half>(x);
  ASSERT_TRUE(test::same(actual, expected))
      << std::hexfloat << x << " became " << test::widened(actual) << ", expected " << test::widened(expected);
}

template <class Half>
class RoundedOnce : public testing::Test {};
using Halves = testing::Types<Float16, BFloat16>;
TYPED_TEST_SUITE(RoundedOnce, Halves);

// Doubles beside the midpoint of two neighbouring 16-bit floats: rounded to float32 first, they would become the
// midpoint.
TYPED_TEST(RoundedOnce, BesideEveryMidpoint) {
  using Format = test::FormatOf<TypeParam>;
  for (uint16_t below = 0; below < Format::kInfinity; ++below) {
    const bool is_last = below + 1 == Format::kInfinity;
    const double low = Format::value(below);
    const double high = is_last ? std::ldexp(1, Format::kBias + 1) : Format::value(static_cast<uint16_t>(below + 1));
    const double midpoint = (low + high) / 2;
    for (const double x :
         {midpoint, std::nextafter(midpoint, 0), std::nextafter(midpoint, HUGE_VAL), low, std::nextafter(low, HUGE_VAL),
          midpoint + (high - low) * 0x1p-20, midpoint - (high - low) * 0x1p-20}) {
      expect_one_rounding<TypeParam>(x);
      expect_one_rounding<TypeParam>(-x);
    }
    if (testing::Test::HasFatalFailure()) return;
  }
}

TYPED_TEST(RoundedOnce, OfEverySize) {
  test::Random random(51);
  for (int i = 0; i < 200'000; ++i) {
    expect_one_rounding<TypeParam>(std::bit_cast<double>(random.bits()));
    expect_one_rounding<TypeParam>(std::ldexp(random.between(-2, 2), static_cast<int>(random.below(320)) - 160));
    if (testing::Test::HasFatalFailure()) return;
  }
  using Double = std::numeric_limits<double>;
  for (const double x :
       {0.0, -0.0, HUGE_VAL, -HUGE_VAL, Double::quiet_NaN(), Double::max(), Double::denorm_min(),
        static_cast<double>(std::numeric_limits<float>::max()), 0x1.fffffefp127, 0x1p-149, 0x1.8p-150}) {
    expect_one_rounding<TypeParam>(x);
    expect_one_rounding<TypeParam>(-x);
  }
}

TEST(GuessRow, IsARowForEveryTarget) {
  for (const int64_t rows : {0, 1, 2, 1000}) {
    for (const double rows_per_ns : {0.0, 1e-9, 1e-3, 1e9}) {
      if (rows < 2 && rows_per_ns > 0) continue;
      const EpisodeRows episode{
          .begin = 7, .rows = rows, .first_ns = 1'700'000'000'000'000'000, .rows_per_ns = rows_per_ns};
      for (const int64_t offset :
           {int64_t{0}, int64_t{1}, int64_t{-1}, int64_t{1} << 40, int64_t{1} << 62, INT64_MIN, INT64_MAX}) {
        const int64_t guess = guess_row(episode, saturating_add(episode.first_ns, offset));
        EXPECT_GE(guess, 0);
        EXPECT_LE(guess, std::max<int64_t>(rows - 1, 0));
      }
    }
  }
}

TEST(LastAround, IsTheLastRowAtOrBeforeForEveryGuess) {
  test::Random random(52);
  for (const int64_t n : {1, 2, 3, 4, 5, 9, 40}) {
    for (int round = 0; round < 20; ++round) {
      std::vector<int64_t> times(static_cast<size_t>(n));
      int64_t now = 0;
      for (int64_t& time : times) time = now += static_cast<int64_t>(random.below(3));  // a third are repeated
      const ClockRow<int64_t> clock{times.data(), 1};
      for (int64_t target = -1; target <= now + 1; ++target) {
        const auto expected = std::upper_bound(times.begin(), times.end(), target) - times.begin() - 1;
        for (int64_t guess = 0; guess < n; ++guess) {
          ASSERT_EQ(last_around(clock, n, target, guess), expected) << target << " of " << n << " from " << guess;
        }
      }
    }
  }
}

TEST(PickAt, EqualsTheReferenceForEveryHint) {
  const std::vector<int64_t> times{-50, 0, 0, 10, 11, 11, 40};
  const auto n = static_cast<int64_t>(times.size());
  const ClockRow<int64_t> clock{times.data(), 1};
  for (const InterpolationMethod method :
       {InterpolationMethod::kLinear, InterpolationMethod::kNearest, InterpolationMethod::kNext}) {
    for (const int64_t snap_ns : {0, 1, 2, 6, 30, 1000}) {
      for (int64_t target = -90; target <= 80; ++target) {
        int64_t snapped_target = target;
        int64_t closest = snap_ns;
        for (const int64_t time : times) {
          if (std::abs(time - target) < closest) {
            closest = std::abs(time - target);
            snapped_target = time;
          }
        }
        const auto expected =
            test::choose<double>(std::span(times), snapped_target, {.method = method, .max_gap = int64_t{40}});
        WindowSegment segment{};
        segment.max_gap_ns = 40;
        segment.tolerance_ns = -1;
        segment.method = method;
        for (int64_t first = -1; first <= n; ++first) {
          int64_t hint = first;
          const Pick<double> actual = pick_at(clock, n, find_target(clock, n, target, snap_ns, hint), segment);
          ASSERT_EQ(actual.kind == PickKind::kMix, expected.kind == test::Choice::kMixture)
              << target << " by " << snap_ns;
          ASSERT_EQ(actual.left, expected.left) << target << " by " << snap_ns;
          ASSERT_EQ(actual.right, expected.right) << target << " by " << snap_ns;
          ASSERT_EQ(actual.weight, expected.weight) << target << " by " << snap_ns;
          ASSERT_EQ(actual.valid, expected.valid) << target << " by " << snap_ns;
          ASSERT_TRUE(hint >= 0 && hint < n);
        }
      }
    }
  }
}

}  // namespace
}  // namespace robocache
