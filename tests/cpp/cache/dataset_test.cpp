#include "robocache/cache/dataset.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "robocache/cache/crc32.hpp"
#include "robocache/cache/writer.hpp"
#include "robocache/core/error.hpp"
#include "tests/cpp/cache/files.hpp"
#include "tests/cpp/temporary_cache.hpp"

namespace robocache {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;

class DatasetTest : public testing::Test {
 protected:
  void SetUp() override {
    std::vector<int64_t> times{10, 20, 30};
    std::vector<float> values{1, 2, 3, 4, 5, 6};
    Writer writer(path());
    for (int e = 0; e < 2; ++e) {
      writer.begin_episode(R"({"task": "stack"})");
      writer.append("joint.position", TensorView::contiguous(times.data(), DType::kInt64, {3}),
                    TensorView::contiguous(values.data(), DType::kFloat32, {3, 2}));
      writer.end_episode();
    }
    writer.close();
  }

  std::string path() const { return folder_.path() + "/cache"; }
  std::string in_stream(const std::string& file) const { return path() + "/streams/joint.position/" + file; }

  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(path())) {
      if (entry.is_regular_file()) found.push_back(entry.path());
    }
    return found;
  }

  void expect_refused(const fs::path& file, const std::string& damage) const {
    const std::string message = message_of<FileError>([&] { Dataset::open(path(), true); });
    EXPECT_TRUE(message.starts_with(file.string() + ": ")) << damage << ": " << message;
  }

  // Changes a file and makes its checksums in the manifest right again: damage that only the other checks can find.
  void forge(const std::string& file, size_t at, const void* bytes, size_t size) const {
    std::string content = test::read_file(file);
    const std::string before = cache::crc32_text(cache::crc32(content.data(), content.size()));
    std::memcpy(content.data() + at, bytes, size);
    test::write_file(file, content);
    std::string manifest = test::read_file(path() + "/manifest.json");
    manifest.replace(manifest.find(before), 8, cache::crc32_text(cache::crc32(content.data(), content.size())));
    manifest.resize(manifest.rfind("  \"crc32\""));
    manifest += "  \"crc32\": \"" + cache::crc32_text(cache::crc32(manifest.data(), manifest.size())) + "\"\n}\n";
    test::write_file(path() + "/manifest.json", manifest);
  }

  test::TemporaryFolder folder_;
};

TEST_F(DatasetTest, EveryFlippedByteOfEveryFileIsRefused) {
  ASSERT_EQ(files().size(), 6u);
  for (const fs::path& file : files()) {
    const std::string whole = test::read_file(file);
    for (size_t i = 0; i < whole.size(); ++i) {
      test::write_byte(file, i, static_cast<char>(whole[i] ^ (1 << (i % 8))));
      expect_refused(file, "byte " + std::to_string(i) + " flipped");
      test::write_byte(file, i, whole[i]);
    }
  }
  EXPECT_NO_THROW(Dataset::open(path(), true));
}

TEST_F(DatasetTest, EveryTruncationAndExtensionIsRefusedWithoutVerify) {
  for (const fs::path& file : files()) {
    const std::string whole = test::read_file(file);
    for (size_t length = whole.size() + 3; length-- > 0;) {
      if (length == whole.size()) continue;
      fs::resize_file(file, length);
      const std::string message = message_of<FileError>([&] { Dataset::open(path()); });
      EXPECT_TRUE(message.starts_with(file.string() + ": at byte ")) << message;
    }
    test::write_file(file, whole);
  }
  const std::string values = in_stream("values.npy");
  const auto size = fs::file_size(values);
  fs::resize_file(values, size - 5);
  EXPECT_EQ(message_of<FileError>([&] { Dataset::open(path()); }),
            values + ": at byte " + std::to_string(size - 5) + ": expected a file of " + std::to_string(size) +
                " bytes, got " + std::to_string(size - 5) + ": it is cut short");
}

TEST_F(DatasetTest, EveryMissingFileIsRefused) {
  for (const fs::path& file : files()) {
    fs::rename(file, folder_.path() + "/aside");
    expect_refused(file, "missing");
    fs::create_directory(file);
    expect_refused(file, "a directory");
    fs::remove(file);
    fs::rename(folder_.path() + "/aside", file);
  }
  EXPECT_TRUE(contains(message_of<FileError>([&] { Dataset::open(folder_.path() + "/none"); }),
                       "none: opening the directory: No such file or directory"));
}

TEST_F(DatasetTest, DamageIsLocatedByBlock) {
  std::vector<int64_t> times(300000);
  std::vector<float> values(2 * times.size());
  {
    Writer writer(path(), true);
    writer.begin_episode();
    writer.append("joint.position", TensorView::contiguous(times.data(), DType::kInt64, {300000}),
                  TensorView::contiguous(values.data(), DType::kFloat32, {300000, 2}));
    writer.end_episode();
    writer.close();
  }
  const std::string file = in_stream("values.npy");
  std::string bytes = test::read_file(file);
  bytes[2000000] = 1;
  bytes[2200000] = 1;
  test::write_file(file, bytes);
  EXPECT_NO_THROW(Dataset::open(path()));
  EXPECT_TRUE(contains(message_of<FileError>([&] { Dataset::open(path(), true); }),
                       file + ": at byte 1048576: expected CRC-32 "));
  EXPECT_THROW(Dataset::open(path())->verify(), FileError);
}

