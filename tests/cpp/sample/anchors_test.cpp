#include "robocache/sample/anchors.hpp"

#include <gtest/gtest.h>

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

using Episodes = std::vector<std::vector<int64_t>>;        // the times of each episode
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
    const Anchor moment = index.at(anchor);
    moments.emplace_back(moment.episode, moment.time_ns);
  }
  return moments;
}

// ---- Ticks of a clock ----

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

TEST(AnchorsOfTicks, AreFilteredOnceAndBeforeTheyAreSplit) {
  const HostClock clock(Episodes{{0, 1, 2, 3}});
  const Anchors anchors = Anchors::of_ticks(clock.view(), first_episodes(1));
  const Anchors filtered = anchors.filtered({.every = 2}, 0, "");
  EXPECT_EQ(moments_of(filtered), (Moments{{0, 0}, {0, 2}}));
  EXPECT_THROW(filtered.filtered({.every = 2}, 0, ""), Error);
  EXPECT_THROW(anchors.split(std::vector{0, 0, 1, 0}, 2)[0].filtered({.first = 1}, 0, ""), Error);
}

// ---- Ticks of a rate ----

TEST(AnchorsAtRate, DoNotDriftOverHours) {
  const int64_t hour = 3600 * kSecond;
  const HostClock clock(Episodes{{kStart, kStart + 5 * hour}});
  const Anchors anchors = Anchors::at_rate(30, std::vector{clock.view()}, first_episodes(1));
  ASSERT_EQ(anchors.index().anchors, 5 * 3600 * 30 + 1);
  EXPECT_EQ(anchors.index().at(5 * 3600 * 30).time_ns, kStart + 5 * hour);
  EXPECT_EQ(anchors.index().at(1).time_ns, kStart + 33'333'333);
}

TEST(AnchorsAtRate, CountAtMost2To53Ticks) {
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
  // 292 years with a tick every 10 s: the last tick is at its exact time.
  const AnchorIndex long_episode = at_rate({{-5, INT64_MAX - 5}}, 0.1);
  EXPECT_EQ(long_episode.anchors, INT64_MAX / (10 * kSecond) + 1);
}

}  // namespace
}  // namespace robocache
