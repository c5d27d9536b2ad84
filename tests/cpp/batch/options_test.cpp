#include "robocache/batch/options.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "robocache/core/error.hpp"
#include "tests/cpp/batch/every_type.hpp"
#include "tests/cpp/expect_refused.hpp"

namespace robocache::test {
namespace {

TEST(LoaderOptionsJson, ReadsEveryKindOfField) {
  const LoaderOptions options = loader_options_from_json(R"({
    "batch_size": 8, "anchors.edges": "drop", "memory.residency": "mapped", "memory.budget": {"host": 1000, "device": 0.25},
    "default.normalize": "mean_std", "default.dtype": "float16", "snap_s": 2e-6, "missing": null,
    "windows": [{"key": "arm", "offsets_s": [-0.5, 0], "methods": [[3, 7, "slerp"]], "tolerance_s": "inf",
                 "residency": "auto", "images": {"shift": 3}}],
    "sources": [{"weight": 2, "anchor": "arm", "rename": {"qpos": "arm"}}]})",
                                                         std::vector<SourceRequest>(1));
  EXPECT_EQ(options.batch_size, 8);
  EXPECT_EQ(options.edges, Edges::kDrop);
  EXPECT_EQ(options.missing, Missing::kPad);
  EXPECT_EQ(options.residency, Tier::kMapped);
  EXPECT_EQ(std::get<int64_t>(options.memory_budget.host), 1000);
  EXPECT_EQ(std::get<double>(options.memory_budget.device), 0.25);
  EXPECT_EQ(options.normalize, Normalize::kMeanStd);
  EXPECT_EQ(options.dtype, DType::kFloat16);
  EXPECT_EQ(options.snap_s, 2e-6);
  const StreamRequest& window = options.streams.at(0);
  EXPECT_EQ(window.stream, "arm");
  EXPECT_EQ(window.delta_timestamps, (std::vector<double>{-0.5, 0}));
  EXPECT_EQ(window.methods.at(0).end, 7);
  EXPECT_EQ(window.tolerance_s, HUGE_VAL);
  EXPECT_TRUE(window.residency.has_value());
  EXPECT_FALSE(window.residency->has_value());
  EXPECT_EQ(window.images->shift, 3);
  EXPECT_EQ(options.sources.at(0).weight, 2);
  EXPECT_EQ(options.sources.at(0).rename.at(0), (std::pair<std::string, std::string>("qpos", "arm")));
}

TEST(LoaderOptionsJson, RefusalsNameTheField) {
  for (const auto& [json, start] : std::initializer_list<std::pair<const char*, std::string>>{
           {"[]", "options: expected a JSON object"},
           {"{", "options: expected a JSON object"},
           {R"({"batch_size": 1.5})", "batch_size: expected a whole number"},
           {R"({"anchors.edges": "cut"})", "anchors.edges: expected 'pad' or 'drop', got 'cut'"},
           {R"({"shuffle": 1})", "shuffle: expected True or False"},
           {R"({"windows": [{"key": "arm", "methods": [[0, 1, "cubicle"]]}]})", "delta_timestamps['arm'].method: "},
           {R"({"windows": [{"key": "arm", "residency": "disk"}]})", "memory.residency['arm']: "},
           {R"({"windows": 3})", "windows: expected a list"}}) {
    expect_refused<Error>([&] { loader_options_from_json(json, {}); }, start);
  }
}

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
