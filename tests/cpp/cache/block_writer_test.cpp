#include "robocache/cache/block_writer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>

#include "robocache/cache/crc32.hpp"
#include "robocache/core/error.hpp"
#include "tests/cpp/cache/files.hpp"
#include "tests/cpp/temporary_cache.hpp"

namespace robocache::cache {
namespace {

// Returns noise with a period that divides no block's length.
std::string noise(size_t size, unsigned seed) {
  constexpr size_t kPeriod = 4099;
  std::mt19937 random(seed);
  std::string bytes(kPeriod, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  while (bytes.size() < size) bytes += bytes;
  bytes.resize(size);
  return bytes;
}

// Runs each test twice: the caller writes the blocks, or a thread writes them behind it.
class BlockWriterTest : public testing::TestWithParam<bool> {
 protected:
  WriteBehind* write_behind() { return GetParam() ? &write_behind_ : nullptr; }
  std::string path() const { return folder_.path() + "/file"; }

  // Expects the file and its record to hold `expected`. No checksum covers the first `header` bytes.
  void expect_file(const BlockWriter& writer, const std::string& expected, size_t header = 0) const {
    const FileRecord record = writer.finish();
    ASSERT_EQ(test::read_file(path()), expected);
    EXPECT_EQ(record.bytes, static_cast<int64_t>(expected.size()));
    const auto block = static_cast<size_t>(kBlockBytes);
    ASSERT_EQ(record.crc32.size(), (expected.size() + block - 1) / block);
    for (size_t i = 0; i < record.crc32.size(); ++i) {
      const size_t begin = std::max(i * block, header);
      EXPECT_EQ(record.crc32[i], crc32(&expected[begin], std::min((i + 1) * block, expected.size()) - begin));
    }
  }

  test::TemporaryFolder folder_;
  WriteBehind write_behind_;
};

INSTANTIATE_TEST_SUITE_P(, BlockWriterTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "Behind" : "AtOnce"; });

TEST_P(BlockWriterTest, PiecesOfAnySizeAddUp) {
  const auto block = static_cast<size_t>(kBlockBytes);
  for (const size_t piece : {size_t{0}, size_t{1000003}, block - 1, block, block + 1, 3 * block + 7}) {
    BlockWriter writer(path(), "", write_behind());
    std::string expected;
    for (unsigned i = 0; i < 4; ++i) {
      const std::string bytes = noise(piece, i);
      writer.append(bytes);
      expected += bytes;
      EXPECT_EQ(writer.size(), static_cast<int64_t>(expected.size()));
    }
    expect_file(writer, expected);
  }
}

TEST_P(BlockWriterTest, TruncateGoesBackAcrossBlocksAndGoesOn) {
  const std::string bytes = noise(3 * static_cast<size_t>(kBlockBytes) + 500, 1);
  for (const int64_t size : {int64_t{0}, int64_t{77}, kBlockBytes - 1, kBlockBytes, 2 * kBlockBytes + 5,
                             3 * kBlockBytes, 3 * kBlockBytes + 499}) {
    BlockWriter writer(path(), "", write_behind());
    writer.append(bytes);
    writer.truncate(size);
    EXPECT_EQ(writer.size(), size);
    const std::string more = noise(static_cast<size_t>(kBlockBytes) + 9, 2);
    writer.append(more);
    expect_file(writer, bytes.substr(0, static_cast<size_t>(size)) + more);
  }
}

TEST_P(BlockWriterTest, TheHeaderIsReplacedBeforeAndAfterTheFirstBlockIsWritten) {
  for (const size_t size : {size_t{0}, size_t{100}, static_cast<size_t>(kBlockBytes) + 100}) {
    const std::string bytes = noise(size, 3);
    BlockWriter writer(path(), "rows: 0", write_behind());
    writer.append(bytes);
    expect_file(writer, "rows: 0" + bytes, 7);
    expect_file(writer, "rows: 0" + bytes, 7);  // finish() may be repeated
    writer.replace_header("rows: 9");
    expect_file(writer, "rows: 9" + bytes, 7);
  }
}

TEST_P(BlockWriterTest, TruncateIntoTheFirstBlockKeepsTheHeaderOutOfItsChecksum) {
  const std::string bytes = noise(2 * static_cast<size_t>(kBlockBytes), 4);
  BlockWriter writer(path(), "header", write_behind());
  writer.append(bytes);
  writer.truncate(16);
  expect_file(writer, "header" + bytes.substr(0, 10), 6);
}

TEST_P(BlockWriterTest, ContinuesAFinishedFileAndKeepsItsContent) {
  for (const int64_t size : {int64_t{0}, int64_t{77}, kBlockBytes - 6, kBlockBytes, 2 * kBlockBytes + 5}) {
    const std::string bytes = noise(static_cast<size_t>(size), 5);
    const std::string appended = noise(static_cast<size_t>(kBlockBytes) + 9, 6);
    const std::string content = "rows: 1" + bytes;
    BlockWriter first(path(), "rows: 0", write_behind());
    first.append(bytes);
    first.replace_header("rows: 1");
    const FileRecord record = first.finish();
    test::write_file(path(), content + "what an append left that was killed");

    BlockWriter writer(path(), 7, record, write_behind());
    EXPECT_EQ(writer.size(), record.bytes);
    EXPECT_EQ(test::read_file(path()), content);
    writer.append(appended);
    writer.truncate(record.bytes);
    EXPECT_TRUE(test::read_file(path()).starts_with(content));
    expect_file(writer, content, 7);
    writer.append(appended);
    EXPECT_TRUE(test::read_file(path()).starts_with(content));
    writer.replace_header("rows: 2");
    expect_file(writer, "rows: 2" + bytes + appended, 7);
  }
}

TEST_P(BlockWriterTest, DoesNotContinueADamagedBlock) {
  BlockWriter first(path(), "header");
  first.append(noise(static_cast<size_t>(kBlockBytes) + 50, 7));
  FileRecord record = first.finish();
  test::write_byte(path(), 2, 'A');
  EXPECT_NO_THROW(BlockWriter(path(), 6, record));
  record.crc32.back() ^= 1;
  EXPECT_TRUE(test::contains(test::message_of<FileError>([&] { BlockWriter(path(), 6, record); }),
                             path() + ": at byte 1048576: expected CRC-32 "));
  record.bytes += 1;
  EXPECT_TRUE(test::contains(test::message_of<FileError>([&] { BlockWriter(path(), 6, record); }), "cut short"));
}

TEST_P(BlockWriterTest, ErrorsNameTheFileAndTheReason) {
  const std::string message =
      test::message_of<FileError>([&] { BlockWriter(folder_.path() + "/missing/file").finish(); });
  EXPECT_EQ(message, folder_.path() + "/missing/file: making it: No such file or directory");
}

// Later calls throw the error of a block again, until the block is truncated away or can be written.
TEST(WriteBehind, KeepsBlocksThatCannotBeWritten) {
  const test::TemporaryFolder folder;
  const auto block = static_cast<size_t>(kBlockBytes);
  const std::string bytes = noise(3 * block + 9, 8);
  for (const size_t kept_size : {size_t{11}, block, block + 5, 2 * block + 500, 3 * block + 9}) {
    WriteBehind write_behind;
    const std::string path = folder.path() + "/" + std::to_string(kept_size);
    BlockWriter writer(path, "", &write_behind);
    BlockWriter other(path + " behind it", "", &write_behind);
    const auto kept_bytes = [&] { return bytes.substr(0, std::min(kept_size, static_cast<size_t>(writer.size()))); };
    {
      const test::FileSizeLimit limit(block / 2);
      try {
        writer.append(bytes);
        other.append(bytes);
      } catch (const FileError&) {
        // An append may throw as soon as the first block has failed. What was appended before stays.
      }
      for (int tries = 0; tries < 3; ++tries) {
        EXPECT_EQ(test::message_of<FileError>([&] { write_behind.settle(); }),
                  path + ": writing at byte 524288: File too large");
        EXPECT_THROW(write_behind.check(), FileError);
        EXPECT_THROW(writer.finish(), FileError);
      }
      const std::string expected = kept_bytes();
      writer.truncate(std::ssize(expected));
      EXPECT_EQ(kept_bytes(), expected);
    }
    const std::string expected = kept_bytes() + "more";
    EXPECT_NO_THROW(write_behind.check());
    writer.append("more");
    writer.finish();
    other.finish();
    EXPECT_EQ(test::read_file(path), expected);
    EXPECT_EQ(test::read_file(path + " behind it"), bytes.substr(0, static_cast<size_t>(other.size())));
  }
}

TEST(WriteBehind, HoldsAtMostItsLimit) {
  const test::TemporaryFolder folder;
  const std::string bytes = noise(static_cast<size_t>(kBlockBytes), 9);
  WriteBehind write_behind;
  BlockWriter writer(folder.path() + "/file", "", &write_behind);
  {
    const test::FileSizeLimit limit(10);
    EXPECT_THROW(
        {
          for (int i = 0; i < 1000; ++i) writer.append(bytes);
        },
        FileError);
    EXPECT_LE(writer.size(), 100 * kBlockBytes);
    writer.forget_waiting();
    EXPECT_NO_THROW(write_behind.settle());
  }
}

}  // namespace
}  // namespace robocache::cache
