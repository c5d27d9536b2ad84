#include "robocache/batch/loader.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "robocache/sample/order.hpp"
#include "tests/cpp/batch/every_type.hpp"
#include "tests/cpp/expect_refused.hpp"
#include "tests/cpp/threads.hpp"

namespace robocache::test {
namespace {

class LoaderTest : public OnDeviceOfLoader {};
ROBOCACHE_ON_EACH_DEVICE(LoaderTest);

TEST_P(LoaderTest, TheHostKnowsEachSamplesMoment) {
  const auto dataset = every_type();
  LoaderOptions loader_options = options();
  loader_options.batch_size = 9;
  loader_options.anchor = stream_name(DType::kFloat32, 4);
  loader_options.streams = {{.stream = loader_options.anchor, .delta_timestamps = kDeltas}};
  const Loader loader(dataset, loader_options);
  struct Moment {
    int64_t episode, time_ns;
  };
  std::vector<Moment> moments;
  const Stream& stream = dataset->stream(loader_options.anchor);
  for (size_t e = 0; e + 1 < stream.row_offsets.size(); ++e) {
    for (int64_t row = stream.row_offsets[e]; row < stream.row_offsets[e + 1]; ++row) {
      moments.push_back({static_cast<int64_t>(e), stream.time_ns[row]});
    }
  }
  ASSERT_EQ(loader.anchors(), std::ssize(moments));
  const auto expect = [&](const SampleAnchor& actual, int64_t anchor, int64_t number) {
    EXPECT_EQ(actual.source, 0);
    EXPECT_EQ(actual.episode, moments[static_cast<size_t>(anchor)].episode);
    EXPECT_EQ(actual.time_ns, moments[static_cast<size_t>(anchor)].time_ns);
    EXPECT_EQ(actual.number, number);
  };
  const Order order = Order::of(std::ssize(moments)).keyed(7, 2);
  const std::vector<SampleAnchor> drawn = loader.anchors_at({.seed = 7, .epoch = 2, .samples = 18});
  ASSERT_EQ(drawn.size(), 9u);
  for (int64_t i = 0; i < 9; ++i) expect(drawn[static_cast<size_t>(i)], order.at(18 + i), 18 + i);
  const std::vector<int64_t> anchor_numbers = {std::ssize(moments) - 1, 0, 3};
  const std::vector<SampleAnchor> gathered = loader.anchors_at({}, anchor_numbers);
  ASSERT_EQ(gathered.size(), anchor_numbers.size());
  for (size_t i = 0; i < anchor_numbers.size(); ++i) expect(gathered[i], anchor_numbers[i], anchor_numbers[i]);
  EXPECT_THROW(loader.anchors_at({}, std::vector<int64_t>{std::ssize(moments)}), ArgumentError);

  int64_t anchor = 0;
  for (const AnchoredEpisode& episode : loader.episodes()) {
    for (int64_t i = 0; i < episode.anchors; ++i, ++anchor) {
      EXPECT_EQ(episode.episode, moments[static_cast<size_t>(anchor)].episode);
    }
  }
  EXPECT_EQ(anchor, loader.anchors());
}

TEST_P(LoaderTest, WeightsChangeInOrderAndForOneSeed) {
  LoaderOptions loader_options = options();
  loader_options.batch_size = 9;
  loader_options.mixture = true;
  loader_options.anchor = stream_name(DType::kFloat32, 4);
  loader_options.streams = {{.stream = loader_options.anchor, .delta_timestamps = kDeltas}};
  loader_options.sources = {{.dataset = every_type(), .name = "a", .weight = 1},
                            {.dataset = every_type(), .name = "b", .weight = 3}};
  const Loader loader(loader_options);
  const auto sources_at = [&](const BatchPosition& position) {
    std::vector<int64_t> drawn(2);
    for (const SampleAnchor& anchor : loader.anchors_at(position)) ++drawn[static_cast<size_t>(anchor.source)];
    return drawn;
  };
  const std::vector<int64_t> drawn_before = sources_at({.seed = 7, .epoch = 1});
  const WeightChange* const all_a = loader.change_weights({.seed = 7, .epoch = 1, .samples = 9}, {{"a", 1}, {"b", 0}});
  const WeightChange* const all_b =
      loader.change_weights({.seed = 7, .epoch = 2, .samples = 0, .weights = all_a}, {{"a", 0}, {"b", 1}});
  EXPECT_EQ(sources_at({.seed = 7, .epoch = 1, .samples = 0, .weights = all_b}), drawn_before);
  EXPECT_EQ(sources_at({.seed = 7, .epoch = 1, .samples = 9, .weights = all_b}), (std::vector<int64_t>{9, 0}));
  EXPECT_EQ(sources_at({.seed = 7, .epoch = 2, .samples = 0, .weights = all_a}), (std::vector<int64_t>{9, 0}));
  EXPECT_EQ(sources_at({.seed = 7, .epoch = 2, .samples = 0, .weights = all_b}), (std::vector<int64_t>{0, 9}));
  const auto change_at = [&](const BatchPosition& position, std::vector<std::pair<std::string, double>> weights) {
    return [&loader, position, weights = std::move(weights)] { loader.change_weights(position, weights); };
  };
  const BatchPosition earlier{.seed = 7, .epoch = 1, .samples = 18, .weights = all_b};
  expect_refused<ArgumentError>(change_at(earlier, {{"a", 1}, {"b", 1}}), "weights: ", "order");
  expect_refused<ArgumentError>(
      change_at({.seed = 8, .epoch = 3, .samples = 0, .weights = all_b}, {{"a", 1}, {"b", 1}}), "seed: expected 7",
      "8");
  expect_refused<ArgumentError>([&] { loader.anchors_at({.seed = 8, .epoch = 3, .samples = 0, .weights = all_b}); },
                                "seed: expected 7", "8");
  expect_refused<ArgumentError>(change_at({.seed = 7}, {{"a", 1}, {"b", 1}, {"a", 2}}), "weights: ", "two for 'a'");
  expect_refused<ArgumentError>(change_at({.seed = 7, .epoch = -1}, {{"a", 1}, {"b", 1}}), "epoch: ", "-1");
  expect_refused<ArgumentError>(
      change_at({.seed = 7, .epoch = 0, .samples = loader.samples() + 1}, {{"a", 1}, {"b", 1}}), "samples: ");
}

// Options with every method and normalization. The 33 streams are more than one group of segments holds, and one window
// is spread over several groups.
LoaderOptions options_of_everything(const Dataset& dataset, DType dtype = DType::kFloat32) {
  constexpr Normalize kNormalizations[] = {Normalize::kNone, Normalize::kMeanStd, Normalize::kMinMax,
                                           Normalize::kQ01Q99};
  constexpr InterpolationMethod kMethods[] = {InterpolationMethod::kLinear, InterpolationMethod::kNearest,
                                              InterpolationMethod::kPrevious, InterpolationMethod::kNext,
                                              InterpolationMethod::kLinear};
  LoaderOptions loader_options;
  loader_options.dtype = dtype;
  loader_options.batch_size = 150;
  loader_options.anchor = stream_name(DType::kFloat32, 4);
  size_t stream_number = 0;
  for (const Stream& stream : dataset.streams()) {
    StreamRequest request{.stream = stream.name, .delta_timestamps = kDeltas};
    const bool is_float = is_floating(stream.dtype);
    // Integers are not mixed, so they take one of the three methods that choose a row.
    if (++stream_number % 3 != 0) request.method = kMethods[is_float ? stream_number % 5 : 1 + stream_number % 3];
    if (is_float) request.normalize = kNormalizations[stream_number % 4];
    if (stream_number % 5 == 0) request.max_gap_s = 0.012;
    loader_options.streams.push_back(request);
  }
  for (int i = 0; i < 1300; ++i) loader_options.streams[0].delta_timestamps.push_back(0.0003 * (i - 650));
  return loader_options;
}

TEST(LoaderThreads, TheNumberOfThreadsDoesNotChangeABatch) {
  const auto dataset = every_type();
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    const Loader loader(dataset, options_of_everything(*dataset, dtype));
    const Threads one_thread(1);
    const std::vector<unsigned char> expected = filled(loader, {.seed = 3});
    for (const int n : {2, 5}) {
      const Threads threads(n);
      EXPECT_EQ(filled(loader, {.seed = 3}), expected) << n;
    }
  }
}

TEST(LoaderThreads, SeveralThreadsMakeAndFillLoadersAtOnce) {
  const auto dataset = every_type();
  const Loader shared(dataset, options_of_everything(*dataset));
  std::vector<std::vector<unsigned char>> expected;
  for (uint64_t seed = 0; seed < 4; ++seed) expected.push_back(filled(shared, {.seed = seed}));
  std::vector<std::thread> threads;
  for (uint64_t first = 0; first < 4; ++first) {
    threads.emplace_back([&, first] {
      for (uint64_t round = 0; round < 4; ++round) {
        const uint64_t seed = (first + round) % 4;
        EXPECT_EQ(filled(shared, {.seed = seed}), expected[seed]);
        EXPECT_EQ(filled(Loader(dataset, options_of_everything(*dataset)), {.seed = seed}), expected[seed]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace robocache::test
