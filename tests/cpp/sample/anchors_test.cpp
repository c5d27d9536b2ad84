#include "robocache/sample/anchors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "robocache/core/error.hpp"
#include "tests/cpp/host_clock.hpp"
#include "tests/cpp/random_data.hpp"

namespace robocache {
namespace {

using test::HostClock;

constexpr int64_t kStart = 1'700'000'000'000'000'000;
constexpr int64_t kSecond = 1'000'000'000;

using Episodes = std::vector<std::vector<int64_t>>;        // times of each
using Moments = std::vector<std::pair<int64_t, int64_t>>;  // episode, time in ns

std::vector<int64_t> first_episodes(size_t count) {
  std::vector<int64_t> episodes(count);
  std::iota(episodes.begin(), episodes.end(), 0);
  return episodes;
}

Moments moments_of(const Anchors& anchors) {
  Moments moments;
  const AnchorIndex index = anchors.index();
  for (int64_t anchor = 0; anchor < index.anchors; ++anchor) {
    const Anchor at = index.at(anchor);
    moments.emplace_back(at.episode, at.time_ns);
  }
  return moments;
}

// ---- Ticks of a clock ----

TEST(AnchorsOfTicks, AreEveryRowOfTheEpisodesInTheOrderAskedFor) {
  const HostClock clock(Episodes{{1, 2, 5}, {}, {4}, {6, 6, 7}});
  EXPECT_EQ(moments_of(Anchors::of_ticks(clock.view(), first_episodes(4))),
            (Moments{{0, 1}, {0, 2}, {0, 5}, {2, 4}, {3, 6}, {3, 6}, {3, 7}}));
  EXPECT_EQ(moments_of(Anchors::of_ticks(clock.view(), std::vector<int64_t>{3, 1, 0})),
            (Moments{{3, 6}, {3, 6}, {3, 7}, {0, 1}, {0, 2}, {0, 5}}));
  EXPECT_TRUE(moments_of(Anchors::of_ticks(clock.view(), std::vector<int64_t>{1})).empty());
  EXPECT_TRUE(moments_of(Anchors::of_ticks(clock.view(), {})).empty());
}

TEST(AnchorsOfTicks, AreFoundAmongManyEpisodesOfAllLengths) {
  test::Random random(31);
  Episodes recording;
  Moments expected;
  for (int64_t episode = 0; episode < 400; ++episode) {
    const int64_t rows = episode == 123 ? 5000 : random.one_in(3) ? 0 : random.below(40);
    recording.emplace_back();
    for (int64_t i = 0; i < rows; ++i) recording.back().push_back(kStart + 1000 * episode + 3 * i);
    for (const int64_t time : recording.back()) expected.emplace_back(episode, time);
  }
  const HostClock clock(recording);
  EXPECT_EQ(moments_of(Anchors::of_ticks(clock.view(), first_episodes(400))), expected);
}

// ---- Ticks of a rate ----

// By counting, with digits to spare: k / hz to the nearest ns from the latest first row, as long as no clock has ended.
Moments counted(const std::vector<Episodes>& clocks, double hz) {
  Moments moments;
  for (size_t episode = 0; episode < clocks[0].size(); ++episode) {
    std::vector<int64_t> firsts;
    std::vector<int64_t> lasts;
    for (const Episodes& clock : clocks) {
      if (clock[episode].empty()) continue;
      firsts.push_back(clock[episode].front());
      lasts.push_back(clock[episode].back());
    }
    if (firsts.empty()) continue;
    const int64_t start = *std::max_element(firsts.begin(), firsts.end());
    const int64_t end = *std::min_element(lasts.begin(), lasts.end());
    for (int64_t k = 0;; ++k) {
      const int64_t time = start + std::llrint(static_cast<long double>(k) * 1e9L / static_cast<long double>(hz));
      if (time > end) break;
      moments.emplace_back(episode, time);
    }
  }
  return moments;
}

TEST(AnchorsAtRate, CoverTheSpanThatAllClocksCover) {
  const Episodes a{{0, kSecond},                // with b: both
                   {kStart, kStart + kSecond},  // one
                   {0, kSecond},                // apart: none
                   {0, kSecond},                // they touch: one tick
                   {kStart},                    // one row
                   {-kSecond, kSecond},         // before 0
                   {}};                         // none of them
  const Episodes b{{kSecond / 10, 2 * kSecond},
                   {},
                   {2 * kSecond, 3 * kSecond},
                   {kSecond, 3 * kSecond},
                   {kStart - kSecond, kStart + kSecond},
                   {},
                   {}};
  const HostClock of_a(a);
  const HostClock of_b(b);
  for (const double hz : {0.1, 1.0, 3.0, 29.97, 1000.0, 123.456}) {
    EXPECT_EQ(moments_of(Anchors::at_rate(hz, std::vector{of_a.view(), of_b.view()}, first_episodes(7))),
              counted({a, b}, hz))
        << hz << " Hz";
    EXPECT_EQ(moments_of(Anchors::at_rate(hz, std::vector{of_b.view()}, first_episodes(7))), counted({b}, hz)) << hz;
  }
}

TEST(AnchorsAtRate, DoNotDriftOverHours) {
  const int64_t hour = 3600 * kSecond;
  const HostClock clock(Episodes{{kStart, kStart + 5 * hour}});
  const Anchors anchors = Anchors::at_rate(30, std::vector{clock.view()}, first_episodes(1));
  ASSERT_EQ(anchors.index().anchors, 5 * 3600 * 30 + 1);
  EXPECT_EQ(anchors.index().at(5 * 3600 * 30).time_ns, kStart + 5 * hour);
  EXPECT_EQ(anchors.index().at(1).time_ns, kStart + 33'333'333);
}

TEST(AnchorsAtRate, CountUpTo2To53TicksAndNoFurther) {
  const auto at_rate = [](const Episodes& episodes, double hz) {
    const HostClock clock(episodes);
    return Anchors::at_rate(hz, std::vector{clock.view()}, first_episodes(episodes.size())).index();
  };
  constexpr int64_t kMost = int64_t{1} << 53;
  const AnchorIndex most = at_rate({{-kMost / 2, kMost / 2 - 1}}, 1e9);
  EXPECT_EQ(most.anchors, kMost);
  EXPECT_EQ(most.period_ns, 1);
  for (const auto& [episodes, hz] : std::vector<std::pair<Episodes, double>>{
           {{{0, kMost}}, 1e9}, {{{0, kMost / 2}, {0, kMost / 2}}, 1e9}, {{{INT64_MIN, INT64_MAX}}, 1e-9}}) {
    try {
      at_rate(episodes, hz);
      ADD_FAILURE() << hz << " Hz of " << episodes.size() << " episodes";
    } catch (const ArgumentError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("anchors.rate_hz: expected ")) << error.what();
    }
  }
  // 292 years at a tick in 10 s: the last one is where it must be.
  const AnchorIndex long_one = at_rate({{-5, INT64_MAX - 5}}, 0.1);
  EXPECT_EQ(long_one.anchors, INT64_MAX / (10 * kSecond) + 1);
}

}  // namespace
}  // namespace robocache
