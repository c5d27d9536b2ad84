#include "robocache/cache/dataset.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "robocache/cache/crc32.hpp"
#include "robocache/core/error.hpp"
#include "tests/cpp/cache/files.hpp"
#include "tests/cpp/cache/writer_fixture.hpp"
#include "tests/cpp/trials.hpp"

namespace robocache {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;

class DatasetTest : public test::WriterFixture {
 protected:
  void SetUp() override {
    const std::vector<int64_t> times{10, 20, 30};
    Writer writer(path());
    for (int e = 0; e < 2; ++e) {
      writer.begin_episode(R"({"task": "stack"})");
      test::append(writer, "joint.position", times, {1, 2, 3, 4, 5, 6});
      test::append_cloud(writer, times, {2, 0, 1});
      test::append_png(writer, "camera", times, {'o', 't', '3'});
      writer.end_episode();
    }
    writer.close();
  }

  std::string in_stream(const std::string& file) const { return path() + "/streams/joint.position/" + file; }
  std::string in_camera(const std::string& file) const { return path() + "/streams/camera/" + file; }

  // Whether the file may be longer than the manifest says, and its header may name more rows.
  static bool grows(const fs::path& file) {
    return file.filename() == "time_ns.npy" || file.filename() == "values.npy" || file.filename() == "blob_offsets.npy";
  }

  std::vector<fs::path> files() const {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::recursive_directory_iterator(path())) {
      if (entry.is_regular_file()) paths.push_back(entry.path());
    }
    return paths;
  }

  void expect_refused(const fs::path& file, const std::string& damage) const {
    const std::string message = message_of<FileError>([&] { Dataset::open(path(), true); });
    EXPECT_TRUE(message.starts_with(file.string() + ": ")) << damage << ": " << message;
  }

  // Changes a file and corrects its checksums in the manifest, so that only the other checks can find the damage.
  void forge(const std::string& file, size_t offset, const void* bytes, size_t size) const {
    std::string content = test::read_file(file);
    const size_t header = grows(file) ? kHeader : 0;
    const auto crc_of_content = [&] {
      return cache::crc32_text(cache::crc32(content.data() + header, content.size() - header));
    };
    const std::string old_crc = crc_of_content();
    std::memcpy(content.data() + offset, bytes, size);
    test::write_file(file, content);
    std::string manifest = test::read_file(path() + "/manifest.json");
    manifest.replace(manifest.find(old_crc, manifest.find(file.substr(path().size() + 1))), 8, crc_of_content());
    manifest.resize(manifest.rfind("  \"crc32\""));
    manifest += "  \"crc32\": \"" + cache::crc32_text(cache::crc32(manifest.data(), manifest.size())) + "\"\n}\n";
    test::write_file(path() + "/manifest.json", manifest);
  }

  static constexpr size_t kHeader = 128;  // bytes of each .npy header here
};

// A file that grows may name more rows than the manifest.
TEST_F(DatasetTest, EveryFlippedByteOfEveryFileIsRefused) {
  ASSERT_EQ(files().size(), 14u);
  int accepted_headers = 0;
  for (const fs::path& file : files()) {
    const std::string whole = test::read_file(file);
    const size_t rows_begin = grows(file) ? whole.find("'shape': (") + 10 : 0;
    const size_t rows_end = grows(file) ? whole.find(',', rows_begin) : 0;
    for (size_t i = 0; i < whole.size(); ++i) {
      const bool names_rows = i >= rows_begin && i < rows_end;
      if (!names_rows && i % test::kDamageStep != 0) continue;
      if (names_rows) {
        test::write_byte(file, i, whole[i] == '9' ? '1' : static_cast<char>(whole[i] + 1));
        EXPECT_NO_THROW(Dataset::open(path(), true));
        ++accepted_headers;
      }
      test::write_byte(file, i, static_cast<char>(whole[i] ^ (1 << (i % 8))));
      expect_refused(file, "byte " + std::to_string(i) + " flipped");
      test::write_byte(file, i, whole[i]);
    }
  }
  EXPECT_GT(accepted_headers, 0);
  EXPECT_NO_THROW(Dataset::open(path(), true));
}

