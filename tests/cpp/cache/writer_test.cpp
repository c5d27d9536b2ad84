#include "robocache/cache/writer.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "robocache/core/error.hpp"
#include "tests/cpp/cache/files.hpp"
#include "tests/cpp/temporary_cache.hpp"

namespace robocache {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;

void append(Writer& writer, const std::string& stream, std::vector<int64_t> times, std::vector<float> values) {
  const auto n = static_cast<int64_t>(times.size());
  writer.append(stream, TensorView::contiguous(times.data(), DType::kInt64, {n}),
                TensorView::contiguous(values.data(), DType::kFloat32, {n, n > 0 ? std::ssize(values) / n : 1}));
}

std::vector<float> values_of(const Stream& stream, int64_t episode) {
  const auto* values = static_cast<const float*>(stream.values);
  const auto e = static_cast<size_t>(episode);
  return {values + stream.row_offsets[e] * stream.features, values + stream.row_offsets[e + 1] * stream.features};
}

class WriterTest : public testing::Test {
 protected:
  std::string path() const { return folder_.path() + "/cache"; }
  std::string partial() const { return path() + ".partial"; }

  // A finished cache whose one value tells caches apart.
  void write(float value, WriteMode mode = WriteMode::kNew) const {
    Writer writer(path(), mode);
    writer.begin_episode();
    append(writer, "x", {0}, {value});
    writer.end_episode();
    writer.close();
  }
  float written() const { return values_of(Dataset::open(path(), true)->stream("x"), 0).at(0); }

  // Ends as a killed process does: nothing is flushed, no destructor runs.
  void write_and_die() const {
    const pid_t child = fork();
    if (child == 0) {
      auto* writer = new Writer(path(), WriteMode::kOverwrite);
      writer->begin_episode();
      append(*writer, "x", {0}, {1});
      kill(getpid(), SIGKILL);
    }
    waitpid(child, nullptr, 0);
  }

