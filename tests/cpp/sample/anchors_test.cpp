#include "robocache/sample/anchors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/random_data.hpp"
#include "tests/cpp/temporary_cache.hpp"

namespace robocache {
namespace {

using test::Element;

constexpr int64_t kStart = 1'700'000'000'000'000'000;

// Per episode, the times of each stream.
using Recording = std::vector<std::map<std::string, std::vector<int64_t>>>;
using Moments = std::vector<std::pair<int64_t, int64_t>>;  // episode, time in ns

std::shared_ptr<const Dataset> write(const Recording& recording) {
  test::CacheWriter writer;
  for (const auto& episode : recording) {
    writer.begin_episode();
    for (const auto& [stream, times] : episode) {
      writer.append(stream, Element<uint8_t, DType::kUInt8>{}, times, std::vector<uint8_t>(times.size()));
    }
    writer.end_episode();
  }
  return writer.dataset();
}

std::vector<int64_t> all_episodes(const Dataset& dataset) {
  std::vector<int64_t> episodes(static_cast<size_t>(dataset.num_episodes()));
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

std::vector<int64_t> regular(int64_t start, int64_t n, double period_ns) {
  std::vector<int64_t> times;
  for (int64_t i = 0; i < n; ++i) times.push_back(start + std::llrint(static_cast<double>(i) * period_ns));
  return times;
}

// ---- Ticks of a stream ----

TEST(AnchorsOfStream, AreEveryRowOfTheEpisodesInTheOrderAskedFor) {
  const auto dataset = write({{{"a", {1, 2, 5}}, {"b", {9}}}, {{"b", {7, 8}}}, {{"a", {4}}}, {{"a", {6, 6, 7}}}});
  const int64_t a = dataset->index_of("a");
  EXPECT_EQ(moments_of(Anchors::of_stream(*dataset, a, all_episodes(*dataset))),
            (Moments{{0, 1}, {0, 2}, {0, 5}, {2, 4}, {3, 6}, {3, 6}, {3, 7}}));
  EXPECT_EQ(moments_of(Anchors::of_stream(*dataset, a, std::vector<int64_t>{3, 1, 0})),
            (Moments{{3, 6}, {3, 6}, {3, 7}, {0, 1}, {0, 2}, {0, 5}}));
  EXPECT_TRUE(moments_of(Anchors::of_stream(*dataset, a, std::vector<int64_t>{1})).empty());
  EXPECT_TRUE(moments_of(Anchors::of_stream(*dataset, a, {})).empty());
}

TEST(AnchorsOfStream, AreFoundAmongManyEpisodesOfAllLengths) {
  test::Random random(31);
  Recording recording;
  Moments expected;
  for (int64_t episode = 0; episode < 400; ++episode) {
    const int64_t rows = episode == 123 ? 5000 : random.one_in(3) ? 0 : random.below(40);
    std::vector<int64_t> times;
    for (int64_t i = 0; i < rows; ++i) times.push_back(kStart + 1000 * episode + 3 * i);
    for (const int64_t time : times) expected.emplace_back(episode, time);
    recording.push_back({{"a", times}});
  }
  const auto dataset = write(recording);
  EXPECT_EQ(moments_of(Anchors::of_stream(*dataset, 0, all_episodes(*dataset))), expected);
}

TEST(AnchorsOfStream, LookUpsStayShort) {
  // As many buckets as episodes or twice that, whatever the number of rows.
  Recording recording(300, {{"a", regular(0, 100, 10)}});
  const auto dataset = write(recording);
  const Anchors anchors = Anchors::of_stream(*dataset, 0, all_episodes(*dataset));
  EXPECT_GE(anchors.first_of().size(), 300u);
  EXPECT_LE(anchors.first_of().size(), 700u);
}

// ---- Ticks of a clock ----

// By counting: k / hz to the nearest ns from the latest first row, as long as no stream has ended.
Moments clock_moments(const Recording& recording, double hz, const std::vector<std::string>& streams) {
  Moments moments;
  for (size_t episode = 0; episode < recording.size(); ++episode) {
    std::vector<int64_t> firsts;
    std::vector<int64_t> lasts;
    for (const std::string& stream : streams) {
      const auto rows = recording[episode].find(stream);
      if (rows == recording[episode].end() || rows->second.empty()) continue;
      firsts.push_back(rows->second.front());
      lasts.push_back(rows->second.back());
    }
    if (firsts.empty()) continue;
    const int64_t start = *std::max_element(firsts.begin(), firsts.end());
    const int64_t end = *std::min_element(lasts.begin(), lasts.end());
    for (int64_t k = 0;; ++k) {
      const int64_t time = start + std::llrint(static_cast<double>(k) * (1e9 / hz));
      if (time > end) break;
      moments.emplace_back(episode, time);
    }
  }
  return moments;
}

TEST(AnchorsOfClock, CoverTheSpanThatAllStreamsCover) {
  const int64_t second = 1'000'000'000;
  const Recording recording{
      {{"a", {0, second}}, {"b", {second / 10, 2 * second}}},               // both
      {{"a", {kStart, kStart + second}}},                                   // one
      {{"a", {0, second}}, {"b", {2 * second, 3 * second}}},                // apart: none
      {{"a", {0, second}}, {"b", {second, 3 * second}}},                    // they touch: one tick
      {{"a", {kStart}}, {"b", {kStart - second, kStart + second}}},         // one row
      {{"a", {-second, second}}, {"b", {}}, {"c", {-2 * second, second}}},  // before 0
      {{"c", {5}}},                                                         // none of them
  };
  const auto dataset = write(recording);
  const auto check = [&](double hz, const std::vector<std::string>& streams) {
    std::vector<int64_t> indices;
    for (const std::string& stream : streams) indices.push_back(dataset->index_of(stream));
    EXPECT_EQ(moments_of(Anchors::of_clock(*dataset, hz, indices, all_episodes(*dataset))),
              clock_moments(recording, hz, streams))
        << hz << " Hz";
  };
  for (const double hz : {0.1, 1.0, 3.0, 29.97, 1000.0, 123.456}) check(hz, {"a", "b"});
  check(7, {"c"});
}

// Recorders write k / fps rounded to the nearest ns: a clock of the same rate meets every row, the last one too,
// whichever way its stamp was rounded.
TEST(AnchorsOfClock, MeetEveryRowOfARegularStreamOfTheSameRate) {
  for (const double hz : {30.0, 60.0, 29.97, 24.0, 50.0, 7.0}) {
    Recording recording;
    for (int64_t rows = 1; rows <= 40; ++rows) recording.push_back({{"a", regular(kStart, rows, 1e9 / hz)}});
    const auto dataset = write(recording);
    const Anchors anchors = Anchors::of_clock(*dataset, hz, std::vector<int64_t>{0}, all_episodes(*dataset));
    Moments expected;
    for (size_t episode = 0; episode < recording.size(); ++episode) {
      for (const int64_t time : recording[episode]["a"]) expected.emplace_back(episode, time);
    }
    ASSERT_EQ(moments_of(anchors), expected) << hz << " Hz";
  }
}

TEST(AnchorsOfClock, DoNotDriftOverHours) {
  const int64_t hour = 3600 * int64_t{1'000'000'000};
  const auto dataset = write({{{"a", {kStart, kStart + 5 * hour}}}});
  const Anchors anchors = Anchors::of_clock(*dataset, 30, std::vector<int64_t>{0}, std::vector<int64_t>{0});
  ASSERT_EQ(anchors.index().anchors, 5 * 3600 * 30 + 1);
  EXPECT_EQ(anchors.index().at(5 * 3600 * 30).time_ns, kStart + 5 * hour);
  EXPECT_EQ(anchors.index().at(1).time_ns, kStart + 33'333'333);
}

}  // namespace
}  // namespace robocache
