#include "robocache/source/read_rows.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "robocache/cache/file.hpp"

namespace robocache {
namespace {

// What the file is called now.
std::string path_of(int32_t descriptor) {
  std::error_code unknown;
  const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), unknown);
  return unknown ? "a stream's file" : path.string();
}

}  // namespace

void read_rows(const FileRows& file, int64_t begin, size_t bytes, void* to) {
  auto* at = static_cast<char*>(to);
  int64_t offset = file.offset + begin;
  for (size_t left = bytes; left > 0;) {
    const ssize_t got = ::pread(file.descriptor, at, left, offset);
    if (got < 0) {
      if (errno == EINTR) continue;
      const int code = errno;
      const std::string path = path_of(file.descriptor);
      errno = code;
      cache::refuse_errno(path, "reading it");
    }
    if (got == 0) {
      cache::refuse_bytes(path_of(file.descriptor), offset, std::to_string(left) + " more bytes",
                          "the end: it was cut short");
    }
    at += got;
    offset += got;
    left -= static_cast<size_t>(got);
  }
}

void expect_rows(const FileRows& file, int64_t begin, int64_t bytes) {
  (void)::posix_fadvise(file.descriptor, file.offset + begin, bytes, POSIX_FADV_WILLNEED);
}

}  // namespace robocache
