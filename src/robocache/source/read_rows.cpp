#include "robocache/source/read_rows.hpp"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "robocache/cache/file.hpp"

namespace robocache {
namespace {

// Returns the file's present path.
std::string path_of(int32_t descriptor) {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), error);
  return error ? "a stream's file" : path.string();
}

// The number of reads that are still announced. A read that has to wait for the disk sets it to kAnnouncements again.
// It reaches 0 when the page cache holds all the data; an announcement would then only cost time, a third of the read's
// own.
constexpr int32_t kAnnouncements = 1 << 14;
std::atomic<int32_t> announcements_left{kAnnouncements};

}  // namespace

void read_rows(const FileRows& file, int64_t begin, size_t bytes, void* to) {
  auto* destination = static_cast<char*>(to);
  int64_t offset = file.offset + begin;
  bool is_cached = true;  // until a read shows that it is not
  for (size_t remaining = bytes; remaining > 0;) {
    ssize_t read_bytes = 0;
    if (is_cached) {
      const iovec rest{destination, remaining};
      read_bytes = ::preadv2(file.descriptor, &rest, 1, offset, RWF_NOWAIT);
      is_cached = read_bytes == static_cast<ssize_t>(remaining);
      if (!is_cached) announcements_left.store(kAnnouncements, std::memory_order_relaxed);
      if (read_bytes <= 0) continue;  // also at the end of the file: pread then reports it
    } else {
      read_bytes = ::pread(file.descriptor, destination, remaining, offset);
    }
    if (read_bytes < 0) {
      if (errno == EINTR) continue;
      const int code = errno;
      const std::string path = path_of(file.descriptor);
      errno = code;
      cache::refuse_errno(path, "reading it");
    }
    if (read_bytes == 0) {
      cache::refuse_bytes(path_of(file.descriptor), offset, std::to_string(remaining) + " more bytes",
                          "the end: it was cut short");
    }
    destination += read_bytes;
    offset += read_bytes;
    remaining -= static_cast<size_t>(read_bytes);
  }
}

void announce_rows(const FileRows& file, int64_t begin, int64_t bytes) {
  if (announcements_left.load(std::memory_order_relaxed) <= 0) return;
  announcements_left.fetch_sub(1, std::memory_order_relaxed);
  (void)::posix_fadvise(file.descriptor, file.offset + begin, bytes, POSIX_FADV_WILLNEED);
}

}  // namespace robocache
