#include "robocache/cache/writer.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tests/cpp/cache/files.hpp"
#include "tests/cpp/cache/writer_fixture.hpp"

namespace robocache {
namespace {

using WriterFramesTest = test::WriterFixture;

TEST_F(WriterFramesTest, RawFramesAreRowsWithoutStatistics) {
  const std::vector<int64_t> shape{2, 2, 1};
  std::vector<uint16_t> pixels{1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<int64_t> times{5, 6};
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(pixels.data()), 16);
  {
    Writer writer(path());
    writer.describe_frames("depth", 0.001, {1, 0, 2, 0, 1, 2, 0, 0, 1}, R"({"size": [2, 2]})");
    writer.describe_stream("depth", Clock::kNominal);
    writer.begin_episode();
    const TensorView clock = TensorView::contiguous(times.data(), DType::kInt64, {2});
    writer.append_frames("depth", clock, Codec::kRaw, ColorSpace::kGray, DType::kUInt16, shape, bytes, {});
    writer.end_episode();
    writer.close();
  }
  const auto dataset = Dataset::open(path(), true);
  const Stream& depth = dataset->stream("depth");
  EXPECT_EQ(depth.frames->codec, Codec::kRaw);
  EXPECT_EQ(depth.frames->color_space, ColorSpace::kDepth);
  EXPECT_EQ(depth.frames->unit_m, 0.001);
  EXPECT_EQ(depth.frames->intrinsics, (std::vector<double>{1, 0, 2, 0, 1, 2, 0, 0, 1}));
  EXPECT_EQ(depth.frames->resized_json, R"({"size": [2, 2]})");
  EXPECT_EQ(depth.clock, Clock::kNominal);
  EXPECT_FALSE(depth.has_offsets());
  EXPECT_EQ(depth.blob_offsets, nullptr);
  const auto* values = static_cast<const uint16_t*>(depth.values);
  EXPECT_EQ(std::vector<uint16_t>(values, values + 8), pixels);
  EXPECT_TRUE(depth.stats.mean.empty());
}

}  // namespace
}  // namespace robocache
