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
using test::append_cloud;
using test::blobs_of;
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

}  // namespace
}  // namespace robocache
