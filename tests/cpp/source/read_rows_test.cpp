#include "robocache/source/read_rows.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "robocache/cache/file.hpp"
#include "robocache/core/error.hpp"
#include "tests/cpp/cache/files.hpp"
#include "tests/cpp/expect_refused.hpp"
#include "tests/cpp/temporary_cache.hpp"

namespace robocache::test {
namespace {

TEST(ReadRows, CountsBytesFromRowZero) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/rows";
  write_file(path, "header0123456789");
  const cache::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string actual(4, ' ');
  read_rows({file.get(), 6}, 3, 4, actual.data());
  EXPECT_EQ(actual, "3456");
  read_rows({file.get(), 6}, 100, 0, nullptr);  // zero bytes need no memory
  expect_refused<FileError>([&] { read_rows({file.get(), 6}, 8, 4, actual.data()); },
                            path + ": at byte 16: expected 2 more bytes, got the end: it was cut short");
  std::filesystem::resize_file(path, 8);
  expect_refused<FileError>([&] { read_rows({file.get(), 6}, 3, 4, actual.data()); },
                            path + ": at byte 9: expected 4 more bytes, got the end: it was cut short");
  const cache::FileDescriptor folder_file(::open(folder.path().c_str(), O_RDONLY | O_CLOEXEC));
  expect_refused<FileError>([&] { read_rows({folder_file.get(), 0}, 0, 4, actual.data()); },
                            folder.path() + ": reading it: ");
}

TEST(ReadRows, ReadsWhatThePageCacheHasAndLacks) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/rows";
  std::string written(1 << 20, ' ');
  for (size_t i = 0; i < written.size(); ++i) written[i] = static_cast<char>(i * 7 + i / 4096);
  write_file(path, written);
  const cache::FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::fsync(file.get()), 0);
  const auto size = static_cast<off_t>(written.size());
  for (const off_t cached_bytes : {size, size / 2, off_t{0}}) {
    ::posix_fadvise(file.get(), cached_bytes, size - cached_bytes, POSIX_FADV_DONTNEED);
    announce_rows({file.get(), 0}, size / 4, size / 4);
    std::string actual(written.size(), ' ');
    read_rows({file.get(), 0}, 0, actual.size(), actual.data());
    EXPECT_TRUE(actual == written) << "with " << cached_bytes << " bytes in the page cache";
  }
}

}  // namespace
}  // namespace robocache::test
