#include "robocache/cache/writer.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "robocache/core/error.hpp"
#include "tests/cpp/cache/files.hpp"
#include "tests/cpp/cache/writer_fixture.hpp"

namespace robocache {
namespace {

using test::append;
using test::append_png;
using test::blobs_of;
using test::contains;
using test::message_of;
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

TEST_F(WriterFramesTest, AbortedFramesAreTakenBackWithTheirOffsets) {
  {
    Writer writer(path());
    writer.begin_episode();
    append_png(writer, "camera", {1, 2}, {'a', 'b'});
    writer.end_episode();
    writer.begin_episode();
    append_png(writer, "camera", {1, 2, 3}, {'x', 'y', 'z'}, 800000);  // blocks are in the file already
    append_png(writer, "new", {1}, {'x'});
    writer.abort_episode();
    writer.begin_episode();
    append_png(writer, "camera", {0}, {'c'}, 4);
    append_png(writer, "camera", {7}, {'d'}, 1);
    writer.end_episode();
    writer.close();
  }
  const auto dataset = Dataset::open(path(), true);
  ASSERT_EQ(dataset->streams().size(), 1u);
  const Stream& camera = dataset->stream("camera");
  EXPECT_EQ(blobs_of(camera), "aaabbbccccd");
  EXPECT_EQ(std::vector<int64_t>(camera.blob_offsets, camera.blob_offsets + 5),
            (std::vector<int64_t>{0, 3, 6, 10, 11}));
  EXPECT_EQ(std::vector<int64_t>(camera.row_offsets.begin(), camera.row_offsets.end()),
            (std::vector<int64_t>{0, 2, 4}));
}

TEST_F(WriterFramesTest, FramesThatCannotBeAreRefusedAndAddNothing) {
  {
    Writer writer(path());
    writer.begin_episode();
    append(writer, "x", {1}, {1});
    append_png(writer, "camera", {10}, {'a'});
    std::vector<int64_t> time{20, 30};
    const std::vector<uint8_t> bytes(60, 'b');
    const std::vector<int64_t> shape{2, 5, 3};
    const TensorView times = TensorView::contiguous(time.data(), DType::kInt64, {2});
    const auto refusal = [&](const std::string& stream, Codec codec, ColorSpace color_space, DType dtype,
                             const std::vector<int64_t>& of, std::span<const uint8_t> blobs,
                             const std::vector<int64_t>& offsets) {
      return message_of<ArgumentError>(
          [&] { writer.append_frames(stream, times, codec, color_space, dtype, of, blobs, offsets); });
    };
    const auto png = [&](const std::string& stream, const std::vector<int64_t>& offsets) {
      return refusal(stream, Codec::kPng, ColorSpace::kRgb, DType::kUInt8, shape, bytes, offsets);
    };
    for (const std::vector<int64_t>& offsets : std::vector<std::vector<int64_t>>{
             {}, {0, 60}, {0, 30, 60, 60}, {1, 30, 60}, {0, 30, 59}, {0, 61, 60}, {0, -1, 60}}) {
      EXPECT_TRUE(
          contains(png("camera", offsets), "stream 'camera': expected offsets of 2 png frames of rgb, one more"));
    }
    EXPECT_EQ(png("x", {0, 30, 60}), "stream 'x': expected numbers as in its first rows, got png frames of rgb");
    EXPECT_EQ(message_of<ArgumentError>([&] { append(writer, "camera", {20}, {1}); }),
              "stream 'camera': expected png frames of rgb as in its first rows, got numbers");
    EXPECT_EQ(refusal("camera", Codec::kJpeg, ColorSpace::kRgb, DType::kUInt8, shape, bytes, {0, 30, 60}),
              "stream 'camera': expected png frames of rgb as in its first rows, got jpeg frames of rgb");
    EXPECT_EQ(refusal("camera", Codec::kPng, ColorSpace::kRgb, DType::kUInt8, {2, 4, 3}, bytes, {0, 30, 60}),
              "stream 'camera': expected values of shape [n, 2, 5, 3] as in its first rows, got [2, 2, 4, 3]");
    EXPECT_EQ(refusal("camera", Codec::kPng, ColorSpace::kRgb, DType::kUInt16, shape, bytes, {0, 30, 60}),
              "stream 'camera': expected values of uint8 as in its first rows, got uint16");
    EXPECT_EQ(refusal("new", Codec::kJpeg, ColorSpace::kRgb, DType::kUInt16, shape, bytes, {0, 30, 60}),
              "stream 'new': expected jpeg frames of uint8, got uint16");
    EXPECT_EQ(refusal("new", Codec::kPng, ColorSpace::kGray, DType::kUInt8, shape, bytes, {0, 30, 60}),
              "stream 'new': expected gray frames of shape [height, width, 1], got [2, 5, 3]");
    EXPECT_EQ(
        refusal("new", Codec::kRaw, ColorSpace::kRgb, DType::kUInt8, shape, std::span(bytes).first(59), {}),
        "stream 'new': expected 2 raw frames of rgb of 30 bytes each, and no offsets, got 59 bytes and 0 offsets");
    EXPECT_TRUE(contains(refusal("new", Codec::kRaw, ColorSpace::kRgb, DType::kUInt8, shape, bytes, {0, 30, 60}),
                         "and no offsets, got 60 bytes and 3 offsets"));
    time = {9, 30};
    EXPECT_TRUE(contains(png("camera", {0, 30, 60}), "got 9 ns in row 1 after 10 ns"));
    EXPECT_THROW(writer.append_frames("camera", TensorView::contiguous(time.data(), DType::kFloat64, {2}), Codec::kPng,
                                      ColorSpace::kRgb, DType::kUInt8, shape, bytes, std::vector<int64_t>{0, 30, 60}),
                 ArgumentTypeError);

    EXPECT_EQ(message_of<ArgumentError>([&] { writer.describe_frames("x", {}, {}, ""); }),
              "stream 'x': expected frames, as it was described, got numbers");
    EXPECT_EQ(message_of<ArgumentError>([&] { writer.describe_frames("camera", 0.001, {}, ""); }),
              "stream 'camera': expected unit_m of depth alone, got it of rgb frames");
    EXPECT_TRUE(contains(message_of<ArgumentError>([&] { writer.describe_frames("camera", {}, {1, 2}, ""); }),
                         "expected 9 finite numbers of intrinsics, row by row, or none, got [1.0,2.0]"));
    EXPECT_EQ(message_of<ArgumentError>([&] { writer.describe_frames("camera", {}, {}, "[1]"); }),
              "stream 'camera': resized: expected a JSON object, got array");
    writer.describe_frames("later", {}, {}, "{}");
    EXPECT_EQ(message_of<ArgumentError>([&] { append(writer, "later", {1}, {1}); }),
              "stream 'later': expected frames, as it was described, got numbers");
    writer.end_episode();
    writer.close();
  }
  const auto dataset = Dataset::open(path(), true);
  ASSERT_EQ(dataset->streams().size(), 2u);
  EXPECT_EQ(blobs_of(dataset->stream("camera")), "aaa");
}

}  // namespace
}  // namespace robocache