TEST_F(DatasetTest, NumbersThatContradictEachOtherAreRefusedDespiteRightChecksums) {
  const std::string offsets = in_stream("row_offsets.npy");
  for (const auto& [index, value, expected] :
       {std::tuple<size_t, int64_t, const char*>{0, 1, "at byte 128: expected a row offset from 0 to 0, got 1"},
        {1, -1, "at byte 136: expected a row offset from 0 to 6, got -1"},
        {1, 7, "at byte 136: expected a row offset from 0 to 6, got 7"},
        {2, 5, "at byte 144: expected the number of rows, 6, got 5"},
        {2, 2, "at byte 144: expected a row offset from 3 to 6, got 2"}}) {
    const std::string whole = test::read_file(offsets);
    const std::string manifest = test::read_file(path() + "/manifest.json");
    forge(offsets, 128 + 8 * index, &value, 8);
    EXPECT_EQ(message_of<FileError>([&] { Dataset::open(path()); }), offsets + ": " + expected);
    test::write_file(offsets, whole);
    test::write_file(path() + "/manifest.json", manifest);
  }
  forge(path() + "/episodes.jsonl", 5, "\n", 1);
  EXPECT_TRUE(contains(message_of<FileError>([&] { Dataset::open(path()); }),
                       "episodes.jsonl: at byte 136: expected 2 lines, one an episode, got 3"));
}

TEST_F(DatasetTest, VerifyFindsTimesThatGoBack) {
  const int64_t earlier = 19;
  forge(in_stream("time_ns.npy"), 128 + 8 * 5, &earlier, 8);
  EXPECT_NO_THROW(Dataset::open(path()));
  EXPECT_EQ(
      message_of<FileError>([&] { Dataset::open(path(), true); }),
      in_stream("time_ns.npy") + ": at byte 168: expected a time of at least 20 ns in row 5 of episode 1, got 19");
}

TEST_F(DatasetTest, AnUnknownStreamNamesTheKnown) {
  const auto dataset = Dataset::open(path());
  EXPECT_EQ(dataset->index_of("joint.position"), 0);
  EXPECT_EQ(message_of<ArgumentError>([&] { dataset->index_of("joint.postion"); }),
            "stream: expected one of 'joint.position', got 'joint.postion'; did you mean 'joint.position'?");
  EXPECT_EQ(message_of<ArgumentError>([&] { dataset->stream("camera"); }),
            "stream: expected one of 'joint.position', got 'camera'");
  EXPECT_EQ(message_of<ArgumentError>([&] { dataset->episode_json(2); }), "episode: expected 0 to 1, got 2");
}

TEST_F(DatasetTest, StreamsOfOneClockAreKnown) {
  const auto append = [](Writer& writer, const std::string& stream, std::vector<int64_t> times) {
    const auto n = static_cast<int64_t>(times.size());
    std::vector<uint8_t> values(times.size());
    writer.append(stream, TensorView::contiguous(times.data(), DType::kInt64, {n}),
                  TensorView::contiguous(values.data(), DType::kUInt8, {n}));
  };
  {
    Writer writer(path(), true);
    writer.begin_episode();
    append(writer, "state", {1, 2, 3});
    append(writer, "action", {1, 2, 3});
    append(writer, "other stamp", {1, 2, 4});
    append(writer, "other episode", {1, 2});
    writer.end_episode();
    writer.begin_episode();
    append(writer, "other episode", {3});
    writer.end_episode();
    writer.close();
  }
  const auto dataset = Dataset::open(path());
  const Stream& state = dataset->stream("state");
  EXPECT_TRUE(same_clock(state, dataset->stream("action")));
  EXPECT_EQ(state.clock_checksum, dataset->stream("action").clock_checksum);
  for (const char* other : {"other stamp", "other episode"}) {
    EXPECT_FALSE(same_clock(state, dataset->stream(other))) << other;
    EXPECT_NE(state.clock_checksum, dataset->stream(other).clock_checksum) << other;
    Stream chance = dataset->stream(other);
    chance.clock_checksum = state.clock_checksum;
    EXPECT_FALSE(same_clock(state, chance)) << other;
  }
}

TEST_F(DatasetTest, OtherFilesInTheDirectoryAreNotItsBusiness) {
  test::write_file(path() + "/README", "mine");
  EXPECT_NO_THROW(Dataset::open(path(), true));
}

TEST_F(DatasetTest, BytesAreThoseOfItsFiles) {
  uintmax_t bytes = 0;
  for (const fs::path& file : files()) bytes += fs::file_size(file);
  EXPECT_EQ(Dataset::open(path())->bytes(), static_cast<int64_t>(bytes));
}

}  // namespace
}  // namespace robocache
