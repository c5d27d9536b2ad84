#include "robocache/batch/loader.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "tests/cpp/batch/loader_reference.hpp"

namespace robocache::test {
namespace {

class LoaderOrder : public OnDeviceOfLoader {};
ROBOCACHE_ON_EACH_DEVICE(LoaderOrder);

TEST_P(LoaderOrder, AnEpochVisitsEveryAnchorOnce) {
  const auto dataset = every_type();
  LoaderOptions asked = options();
  asked.batch_size = 17;
  asked.streams = {{.stream = stream_name(DType::kFloat32, 2), .delta_timestamps = {0.0}}};
  const Loader loader(dataset, asked);
  std::vector<std::vector<std::pair<int64_t, int64_t>>> epochs;
  for (const int64_t epoch : {0, 1}) {
    epochs.emplace_back();
    for (BatchPosition at{5, epoch, 0}; loader.samples_at(at) > 0; at = loader.after(at)) {
      const std::vector<unsigned char> memory = filled(loader, at);
      const auto* times = reinterpret_cast<const int64_t*>(memory.data() + loader.arrays()[2].offset);
      const auto* episodes = reinterpret_cast<const int64_t*>(memory.data() + loader.arrays()[3].offset);
      for (int64_t i = 0; i < loader.samples_at(at); ++i) epochs.back().emplace_back(episodes[i], times[i]);
    }
  }
  EXPECT_NE(epochs[0], epochs[1]);
  std::vector<std::pair<int64_t, int64_t>> every;
  for (const Moment& moment : all_moments(*dataset, loader.options()))
    every.emplace_back(moment.episode, moment.time_ns);
  for (auto& epoch : epochs) {
    std::sort(epoch.begin(), epoch.end());
    EXPECT_EQ(epoch, every);
  }
}

TEST_P(LoaderOrder, APositionAloneResumes) {
  const auto dataset = every_type();
  LoaderOptions asked = options();
  asked.batch_size = 12;
  asked.streams = {{.stream = stream_name(DType::kFloat32, 4), .delta_timestamps = kDeltas},
                   {.stream = stream_name(DType::kInt64, 2), .delta_timestamps = {0.0}}};
  std::vector<std::vector<unsigned char>> run;
  int64_t steps = 0;
  {
    const Loader loader(dataset, asked);
    steps = loader.steps_per_epoch();
    for (const int64_t epoch : {0, 1}) {
      for (BatchPosition at{9, epoch, 0}; loader.samples_at(at) > 0; at = loader.after(at)) {
        run.push_back(filled(loader, at));
      }
    }
  }
  const Loader again(dataset, asked);
  for (auto i = static_cast<int64_t>(run.size()) - 1; i >= 0; --i) {  // in another order
    EXPECT_EQ(filled(again, {9, i / steps, i % steps * asked.batch_size}), run[static_cast<size_t>(i)]);
  }
  EXPECT_NE(filled(again, {.seed = 10}), run[0]);
}

}  // namespace
}  // namespace robocache::test
