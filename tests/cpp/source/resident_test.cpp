#include "robocache/source/resident.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/cpp/device_array.hpp"
#include "tests/cpp/random_data.hpp"
#include "tests/cpp/temporary_cache.hpp"

namespace robocache::test {
namespace {

using F32 = Element<float, DType::kFloat32>;

// a and b on one clock, c on the same times in other episodes, d on others, none without a row.
std::shared_ptr<const Dataset> written() {
  CacheWriter writer;
  writer.begin_episode();
  writer.append("a", F32{}, {10, 20, 30}, {1, 2, 3});
  writer.append("b", F32{}, {10, 20, 30}, {4, 5, 6});
  writer.append("c", F32{}, {10, 20}, {7, 8});
  writer.append("d", F32{}, {10, 20, 31}, {1, 1, 1});
  writer.append("none", F32{}, {}, {});
  writer.end_episode();
  writer.begin_episode();
  writer.append("c", F32{}, {30}, {9});
  writer.append("none", F32{}, {}, {});
  writer.end_episode();
  return writer.dataset();
}

class Resident : public OnDevice {};
ROBOCACHE_ON_EACH_DEVICE(Resident);

TEST_P(Resident, StreamsOfTheSameTimesAndEpisodesAreOnOneClock) {
  const auto dataset = written();
  const auto get = [&](const char* name) { return ResidentStream::get(dataset, dataset->index_of(name), device()); };
  const auto a = get("a");
  const auto b = get("b");
  EXPECT_EQ(a->rows().clock, b->rows().clock);
  EXPECT_EQ(&a->clock(), &b->clock());
  EXPECT_NE(a->rows().values, b->rows().values);
  for (const char* other : {"c", "d", "none"}) EXPECT_FALSE(get(other)->rows().clock == a->rows().clock) << other;
  EXPECT_EQ(get("b"), b);  // as long as one lives
  // Another dataset of the same files' contents has its own.
  const auto elsewhere = written();
  EXPECT_NE(&ResidentStream::get(elsewhere, 0, device())->clock(), &a->clock());
}

TEST_P(Resident, AClockAloneIsThatOfItsStream) {
  const auto dataset = written();
  const auto clock = ResidentClock::get(dataset, dataset->index_of("b"), device());
  EXPECT_EQ(&ResidentStream::get(dataset, dataset->index_of("a"), device())->clock(), clock.get());
}

TEST_P(Resident, EpisodesSayWhereRowsAreAndHowDense) {
  const auto dataset = written();
  const auto clock = ResidentClock::get(dataset, dataset->index_of("c"), device());
  const StreamClock c = clock->on_host();
  EXPECT_EQ(c.episodes[0].begin, 0);
  EXPECT_EQ(c.episodes[0].rows, 2);
  EXPECT_EQ(c.episodes[0].first_ns, 10);
  EXPECT_EQ(c.episodes[0].rows_per_ns, 0.1);
  EXPECT_EQ(c.episodes[1].begin, 2);
  EXPECT_EQ(c.episodes[1].rows, 1);
  EXPECT_EQ(c.episodes[1].first_ns, 30);
  EXPECT_EQ(c.episodes[1].rows_per_ns, 0);
  EXPECT_EQ(c.time_ns[2], 30);
  EXPECT_EQ(ResidentClock::get(dataset, dataset->index_of("none"), device())->on_host().episodes[1].rows, 0);
}

TEST_P(Resident, OutlivesTheDatasetThatItWasAskedFor) {
  auto dataset = written();
  const auto b = ResidentStream::get(dataset, dataset->index_of("b"), {});
  dataset.reset();
  EXPECT_EQ(static_cast<const float*>(b->rows().values)[2], 6);
  EXPECT_EQ(b->rows().clock.time_ns[2], 30);
}

}  // namespace
}  // namespace robocache::test
