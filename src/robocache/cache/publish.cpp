#include "robocache/cache/publish.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "robocache/cache/directory_lock.hpp"
#include "robocache/cache/file.hpp"
#include "robocache/cache/manifest.hpp"
#include "robocache/core/error.hpp"

namespace robocache::cache {

namespace fs = std::filesystem;

std::string absolute_path(const std::string& path) {
  if (path.empty()) throw ArgumentError("path: expected the name of a directory, got ''");
  std::error_code error;
  const fs::path real = fs::weakly_canonical(fs::absolute(path, error), error);
  if (error) throw FileError(path, ": ", error.message());
  return real.has_filename() ? real.string() : real.parent_path().string();
}

bool is_cache(const std::string& path) {
  // Opening a FIFO of that name could otherwise block forever.
  const FileDescriptor file(::open((path + "/" + kManifestFile).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string start(32, '\0');
  return ::read(file.get(), start.data(), start.size()) > 0 &&
         start.find("\"format\": \"robocache\"") != std::string::npos;
}

void check_outside_caches(const std::string& path) {
  for (fs::path inner = path, outer = inner.parent_path(); outer != inner; inner = outer, outer = inner.parent_path()) {
    if (is_cache(outer.string())) {
      throw FileError(path, ": it is inside a cache, ", outer.string(), "; expected a folder outside");
    }
  }
}

void check_target(const std::string& path, bool overwrite) {
  check_outside_caches(path);
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return;
  if (!overwrite) throw FileError(path, ": it exists already; overwrite=True (--overwrite) replaces a cache");
  if (!is_cache(path)) throw FileError(path, ": expected a cache to overwrite, got something else; it stays as it is");
}

void publish(const std::string& home, const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    if (::renameat2(AT_FDCWD, home.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) != 0) {
      if (errno != EINVAL && errno != ENOSYS) refuse_errno(path, "renaming the finished cache");
      if (::rename(home.c_str(), path.c_str()) != 0) refuse_errno(path, "renaming the finished cache");
    }
  } else {
    // The old cache must be locked before it gets the name that other writers lock.
    const auto old_lock = DirectoryLock::acquire_finished(path);
    std::string old = home;
    if (::renameat2(AT_FDCWD, home.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) != 0) {
      if (errno != EINVAL && errno != ENOSYS) refuse_errno(path, "replacing the old cache");
      // Some file systems, such as NFS, cannot exchange two names. There the name does not exist for a moment.
      old = path + ".replaced";
      if (::rename(path.c_str(), old.c_str()) != 0) refuse_errno(old, "renaming the old cache");
      if (::rename(home.c_str(), path.c_str()) != 0) {
        const int reason = errno;
        ::rename(old.c_str(), path.c_str());
        errno = reason;
        refuse_errno(path, "replacing the old cache");
      }
    }
    remove_directory(old);
  }
}

}  // namespace robocache::cache