  test::TemporaryFolder folder_;
};

TEST_F(WriterTest, StreamsKeepTheirOwnClocksAndEpisodes) {
  {
    Writer writer(path());
    writer.describe_stream("slow", Clock::kNominal, {"x", "y"});
    writer.describe_stream("never appended to", Clock::kNominal);
    writer.begin_episode(R"({"task": "one"})");
    append(writer, "fast", {1, 2, 2}, {1, 2, 3});
    append(writer, "fast", {}, {});
    append(writer, "fast", {5}, {4});
    writer.end_episode();
    writer.begin_episode();
    append(writer, "slow", {-7}, {5, 6});
    writer.end_episode();
    writer.begin_episode();
    writer.end_episode();
    EXPECT_EQ(writer.num_episodes(), 3);
    EXPECT_FALSE(fs::exists(path()));
    writer.close(R"({"source":"test"})");
  }
  EXPECT_FALSE(fs::exists(partial()));
  const auto dataset = Dataset::open(path(), true);
  EXPECT_EQ(dataset->num_episodes(), 3);
  ASSERT_EQ(dataset->streams().size(), 2u);
  const Stream& fast = dataset->stream("fast");
  const Stream& slow = dataset->stream("slow");
  EXPECT_EQ(std::vector<int64_t>(fast.row_offsets.begin(), fast.row_offsets.end()), (std::vector<int64_t>{0, 4, 4, 4}));
  EXPECT_EQ(std::vector<int64_t>(slow.row_offsets.begin(), slow.row_offsets.end()), (std::vector<int64_t>{0, 0, 1, 1}));
  EXPECT_EQ(values_of(fast, 0), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(values_of(slow, 1), (std::vector<float>{5, 6}));
  EXPECT_EQ(std::vector<int64_t>(fast.time_ns, fast.time_ns + 4), (std::vector<int64_t>{1, 2, 2, 5}));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(fast.values) % 64, 0u);
  EXPECT_EQ(slow.clock, Clock::kNominal);
  EXPECT_EQ(slow.names, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(fast.findings.duplicates, 1);
  EXPECT_EQ(fast.findings.empty_episodes, 2);
  EXPECT_EQ(fast.stats.count[0], 4);
  EXPECT_EQ(fast.stats.mean[0], 2.5);
  EXPECT_EQ(dataset->episode_json(0), R"({"episode_index": 0, "start_ns": 1, "end_ns": 5, "task": "one"})");
  EXPECT_EQ(dataset->episode_json(1), R"({"episode_index": 1, "start_ns": -7, "end_ns": -7})");
  EXPECT_EQ(dataset->episode_json(2), R"({"episode_index": 2, "start_ns": null, "end_ns": null})");
  EXPECT_EQ(dataset->provenance_json(), R"({"source": "test"})");
}

TEST_F(WriterTest, EmptyCacheAndEmptyStream) {
  Writer(path()).close();
  EXPECT_EQ(Dataset::open(path(), true)->num_episodes(), 0);
  {
    Writer writer(path(), WriteMode::kOverwrite);
    writer.begin_episode();
    append(writer, "x", {}, {});
    writer.end_episode();
    writer.close();
  }
  const auto dataset = Dataset::open(path(), true);
  EXPECT_EQ(dataset->stream("x").rows, 0);
  EXPECT_EQ(dataset->stream("x").shape, (std::vector<int64_t>{1}));
}

TEST_F(WriterTest, StridedAndBroadcastRowsAreGathered) {
  {
    Writer writer(path());
    writer.begin_episode();
    std::vector<int64_t> times{3, 9, 2, 9, 1, 9};
    TensorView clock{.data = times.data() + 4, .dtype = DType::kInt64, .ndim = 1};
    clock.shape = {3};
    clock.strides = {-2};
    std::vector<float> values{1, 2, 3, 4, 5, 6};
    TensorView transposed{.data = values.data(), .ndim = 3};
    transposed.shape = {3, 2, 2};
    transposed.strides = {1, 3, 0};
    writer.append("x", clock, transposed);
    writer.end_episode();
    writer.close();
  }
  const auto dataset = Dataset::open(path(), true);
  const Stream& stream = dataset->stream("x");
  EXPECT_EQ(std::vector<int64_t>(stream.time_ns, stream.time_ns + 3), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(values_of(stream, 0), (std::vector<float>{1, 1, 4, 4, 2, 2, 5, 5, 3, 3, 6, 6}));
}

TEST_F(WriterTest, StridedRowsLongerThanAPieceAndWiderThanOne) {
  constexpr int64_t kRows = 5;
  constexpr int64_t kColumns = 300000;
  std::vector<float> values(kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  std::vector<int64_t> times(kRows);
  {
    Writer writer(path());
    writer.begin_episode();
    TensorView rows = TensorView::contiguous(values.data(), DType::kFloat32, {kRows, kColumns / 2});
    rows.strides = {kColumns, 2};
    writer.append("x", TensorView::contiguous(times.data(), DType::kInt64, {kRows}), rows);
    writer.end_episode();
    writer.close();
  }
  const auto dataset = Dataset::open(path(), true);
  const std::vector<float> got = values_of(dataset->stream("x"), 0);
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], values[2 * i]);
}

TEST_F(WriterTest, AbortedEpisodeTakesBackItsRowsAndStreams) {
  // More than a block, so that the rows to take back are in the file already.
  const std::vector<float> many(size_t{1} << 20, 7.0f);
  const std::vector<int64_t> times(many.size(), 100);
  {
    Writer writer(path());
    writer.begin_episode();
    append(writer, "x", {1, 2}, {1, 2});
    writer.end_episode();
    writer.begin_episode(R"({"dropped": 1})");
    append(writer, "x", times, many);
    append(writer, "new", times, many);
    writer.abort_episode();
    writer.begin_episode(R"({"dropped": "another type"})");
    append(writer, "x", {0}, {3});
    append(writer, "new", {0}, {1, 2, 3});  // another shape
    writer.end_episode();
    writer.close();
  }
  const auto dataset = Dataset::open(path(), true);
  EXPECT_EQ(dataset->num_episodes(), 2);
  EXPECT_EQ(values_of(dataset->stream("x"), 0), (std::vector<float>{1, 2}));
  EXPECT_EQ(values_of(dataset->stream("x"), 1), (std::vector<float>{3}));
  EXPECT_EQ(values_of(dataset->stream("new"), 1), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(dataset->stream("new").row_offsets[1], 0);
}

// Frames of codec png, each `size` bytes of one value, its place in `values`.
void append_png(Writer& writer, const std::string& stream, std::vector<int64_t> times, std::vector<uint8_t> values,
                size_t size = 3) {
  std::vector<uint8_t> bytes;
  std::vector<int64_t> offsets{0};
  for (const uint8_t value : values) {
    bytes.insert(bytes.end(), size, value);
    offsets.push_back(static_cast<int64_t>(bytes.size()));
  }
  writer.append_frames(stream, TensorView::contiguous(times.data(), DType::kInt64, {std::ssize(times)}), Codec::kPng,
                       ColorSpace::kRgb, DType::kUInt8, std::vector<int64_t>{2, 5, 3}, bytes, offsets);
}

std::string blobs_of(const Stream& stream) {
  return {static_cast<const char*>(stream.values), static_cast<size_t>(stream.blob_offsets[stream.rows])};
}

TEST_F(WriterTest, RawFramesAreRowsWithoutStatistics) {
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

TEST_F(WriterTest, JsonOfAnyDepthThatIsTakenIsReadAgain) {
  int taken = 0;
  for (int levels = 55; levels < 70; ++levels) {
    std::string json = "1";
    for (int level = 0; level < levels; ++level) json = R"({"a": )" + json + "}";
    try {
      Writer writer(path(), WriteMode::kOverwrite);
      writer.describe_frames("camera", {}, {}, json);
      writer.begin_episode();
      append_png(writer, "camera", {1}, {'a'});
      writer.end_episode();
      writer.close(json);
    } catch (const ArgumentError&) {
      continue;
    }
    const auto dataset = Dataset::open(path());
    EXPECT_EQ(dataset->provenance_json(), json);
    EXPECT_EQ(dataset->stream("camera").frames->resized_json, json);
    ++taken;
  }
  EXPECT_GT(taken, 5);
  EXPECT_LT(taken, 15);
}

TEST_F(WriterTest, AbortedFramesAreTakenBackWithTheirOffsets) {
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

TEST_F(WriterTest, FramesThatCannotBeAreRefusedAndAddNothing) {
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

// Rows of `lengths` elements of int32 [2], counted up over all.
void append_cloud(Writer& writer, std::vector<int64_t> times, const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets{0};
  for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
  std::vector<int32_t> values(static_cast<size_t>(2 * offsets.back()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i);
  writer.append_ragged("cloud", TensorView::contiguous(times.data(), DType::kInt64, {std::ssize(times)}),
                       TensorView::contiguous(values.data(), DType::kInt32, {offsets.back(), 2}),
                       TensorView::contiguous(offsets.data(), DType::kInt64, {std::ssize(offsets)}), Ragged::kArray);
}

void append_text(Writer& writer, std::vector<int64_t> times, std::string text, std::vector<int64_t> offsets) {
  writer.append_ragged("said", TensorView::contiguous(times.data(), DType::kInt64, {std::ssize(times)}),
                       TensorView::contiguous(text.data(), DType::kUInt8, {std::ssize(text)}),
                       TensorView::contiguous(offsets.data(), DType::kInt64, {std::ssize(offsets)}), Ragged::kText);
}

TEST_F(WriterTest, RaggedRowsAndTextKeepTheirSizes) {
  {
    Writer writer(path());
    writer.describe_stream("cloud", Clock::kNominal, {"x", "y"}, R"({"frame_id":"lidar"})");
    writer.begin_episode();
    append_cloud(writer, {1, 2}, {3, 0});
    append_text(writer, {5, 5}, "hello\xc3\xa4", {0, 5, 7});
    writer.end_episode();
    writer.begin_episode();
    append_cloud(writer, {1, 2}, {500000, 7});  // blocks are in the file already
    writer.abort_episode();
    writer.begin_episode();
    append_cloud(writer, {1}, {1});
    append_cloud(writer, {}, {});
    append_cloud(writer, {4}, {2});
    writer.end_episode();
    writer.close();
  }
  const auto dataset = Dataset::open(path(), true);
  const Stream& cloud = dataset->stream("cloud");
  EXPECT_EQ(cloud.ragged, Ragged::kArray);
  EXPECT_EQ(cloud.dtype, DType::kInt32);
  EXPECT_EQ(cloud.shape, (std::vector<int64_t>{2}));
  EXPECT_EQ(cloud.rows, 4);
  EXPECT_EQ(cloud.names, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(cloud.attributes_json, R"({"frame_id": "lidar"})");
  EXPECT_EQ(std::vector<int64_t>(cloud.blob_offsets, cloud.blob_offsets + 5), (std::vector<int64_t>{0, 3, 3, 4, 6}));
  const auto* values = static_cast<const int32_t*>(cloud.values);
  EXPECT_EQ(std::vector<int32_t>(values, values + 12), (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 0, 1, 0, 1, 2, 3}));
  EXPECT_EQ(std::vector<int64_t>(cloud.row_offsets.begin(), cloud.row_offsets.end()), (std::vector<int64_t>{0, 2, 4}));
  EXPECT_TRUE(cloud.stats.mean.empty());
  EXPECT_FALSE(fs::exists(path() + "/streams/cloud/stats.npy"));
  EXPECT_EQ(cloud.findings.max_period_ns, 3);
  const Stream& said = dataset->stream("said");
  EXPECT_EQ(said.ragged, Ragged::kText);
  EXPECT_EQ(blobs_of(said), "hello\xc3\xa4");
  EXPECT_EQ(said.attributes_json, "{}");
}

TEST_F(WriterTest, RaggedRowsThatCannotBeAreRefusedAndAddNothing) {
  {
    Writer writer(path());
    writer.begin_episode();
    append(writer, "x", {1}, {1});
    append_cloud(writer, {10}, {2});
    append_text(writer, {10}, "ok", {0, 2});
    std::vector<int64_t> times{20, 30};
    std::vector<float> values(12);
    const auto refused = [&](const std::string& stream, std::vector<int64_t> offsets, const TensorView& elements,
                             Ragged ragged = Ragged::kArray) {
      return message_of<ArgumentError>([&] {
        writer.append_ragged(stream, TensorView::contiguous(times.data(), DType::kInt64, {2}), elements,
                             TensorView::contiguous(offsets.data(), DType::kInt64, {std::ssize(offsets)}), ragged);
      });
    };
    const TensorView elements = TensorView::contiguous(values.data(), DType::kFloat32, {6, 2});
    const std::string order =
        "expected offsets from 0 to 6, the elements of all rows, none below the one before it; got ";
    EXPECT_TRUE(contains(refused("new", {1, 3, 6}, elements), order + "offsets[0] 1"));
    EXPECT_TRUE(contains(refused("new", {0, 7, 6}, elements), order + "offsets[1] 7"));
    EXPECT_TRUE(contains(refused("new", {0, -1, 6}, elements), order + "offsets[1] -1"));
    EXPECT_TRUE(contains(refused("new", {0, 3, 5}, elements), order + "offsets[2] 5"));
    EXPECT_TRUE(contains(refused("new", {0, 6}, elements), "offsets [n + 1], got [2], [6, 2] and [2]"));
    EXPECT_TRUE(contains(refused("new", {0, 3, 6}, elements, Ragged::kText), "expected text as bytes, uint8 [], got "));
    EXPECT_TRUE(contains(refused("new", {0, 1, 6}, TensorView::contiguous(values.data(), DType::kFloat32, {6, 0})),
                         "expected elements of ragged rows that have features"));
    EXPECT_TRUE(contains(refused("cloud", {0, 3, 6}, elements), "expected values of int32 as in its first rows"));
    EXPECT_TRUE(contains(refused("x", {0, 3, 6}, elements), "expected numbers as in its first rows, got ragged rows"));
    EXPECT_TRUE(contains(refused("said", {0, 3, 6}, TensorView::contiguous(values.data(), DType::kUInt8, {6})),
                         "expected text as in its first rows, got ragged rows"));
    EXPECT_TRUE(contains(message_of<ArgumentError>([&] { append(writer, "cloud", {20}, {1, 2}); }),
                         "expected ragged rows as in its first rows, got numbers"));
    EXPECT_TRUE(contains(message_of<ArgumentError>([&] { append_text(writer, {20, 30}, "a\xc3\xa4", {0, 2, 3}); }),
                         "stream 'said': expected UTF-8 in row 0, got "));
    EXPECT_TRUE(
        contains(message_of<ArgumentError>([&] { append_text(writer, {20}, "\xed\xa0\x80", {0, 3}); }), "UTF-8"));
    EXPECT_TRUE(contains(message_of<ArgumentError>([&] { append_cloud(writer, {9}, {1}); }), "do not decrease"));
    EXPECT_TRUE(contains(message_of<ArgumentTypeError>([&] {
                           writer.append_ragged("new", TensorView::contiguous(times.data(), DType::kInt64, {2}),
                                                elements, TensorView::contiguous(values.data(), DType::kFloat32, {3}),
                                                Ragged::kArray);
                         }),
                         "expected offsets in int64, got float32"));
    for (const char* json : {"", "3", "[]", "{", "{\"x\": NaN}"}) {
      EXPECT_TRUE(contains(message_of<ArgumentError>([&] { writer.describe_stream("x", Clock::kRecorded, {}, json); }),
                           "stream 'x': attributes: "));
    }
    writer.end_episode();
    writer.close();
  }
  const auto dataset = Dataset::open(path(), true);
  ASSERT_EQ(dataset->streams().size(), 3u);
  EXPECT_EQ(dataset->stream("cloud").blob_offsets[1], 2);
  EXPECT_EQ(blobs_of(dataset->stream("said")), "ok");
}

TEST_F(WriterTest, AFirstEpisodeThatIsAbortedLeavesNoStream) {
  {
    Writer writer(path());
    writer.begin_episode();
    append(writer, "x", {1}, {1});
    writer.abort_episode();
    writer.close();
  }
  EXPECT_TRUE(Dataset::open(path(), true)->streams().empty());
  EXPECT_TRUE(fs::is_empty(path() + "/streams"));
}

TEST_F(WriterTest, RefusalsNameTheStreamAndAddNothing) {
  {
    Writer writer(path());
    writer.begin_episode();
    append(writer, "x", {10, 20}, {1, 2});
    const auto refusal = [&](const TensorView& times, const TensorView& values) {
      return message_of<ArgumentError>([&] { writer.append("x", times, values); });
    };
    std::vector<int64_t> time{20, 30, 29};
    std::vector<double> value(100);
    const TensorView times = TensorView::contiguous(time.data(), DType::kInt64, {3});
    const TensorView values = TensorView::contiguous(value.data(), DType::kFloat32, {3, 1});
    EXPECT_EQ(refusal(times, values),
              "stream 'x': expected times that do not decrease within an episode, got 29 ns in row 4 after 30 ns");
    time = {19, 30, 40};
    EXPECT_EQ(refusal(times, values),
              "stream 'x': expected times that do not decrease within an episode, got 19 ns in row 2 after 20 ns");
    time = {20, 30, 40};
    EXPECT_EQ(refusal(times, TensorView::contiguous(value.data(), DType::kFloat64, {3, 1})),
              "stream 'x': expected values of float32 as in its first rows, got float64");
    EXPECT_EQ(refusal(times, TensorView::contiguous(value.data(), DType::kFloat32, {3, 2})),
              "stream 'x': expected values of shape [n, 1] as in its first rows, got [3, 2]");
    EXPECT_EQ(refusal(times, TensorView::contiguous(value.data(), DType::kFloat32, {3})),
              "stream 'x': expected values of shape [n, 1] as in its first rows, got [3]");
    EXPECT_EQ(refusal(times, TensorView::contiguous(value.data(), DType::kFloat32, {2, 1})),
              "stream 'x': expected times [n] and values [n, ...], got [3] and [2, 1]");
    EXPECT_EQ(refusal(times, TensorView::contiguous(value.data(), DType::kFloat32, {})),
              "stream 'x': expected times [n] and values [n, ...], got [3] and []");
    EXPECT_EQ(refusal(times, TensorView::contiguous(nullptr, DType::kFloat32, {3, 1}, {DeviceType::kCuda, 0})),
              "stream 'x': expected times and values on the CPU, got [3] int64 on cpu and [3, 1] float32 on cuda:0");
    EXPECT_EQ(message_of<ArgumentTypeError>(
                  [&] { writer.append("x", TensorView::contiguous(value.data(), DType::kFloat64, {3}), values); }),
              "stream 'x': expected times in int64 nanoseconds, got float64");
    EXPECT_TRUE(contains(message_of<ArgumentError>([&] { append(writer, "", {1}, {1}); }), "stream: expected UTF-8"));
    EXPECT_TRUE(contains(message_of<ArgumentError>([&] { append(writer, "\xff", {1}, {1}); }), "stream: expected"));
    EXPECT_TRUE(contains(message_of<ArgumentError>([&] { append(writer, std::string(256, 'x'), {1}, {1}); }),
                         "at most 255 bytes"));
    append(writer, std::string(255, 'x'), {1}, {1});
    EXPECT_EQ(message_of<ArgumentError>([&] { writer.describe_stream("x", Clock::kRecorded, {"a", "b"}); }),
              "stream 'x': expected 1 names, one a feature, got 2");
    writer.describe_stream("later", Clock::kRecorded, {"a", "b"});
    EXPECT_EQ(message_of<ArgumentError>([&] { append(writer, "later", {1}, {1}); }),
              "stream 'later': expected 1 names, one a feature, got 2");
    EXPECT_EQ(message_of<ArgumentError>([&] { writer.describe_stream("x", Clock::kRecorded, {"a", ""}); }),
              "stream 'x': names[1]: expected UTF-8 text that is not empty, got ''");
    writer.end_episode();
    writer.close();
  }
  const auto dataset = Dataset::open(path(), true);
  EXPECT_EQ(values_of(dataset->stream("x"), 0), (std::vector<float>{1, 2}));
  EXPECT_EQ(dataset->streams().size(), 2u);
}

TEST_F(WriterTest, CallsOutOfOrderAreRefused) {
  Writer writer(path());
  EXPECT_TRUE(contains(message_of<ArgumentError>([&] { append(writer, "x", {1}, {1}); }), "expected an open episode"));
  EXPECT_THROW(writer.end_episode(), ArgumentError);
  EXPECT_THROW(writer.abort_episode(), ArgumentError);
  writer.begin_episode();
  EXPECT_THROW(writer.begin_episode(), ArgumentError);
  EXPECT_THROW(writer.close(), ArgumentError);
  writer.end_episode();
  EXPECT_THROW(writer.close("[]"), ArgumentError);
  EXPECT_THROW(writer.close("{"), ArgumentError);
  writer.close();
  EXPECT_TRUE(contains(message_of<ArgumentError>([&] { writer.begin_episode(); }), "this one is closed"));
  writer.close();
  writer.abort();
  EXPECT_TRUE(fs::exists(path()));
}

TEST_F(WriterTest, WithoutCloseNothingIsLeft) {
  {
    Writer writer(path());
  }
  EXPECT_TRUE(fs::is_empty(folder_.path()));
  Writer writer(path());
  writer.abort();
  EXPECT_TRUE(fs::is_empty(folder_.path()));
  EXPECT_TRUE(contains(message_of<ArgumentError>([&] { writer.begin_episode(); }), "this one is aborted"));
  EXPECT_THROW(writer.close(), ArgumentError);
}

TEST_F(WriterTest, AnExistingNameIsNeverTouchedUnasked) {
  write(1);
  EXPECT_TRUE(contains(message_of<FileError>([&] { Writer writer(path()); }), "cache: it exists already"));
  fs::create_directory(folder_.path() + "/photos");
  test::write_file(folder_.path() + "/photos/cat.jpg", "meow");
  EXPECT_TRUE(
      contains(message_of<FileError>([&] { Writer(folder_.path() + "/photos", WriteMode::kOverwrite).close(); }),
               "photos: expected a cache to overwrite, got something else"));
  fs::create_directory(folder_.path() + "/new.partial");
  test::write_file(folder_.path() + "/new.partial/cat.jpg", "meow");
  EXPECT_TRUE(contains(message_of<FileError>([&] { Writer(folder_.path() + "/new").close(); }),
                       "new.partial: expected nothing of that name or what a writer left"));
  EXPECT_EQ(test::read_file(folder_.path() + "/photos/cat.jpg"), "meow");
  EXPECT_EQ(test::read_file(folder_.path() + "/new.partial/cat.jpg"), "meow");
  EXPECT_EQ(written(), 1);
}

TEST_F(WriterTest, ANameThatAppearsMeanwhileIsNotReplaced) {
  Writer writer(path());
  fs::create_directory(path());
  EXPECT_THROW(writer.close(), FileError);
  EXPECT_TRUE(fs::is_empty(path()));
  fs::remove(path());
  writer.close();  // may be tried again
  EXPECT_EQ(Dataset::open(path(), true)->num_episodes(), 0);
}

TEST_F(WriterTest, OverwriteReplacesOnlyAtTheEnd) {
  write(1);
  const auto old = Dataset::open(path());
  {
    Writer writer(path(), WriteMode::kOverwrite);
    writer.begin_episode();
    append(writer, "x", {0}, {2});
    EXPECT_EQ(written(), 1);
  }
  EXPECT_EQ(written(), 1);
  write(2, WriteMode::kOverwrite);
  EXPECT_EQ(written(), 2);
  EXPECT_EQ(values_of(old->stream("x"), 0), (std::vector<float>{1}));  // still mapped
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()), 1);
  EXPECT_FALSE(fs::exists(path() + "/writer.lock"));
}

TEST_F(WriterTest, ASecondWriterIsRefusedWhileTheFirstLives) {
  Writer first(path());
  EXPECT_EQ(message_of<FileError>([&] { Writer second(path()); }), partial() + ": another writer is at work on it");
  first.begin_episode();
  append(first, "x", {0}, {1});
  first.end_episode();
  first.close();
  EXPECT_EQ(written(), 1);
}

TEST_F(WriterTest, AKilledWriterLeavesNothingThatOpensAndIsReplaced) {
  write_and_die();
  EXPECT_TRUE(fs::exists(partial()));
  EXPECT_THROW(Dataset::open(path()), FileError);
  EXPECT_THROW(Dataset::open(partial()), FileError);
  write(3);
  EXPECT_EQ(written(), 3);
  write_and_die();
  EXPECT_EQ(written(), 3);
  write(4, WriteMode::kOverwrite);
  EXPECT_EQ(written(), 4);
  EXPECT_FALSE(fs::exists(partial()));
}

TEST_F(WriterTest, AForkedChildCannotHarmItsParentsWriter) {
  Writer writer(path());
  writer.begin_episode();
  const pid_t child = fork();
  if (child == 0) {
    int accepted = 0;
    for (const auto& call : {std::function<void()>([&] { append(writer, "x", {0}, {6}); }),
                             std::function<void()>([&] { writer.end_episode(); })}) {
      try {
        call();
        ++accepted;
      } catch (const ArgumentError&) {
        writer.abort();
      }
    }
    _exit(accepted);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  append(writer, "x", {0}, {5});
  writer.end_episode();
  writer.close();
  EXPECT_EQ(written(), 5);
}

TEST_F(WriterTest, PathsWithSlashesMissingParentsAndLinks) {
  {
    Writer(folder_.path() + "/a/b/cache/").close();
  }
  EXPECT_EQ(Dataset::open(folder_.path() + "/a/b/cache/")->num_episodes(), 0);
  fs::create_directory_symlink(folder_.path() + "/a/b/cache", path());
  write(6, WriteMode::kOverwrite);
  EXPECT_EQ(written(), 6);
  EXPECT_TRUE(fs::is_symlink(path()));
  EXPECT_THROW(Writer(""), ArgumentError);
  test::write_file(folder_.path() + "/file", "");
  EXPECT_THROW(Writer(folder_.path() + "/file/cache"), FileError);
}

// A file size limit stands for a full disk: writes fail in the middle of an append.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST_F(WriterTest, AFailedWriteCostsOneEpisode) {
  const std::vector<float> many(size_t{1} << 20, 7.0f);
  const std::vector<int64_t> times(many.size(), 100);
  Writer writer(path());
  writer.begin_episode();
  append(writer, "x", {1, 2}, {1, 2});
  writer.end_episode();
  writer.begin_episode();
  append(writer, "x", {3}, {3});
  {
    const FileSizeLimit limit(3'500'000);
    const std::string message = message_of<FileError>([&] { append(writer, "x", times, many); });
    EXPECT_EQ(message, partial() + "/streams/x/time_ns.npy: writing at byte 3500000: File too large");
    EXPECT_THROW(append(writer, "x", {200}, {4}), FileError);
    EXPECT_THROW(writer.end_episode(), FileError);
    writer.abort_episode();
  }
  writer.begin_episode();
  append(writer, "x", times, many);
  writer.end_episode();
  {
    const FileSizeLimit limit(100'000);
    EXPECT_THROW(writer.close(), FileError);
  }
  writer.close();  // may be tried again
  const auto dataset = Dataset::open(path(), true);
  EXPECT_EQ(values_of(dataset->stream("x"), 0), (std::vector<float>{1, 2}));
  EXPECT_EQ(values_of(dataset->stream("x"), 1), many);
}

TEST_F(WriterTest, EpisodesGoBehindThoseOfAFinishedCache) {
  const auto add = [](Writer& writer, float value) {
    writer.begin_episode(R"({"value": )" + std::to_string(value) + "}");
    append(writer, "x", {1, 2}, {value, value});
    append_png(writer, "camera", {5}, {static_cast<uint8_t>(value)}, 700000);  // blocks
    append_cloud(writer, {7}, {static_cast<int64_t>(value)});
    writer.end_episode();
  };
  const std::string apart = folder_.path() + "/at once";
  {
    Writer writer(path());
    writer.describe_stream("x", Clock::kNominal, {"a"}, R"({"units": "m"})");
    add(writer, 1);
    add(writer, 2);
    writer.close(R"({"by": "hand"})");
    Writer at_once(apart);
    at_once.describe_stream("x", Clock::kNominal, {"a"}, R"({"units": "m"})");
    for (const float value : {1, 2, 3}) add(at_once, value);
    at_once.close(R"({"by": "hand"})");
  }
  const auto opened = Dataset::open(path());
  {
    Writer writer(path(), WriteMode::kAppend);
    EXPECT_EQ(writer.provenance_json(), R"({"by": "hand"})");
    EXPECT_EQ(writer.num_episodes(), 2);
    writer.begin_episode();
    append_png(writer, "camera", {5}, {'z'}, 5000000);
    append(writer, "new", {1}, {1});
    writer.abort_episode();
    opened->verify();  // nothing of what it has mapped was cut off
    add(writer, 3);
    EXPECT_EQ(Dataset::open(path(), true)->num_episodes(), 2);
    EXPECT_TRUE(contains(message_of<FileError>([&] { Writer(path(), WriteMode::kAppend); }), "another writer"));
    writer.close();
  }
  opened->verify();
  const auto dataset = Dataset::open(path(), true);
  const auto expected = Dataset::open(apart, true);
  EXPECT_EQ(dataset->num_episodes(), 3);
  EXPECT_EQ(dataset->episodes_jsonl(), expected->episodes_jsonl());
  EXPECT_EQ(dataset->provenance_json(), expected->provenance_json());
  ASSERT_EQ(dataset->streams().size(), 3u);
  for (const Stream& stream : dataset->streams()) {
    const std::string folder = "/streams/" + stream.name + "/";
    for (const std::string file : {"time_ns", "values", "blob_offsets"}) {
      EXPECT_EQ(test::read_file(path() + folder + file + ".npy"), test::read_file(apart + folder + file + ".npy"));
    }
    for (const std::string file : {"row_offsets", "stats"}) {
      EXPECT_EQ(test::read_file(path() + folder + file + ".1.npy"), test::read_file(apart + folder + file + ".npy"));
      EXPECT_FALSE(fs::exists(path() + folder + file + ".npy"));
    }
    const Stream& other = expected->stream(stream.name);
    EXPECT_EQ(stream.clock, other.clock);
    EXPECT_EQ(stream.names, other.names);
    EXPECT_EQ(stream.attributes_json, other.attributes_json);
    EXPECT_EQ(stream.clock_checksum, other.clock_checksum);
  }
  EXPECT_FALSE(fs::exists(path() + "/writer.lock"));
}

TEST_F(WriterTest, WithoutCloseAnAppendLeavesEveryByte) {
  write(1);
  std::vector<std::pair<fs::path, std::string>> before;
  for (const auto& entry : fs::recursive_directory_iterator(path())) {
    if (entry.is_regular_file()) before.emplace_back(entry.path(), test::read_file(entry.path()));
  }
  {
    Writer writer(path(), WriteMode::kAppend);
    writer.begin_episode();
    const std::vector<float> many(size_t{1} << 20, 7.0f);
    append(writer, "x", std::vector<int64_t>(many.size(), 100), many);
    append(writer, "new", {1}, {1});
    writer.end_episode();
    EXPECT_GT(fs::file_size(path() + "/streams/x/values.npy"), size_t{1} << 20);
  }
  size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(path())) files += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(files, before.size());
  for (const auto& [file, bytes] : before) EXPECT_EQ(test::read_file(file), bytes) << file;
}

TEST_F(WriterTest, WhatCannotBeAppendedToStaysAsItIs) {
  EXPECT_TRUE(
      contains(message_of<FileError>([&] { Writer(path(), WriteMode::kAppend); }), "expected a cache to append to"));
  EXPECT_FALSE(fs::exists(path()));
  write(1);
  const std::string values = path() + "/streams/x/values.npy";
  const std::string whole = test::read_file(values);
  test::write_byte(values, whole.size() - 1, static_cast<char>(whole.back() ^ 1));
  EXPECT_TRUE(contains(message_of<FileError>([&] { Writer(path(), WriteMode::kAppend); }),
                       values + ": at byte 128: expected CRC-32 "));
  test::write_file(values, whole);
  EXPECT_FALSE(fs::exists(path() + "/writer.lock"));
  EXPECT_EQ(written(), 1);
}

TEST_F(WriterTest, ThreadsMayAppendAtOnce) {
  constexpr int64_t kRows = 20000;
  {
    Writer writer(path());
    writer.begin_episode();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&writer, t] {
        for (int64_t row = 0; row < kRows; ++row) {
          append(writer, "stream " + std::to_string(t), {row}, {static_cast<float>(t), static_cast<float>(row)});
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    writer.end_episode();
    writer.close();
  }
  const auto dataset = Dataset::open(path(), true);
  for (int t = 0; t < 4; ++t) {
    const Stream& stream = dataset->stream("stream " + std::to_string(t));
    EXPECT_EQ(stream.rows, kRows);
    EXPECT_EQ(stream.stats.min[0], t);
    EXPECT_EQ(stream.stats.max[0], t);
    EXPECT_EQ(stream.stats.max[1], kRows - 1);
  }
}

TEST_F(WriterTest, TheSameInputMakesTheSameBytes) {
  write(1);
  const std::string first = test::read_file(path() + "/manifest.json");
  write(1, WriteMode::kOverwrite);
  EXPECT_EQ(test::read_file(path() + "/manifest.json"), first);
}

}  // namespace
}  // namespace robocache
