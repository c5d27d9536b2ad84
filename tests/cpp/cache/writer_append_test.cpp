#include "robocache/cache/writer.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

#include "robocache/core/error.hpp"
#include "tests/cpp/cache/files.hpp"
#include "tests/cpp/cache/writer_fixture.hpp"

namespace robocache {
namespace {

namespace fs = std::filesystem;
using test::append;
using test::append_cloud;
using test::append_png;
using test::contains;
using test::message_of;
using WriterAppendTest = test::WriterFixture;

TEST_F(WriterAppendTest, EpisodesGoBehindThoseOfAFinishedCache) {
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

}  // namespace
}  // namespace robocache