TEST_F(DatasetTest, EveryTruncationAndExtensionIsRefusedWithoutVerify) {
  for (const fs::path& file : files()) {
    const std::string whole = test::read_file(file);
    for (size_t length = whole.size() + 3; length-- > 0;) {
      if (length < whole.size() && length % test::kDamageStep != 0) continue;
      fs::resize_file(file, length);
      if (length == whole.size() || (grows(file) && length > whole.size())) {
        EXPECT_NO_THROW(Dataset::open(path(), true));
        continue;
      }
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
                " bytes or more, got " + std::to_string(size - 5) + ": it is cut short");
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
  {
    Writer writer(path(), WriteMode::kOverwrite);
    writer.begin_episode();
    test::append(writer, "joint.position", std::vector<int64_t>(300000), std::vector<float>(600000));
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
  bytes[200] = 1;
  test::write_file(file, bytes);
  EXPECT_TRUE(
      contains(message_of<FileError>([&] { Dataset::open(path(), true); }), file + ": at byte 128: expected CRC-32 "));
  EXPECT_THROW(Dataset::open(path())->verify(), FileError);
}

TEST_F(DatasetTest, NumbersThatContradictEachOtherAreRefusedDespiteRightChecksums) {
  const std::string row_offsets_file = in_stream("row_offsets.npy");
  const std::string blob_offsets_file = in_camera("blob_offsets.npy");
  const std::string blobs_file = in_camera("values.npy");
  const std::string manifest = test::read_file(path() + "/manifest.json");
  for (const auto& [file, index, value, expected] :
       {std::tuple<std::string, size_t, int64_t, std::string>{
            row_offsets_file, 0, 1, row_offsets_file + ": at byte 128: expected an offset from 0 to 0, got 1"},
        {row_offsets_file, 1, -1, row_offsets_file + ": at byte 136: expected an offset from 0 to 6, got -1"},
        {row_offsets_file, 1, 7, row_offsets_file + ": at byte 136: expected an offset from 0 to 6, got 7"},
        {row_offsets_file, 2, 5, row_offsets_file + ": at byte 144: expected the number of rows, 6, got 5"},
        {row_offsets_file, 2, 2, row_offsets_file + ": at byte 144: expected an offset from 3 to 6, got 2"},
        {blob_offsets_file, 0, 1, blob_offsets_file + ": at byte 128: expected an offset from 0 to 0, got 1"},
        {blob_offsets_file, 2, 2, blob_offsets_file + ": at byte 144: expected an offset from 3 to 18, got 2"},
        {blob_offsets_file, 2, 19, blob_offsets_file + ": at byte 144: expected an offset from 3 to 18, got 19"},
        {blob_offsets_file, 6, -1, blob_offsets_file + ": at byte 136: expected an offset from 0 to -1, got 3"},
        {blob_offsets_file, 6, 17, blobs_file + ": at byte 146: expected 17 bytes of elements, got 18"},
        {blob_offsets_file, 6, 19, blobs_file + ": at byte 146: expected 19 bytes of elements, got 18"},
        {blob_offsets_file, 6, INT64_MAX,
         blobs_file + ": at byte 146: expected 9223372036854775807 bytes of elements, got 18"}}) {
    const std::string whole = test::read_file(file);
    forge(file, kHeader + 8 * index, &value, 8);
    EXPECT_EQ(message_of<FileError>([&] { Dataset::open(path()); }), expected);
    test::write_file(file, whole);
    test::write_file(path() + "/manifest.json", manifest);
  }
  test::write_byte(blob_offsets_file, kHeader + 9, 1);
  EXPECT_TRUE(contains(message_of<FileError>([&] { Dataset::open(path()); }), "blob_offsets.npy: at byte 128: "));
  test::write_byte(blob_offsets_file, kHeader + 9, 0);
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

TEST_F(DatasetTest, StreamsOfOneClockAreKnown) {
  const auto append = [](Writer& writer, const std::string& stream, const std::vector<int64_t>& times) {
    test::append(writer, stream, times, std::vector<float>(times.size()));
  };
  {
    Writer writer(path(), WriteMode::kOverwrite);
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
    Stream colliding = dataset->stream(other);
    colliding.clock_checksum = state.clock_checksum;
    EXPECT_FALSE(same_clock(state, colliding)) << other;
  }
}

}  // namespace
}  // namespace robocache
