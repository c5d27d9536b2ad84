// Any read or write may transfer less than requested, be interrupted, or find a full or a broken disk.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/core/error.hpp"
#include "tests/cpp/faults/small_cache.hpp"
#include "tests/cpp/temporary_cache.hpp"

namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
std::atomic<int64_t> writes_left{kNever};  // calls until the disk is full
std::atomic<int64_t> reads_left{kNever};   // calls until the disk is broken
std::atomic<bool> is_slow{false};
std::atomic<int64_t> calls{0};

// Returns how many of the requested bytes a call transfers; -1 if it fails, with errno set.
ssize_t transferred(size_t requested, std::atomic<int64_t>& calls_left, int error_code) {
  if (calls_left.load() != kNever && calls_left.fetch_sub(1) <= 0) {
    errno = error_code;
    return -1;
  }
  if (!is_slow) return static_cast<ssize_t>(requested);
  const int64_t call = calls++;
  if (call % 3 == 0) {
    errno = EINTR;
    return -1;
  }
  return std::min(static_cast<ssize_t>(requested), static_cast<ssize_t>(1 + call % 97));
}

}  // namespace

// The library calls these instead of libc's.
extern "C" ssize_t pread(int file, void* memory, size_t bytes, off_t offset) {
  const ssize_t transfer = transferred(bytes, reads_left, EIO);
  return transfer < 0 ? transfer : ::syscall(SYS_pread64, file, memory, transfer, offset);
}

extern "C" ssize_t preadv2(int file, const iovec* parts, int /*count: 1*/, off_t offset, int /*flags*/) {
  return pread(file, parts->iov_base, parts->iov_len, offset);
}

extern "C" ssize_t pwrite(int file, const void* memory, size_t bytes, off_t offset) {
  const ssize_t transfer = transferred(bytes, writes_left, ENOSPC);
  return transfer < 0 ? transfer : ::syscall(SYS_pwrite64, file, memory, transfer, offset);
}

namespace robocache::test {
namespace {

TEST(InputOutput, ShortReadsAndWritesGiveTheSameResult) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/cache";
  write_small_cache(path, WriteMode::kNew);
  const auto expected = contents(path);
  const std::vector<std::byte> batches = batches_of(Dataset::open(path));
  is_slow = true;
  write_small_cache(path, WriteMode::kOverwrite);
  const std::vector<std::byte> batches_in_pieces = batches_of(Dataset::open(path, true));
  is_slow = false;
  EXPECT_GT(calls, 100);
  EXPECT_EQ(contents(path), expected);
  EXPECT_EQ(batches_in_pieces, batches);
}

TEST(InputOutput, AFullDiskAtAnyWriteKeepsTheOldCache) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/cache";
  write_small_cache(path, WriteMode::kNew, 1000);
  const auto old_contents = contents(path);
  int64_t failures = 0;
  for (bool is_full = true; is_full;) {
    writes_left = failures;
    is_full = false;
    try {
      write_small_cache(path, WriteMode::kOverwrite);
    } catch (const FileError& error) {
      is_full = true;
      ++failures;
      EXPECT_NE(std::string(error.what()).find("No space left on device"), std::string::npos) << error.what();
    }
    writes_left = kNever;
    ASSERT_EQ(contents(path) == old_contents, is_full) << "after " << failures << " failures";
  }
  EXPECT_GT(failures, 2);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(InputOutput, ABrokenDiskAtAnyReadIsAnErrorThatNamesTheFile) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/cache";
  write_small_cache(path, WriteMode::kNew);
  const std::vector<std::byte> expected = batches_of(Dataset::open(path));
  int64_t failures = 0;
  for (bool is_broken = true; is_broken;) {
    reads_left = failures;
    is_broken = false;
    try {
      EXPECT_EQ(batches_of(Dataset::open(path)), expected);
    } catch (const FileError& error) {
      is_broken = true;
      ++failures;
      EXPECT_TRUE(std::string(error.what()).starts_with(path + "/streams/x/")) << error.what();
      EXPECT_NE(std::string(error.what()).find("Input/output error"), std::string::npos) << error.what();
    }
    reads_left = kNever;
  }
  EXPECT_GE(failures, 2);
  EXPECT_EQ(batches_of(Dataset::open(path)), expected);
}

}  // namespace
}  // namespace robocache::test
