#include "robocache/batch/loader.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "robocache/core/thread_pool.hpp"
#include "tests/cpp/batch/loader_reference.hpp"

namespace robocache::test {
namespace {

class LoaderTest : public OnDeviceOfLoader {};
ROBOCACHE_ON_EACH_DEVICE(LoaderTest);

// ---- Against the reference ----

// 33 streams: more than fit one group of segments.
TEST_P(LoaderTest, EveryTypeWidthMethodAndNormalizationGivesTheReferencesBits) {
  const auto dataset = every_type();
  constexpr Normalize kNormalizations[] = {Normalize::kNone, Normalize::kMeanStd, Normalize::kMinMax,
                                           Normalize::kQ01Q99};
  constexpr InterpolationMethod kMethods[] = {InterpolationMethod::kLinear, InterpolationMethod::kNearest,
                                              InterpolationMethod::kPrevious, InterpolationMethod::kNext,
                                              InterpolationMethod::kLinear};
  size_t turn = 0;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    LoaderOptions asked = options();
    asked.dtype = dtype;
    asked.batch_size = 24;
    asked.anchor = stream_name(DType::kFloat32, 4);
    for (const Stream& stream : dataset->streams()) {
      StreamRequest request{.stream = stream.name, .delta_timestamps = kDeltas};
      ++turn;
      const bool floating = is_floating(stream.dtype);
      if (turn % 3 != 0) request.method = kMethods[floating ? turn % 5 : 1 + turn % 3];
      if (floating) request.normalize = kNormalizations[turn % 4];
      if (turn % 5 == 0) request.max_gap_s = 0.012;
      asked.streams.push_back(request);
    }
    ASSERT_EQ(asked.streams.size(), 33u);
    expect_every_batch(*dataset, Loader(dataset, asked), 7, 3);
  }
}

TEST_P(LoaderTest, AStreamMayHaveATypeOfItsOwn) {
  const auto dataset = every_type();
  LoaderOptions asked = options();
  asked.batch_size = 16;
  for (const DType in : {DType::kFloat64, DType::kFloat16, DType::kInt16}) {
    for (const DType out : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      asked.streams = {{.stream = stream_name(in, 2), .delta_timestamps = kDeltas}};
      asked.streams[0].dtype = is_floating(in) ? out : in;
      const Loader loader(dataset, asked);
      EXPECT_EQ(loader.arrays()[0].dtype, *asked.streams[0].dtype);
      expect_reference(*dataset, loader, {});
    }
  }
}

// Windows of more steps than a group holds, so that one stream is spread over several.
TEST_P(LoaderTest, LongWindows) {
  const auto dataset = every_type();
  LoaderOptions asked = options();
  asked.batch_size = 9;
  std::vector<double> many;
  for (int i = 0; i < 1300; ++i) many.push_back(0.0003 * (i - 650));
  asked.streams = {{.stream = stream_name(DType::kFloat32, 3), .delta_timestamps = kDeltas},
                   {.stream = stream_name(DType::kFloat32, 4), .delta_timestamps = many},
                   {.stream = stream_name(DType::kInt16, 2), .delta_timestamps = {many.begin(), many.begin() + 511}},
                   {.stream = stream_name(DType::kFloat64, 1),
                    .delta_timestamps = {many.begin(), many.begin() + 513},
                    .normalize = Normalize::kMeanStd}};
  const Loader loader(dataset, asked);
  expect_reference(*dataset, loader, {});
  expect_reference(*dataset, loader, {.samples = (loader.steps_per_epoch() - 1) * asked.batch_size});
}

TEST_P(LoaderTest, ManyStreams) {
  Random random(42);
  CacheWriter writer;
  LoaderOptions asked = options();
  for (int64_t episode = 0; episode < 2; ++episode) {
    writer.begin_episode();
    for (int64_t i = 0; i < 40; ++i) {
      const std::vector<int64_t> times = jittered(random, kStart, 100 * kMillisecond, (4 + i % 9) * kMillisecond);
      writer.append("stream " + std::to_string(i), F32{}, times,
                    random.tame_values(F32{}, static_cast<int64_t>(times.size())));
    }
    writer.end_episode();
  }
  for (int64_t i = 0; i < 40; ++i) {
    asked.streams.push_back({.stream = "stream " + std::to_string(39 - i),
                             .delta_timestamps = std::vector<double>(static_cast<size_t>(1 + i % 3), 0.001 * i)});
  }
  asked.batch_size = 13;
  const auto dataset = writer.dataset();
  expect_every_batch(*dataset, Loader(dataset, asked));
}

TEST_P(LoaderTest, WideRows) {
  Random random(43);
  CacheWriter writer;
  writer.begin_episode();
  const std::vector<int64_t> times = jittered(random, kStart, 60 * kMillisecond, 10 * kMillisecond);
  const auto n = static_cast<int64_t>(times.size());
  writer.append("image", U8{}, times, random.values(U8{}, n * 37 * 41 * 3), {37, 41, 3});
  writer.append("depth", F32{}, times, random.tame_values(F32{}, n * 50 * 30), {50, 30});
  writer.append("odd", F16{}, times, random.values(F16{}, n * 1001), {1001});
  writer.end_episode();
  const auto dataset = writer.dataset();
  LoaderOptions asked = options();
  asked.batch_size = 4;
  asked.dtype = DType::kFloat16;
  asked.streams = {{.stream = "image", .delta_timestamps = {-0.01, 0.0}},
                   {.stream = "depth", .delta_timestamps = {-0.015, 0.005, 1.0}, .normalize = Normalize::kMinMax},
                   {.stream = "odd", .delta_timestamps = {0.002}}};
  expect_every_batch(*dataset, Loader(dataset, asked));
}

TEST_P(LoaderTest, AnchorsAreTheSlowestStreamsOrAnotherOnesOrAClocks) {
  const auto dataset = every_type();
  LoaderOptions asked = options();
  asked.batch_size = 32;
  const std::string slow = stream_name(DType::kBFloat16, 1);
  asked.streams = {{.stream = stream_name(DType::kFloat32, 1), .delta_timestamps = {0.0}},
                   {.stream = slow, .delta_timestamps = {0.0}}};
  const Stream& first = dataset->stream(asked.streams[0].stream);
  const Loader of_slowest(dataset, asked);
  EXPECT_EQ(of_slowest.options().anchor, first.rate_hz < dataset->stream(slow).rate_hz ? first.name : slow);
  expect_every_batch(*dataset, of_slowest);

  asked.anchor = stream_name(DType::kUInt8, 3);  // not itself in the batch
  expect_every_batch(*dataset, Loader(dataset, asked));

  asked.anchor.clear();
  asked.anchor_hz = 130;
  expect_every_batch(*dataset, Loader(dataset, asked));
}

TEST_P(LoaderTest, EpisodesAreThoseAskedFor) {
  const auto dataset = every_type();
  LoaderOptions asked = options();
  asked.batch_size = 50;
  asked.streams = {{.stream = stream_name(DType::kFloat32, 8), .delta_timestamps = {0.0, 0.1}}};
  for (const std::vector<int64_t>& episodes : {std::vector<int64_t>{2}, {4, 0}, {1, 2, 3}}) {
    asked.sources = {{.episodes = episodes}};
    for (const bool shuffle : {false, true}) {
      asked.shuffle = shuffle;
      expect_every_batch(*dataset, Loader(dataset, asked), 1, 1);
    }
  }
}

TEST_P(LoaderTest, AStreamMayHaveNoRowsOrNoFeatures) {
  CacheWriter writer;
  writer.begin_episode();
  writer.append("x", F32{}, {0, 1000}, {1, 2});
  writer.append("no rows", F32{}, {}, {}, {3});
  writer.append("no features", F32{}, {0, 1000}, {}, {0});
  writer.end_episode();
  const auto dataset = writer.dataset();
  LoaderOptions asked = options();
  asked.anchor = "x";
  asked.batch_size = 2;
  for (const Stream& stream : dataset->streams()) {
    asked.streams.push_back({.stream = stream.name, .delta_timestamps = {0.0, 5e-7}});
  }
  expect_every_batch(*dataset, Loader(dataset, asked));
}

TEST_P(LoaderTest, KeepsWhatItReads) {
  const auto write = [] {
    CacheWriter writer;
    writer.begin_episode();
    writer.append("x", F32{}, {0, 1000, 2000}, {1, 2, 3});
    writer.end_episode();
    return writer.dataset();
  };
  auto dataset = write();
  LoaderOptions asked = options();
  asked.batch_size = 3;
  asked.streams = {{.stream = "x", .delta_timestamps = {0.0, 5e-7}}};
  auto first = std::make_unique<Loader>(dataset, asked);
  const std::vector<unsigned char> expected = filled(*first, {});
  const Loader second(dataset, asked);  // shares the stream with the first
  dataset.reset();
  first.reset();
  EXPECT_EQ(filled(second, {}), expected);
  Loader third = Loader(write(), asked);
  const Loader moved = std::move(third);
  EXPECT_EQ(filled(moved, {}), expected);
}

// ---- Threads ----

LoaderOptions options_of_everything(const Dataset& dataset) {
  LoaderOptions asked;
  asked.batch_size = 150;
  asked.anchor = stream_name(DType::kFloat32, 4);
  for (const Stream& stream : dataset.streams()) {
    asked.streams.push_back({.stream = stream.name, .delta_timestamps = kDeltas});
  }
  return asked;
}

TEST(LoaderThreads, TheirNumberChangesNothing) {
  const auto dataset = every_type();
  const Loader loader(dataset, options_of_everything(*dataset));
  const int before = num_threads();
  set_num_threads(1);
  const std::vector<unsigned char> expected = filled(loader, {.seed = 3});
  for (const int threads : {2, 5}) {
    set_num_threads(threads);
    EXPECT_EQ(filled(loader, {.seed = 3}), expected) << threads;
  }
  set_num_threads(before);
}

TEST(LoaderThreads, SeveralMayFillAtOnce) {
  const auto dataset = every_type();
  const Loader loader(dataset, options_of_everything(*dataset));
  std::vector<std::vector<unsigned char>> expected;
  for (uint64_t seed = 0; seed < 4; ++seed) expected.push_back(filled(loader, {.seed = seed}));
  std::vector<std::thread> threads;
  for (uint64_t first = 0; first < 4; ++first) {
    threads.emplace_back([&, first] {
      for (uint64_t round = 0; round < 8; ++round) {
        const uint64_t seed = (first + round) % 4;
        EXPECT_EQ(filled(loader, {.seed = seed}), expected[seed]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(LoaderThreads, LoadersOfOneDatasetAreMadeAtOnce) {
  const auto dataset = every_type();
  const std::vector<unsigned char> expected = filled(Loader(dataset, options_of_everything(*dataset)), {});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 4; ++round) {
        EXPECT_EQ(filled(Loader(dataset, options_of_everything(*dataset)), {}), expected);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace robocache::test
