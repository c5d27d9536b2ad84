#include "robocache/cache/writer.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "robocache/core/error.hpp"
#include "tests/cpp/cache/files.hpp"
#include "tests/cpp/cache/writer_fixture.hpp"

namespace robocache {
namespace {

namespace fs = std::filesystem;
using test::append;
using test::append_cloud;
using test::blobs_of;
using test::contains;
using test::message_of;
using WriterRaggedTest = test::WriterFixture;

void append_text(Writer& writer, std::vector<int64_t> times, std::string text, std::vector<int64_t> offsets) {
  writer.append_ragged("said", TensorView::contiguous(times.data(), DType::kInt64, {std::ssize(times)}),
                       TensorView::contiguous(text.data(), DType::kUInt8, {std::ssize(text)}),
                       TensorView::contiguous(offsets.data(), DType::kInt64, {std::ssize(offsets)}), Ragged::kText);
}

TEST_F(WriterRaggedTest, RaggedRowsAndTextKeepTheirSizes) {
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

TEST_F(WriterRaggedTest, RaggedRowsThatCannotBeAreRefusedAndAddNothing) {
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

}  // namespace
}  // namespace robocache
