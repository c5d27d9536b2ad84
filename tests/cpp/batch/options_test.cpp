#include "robocache/batch/options.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "robocache/core/error.hpp"
#include "tests/cpp/batch/every_type.hpp"
#include "tests/cpp/expect_refused.hpp"

namespace robocache::test {
namespace {

class LoaderRefuses : public OnDevice {};
ROBOCACHE_ON_EACH_DEVICE(LoaderRefuses);

TEST_P(LoaderRefuses, RowsWithTooManyDimensions) {
  for (const size_t dimensions : {6, 7}) {
    CacheWriter writer;
    writer.begin_episode();
    writer.append("x", U8{}, {0}, {1}, std::vector<int64_t>(dimensions, 1));
    writer.end_episode();
    const auto dataset = writer.dataset();
    LoaderOptions loader_options;
    loader_options.device = device();
    loader_options.streams = {{.stream = "x", .delta_timestamps = {0.0}}};
    if (dimensions == 6) {
      const Loader loader(dataset, loader_options);
      EXPECT_EQ(loader.view(loader.arrays()[0], 0, nullptr).ndim, kMaxDims);
    } else {
      EXPECT_THROW(Loader(dataset, loader_options), ArgumentError);
    }
  }
}

TEST_P(LoaderRefuses, PositionsOutsideTheEpoch) {
  LoaderOptions loader_options;
  loader_options.device = device();
  loader_options.streams = {{.stream = "float32.4", .delta_timestamps = {0.0}}};
  const Loader loader(every_type(), loader_options);
  for (const int64_t samples : {int64_t{-1}, loader.samples() + 1, std::numeric_limits<int64_t>::max()}) {
    expect_refused<ArgumentError>([&] { loader.fill({.samples = samples}, nullptr, {}); }, "samples: ");
  }
  EXPECT_EQ(loader.samples_at({.samples = loader.samples()}), 0);
}

}  // namespace
}  // namespace robocache::test
