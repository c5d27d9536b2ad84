#include "robocache/core/time.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace robocache {
namespace {

TEST(Time, SecondsRoundToTheNearestNanosecondTiesToEven) {
  EXPECT_EQ(seconds_to_ns(0), 0);
  EXPECT_EQ(seconds_to_ns(0.1), 100'000'000);
  EXPECT_EQ(seconds_to_ns(-0.1), -100'000'000);
  EXPECT_EQ(seconds_to_ns(1.0 / 3), 333'333'333);
  EXPECT_EQ(seconds_to_ns(2.0 / 3), 666'666'667);
  // Halves of a nanosecond that float64 can hold: 1e9 * 2^-10 = 976562.5, and three times that.
  EXPECT_EQ(seconds_to_ns(0x1p-10), 976'562);
  EXPECT_EQ(seconds_to_ns(0x3p-10), 2'929'688);
  EXPECT_EQ(seconds_to_ns(-0x1p-10), -976'562);
}

TEST(Time, TicksDoNotDrift) {
  const double period_ns = kNsPerSecond / 30;
  EXPECT_EQ(clock_tick_ns(0, period_ns), 0);
  EXPECT_EQ(clock_tick_ns(1, period_ns), 33'333'333);
  EXPECT_EQ(clock_tick_ns(2, period_ns), 66'666'667);
  for (int64_t second = 1; second < 1'000'000; second *= 7) {
    EXPECT_EQ(clock_tick_ns(30 * second, period_ns), second * 1'000'000'000);
  }
}

TEST(Time, DifferencesReachAcrossTheWholeRange) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kGreatest = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(ns_between(5, 3), 2u);
  EXPECT_EQ(ns_between(3, 3), 0u);
  EXPECT_EQ(ns_between(1, -1), 2u);
  EXPECT_EQ(ns_between(0, kLeast), uint64_t{1} << 63);
  EXPECT_EQ(ns_between(kGreatest, kLeast), std::numeric_limits<uint64_t>::max());
}

}  // namespace
}  // namespace robocache
