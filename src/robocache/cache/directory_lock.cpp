#include "robocache/cache/directory_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>

#include "robocache/core/error.hpp"

namespace robocache::cache {
namespace {

namespace fs = std::filesystem;

// Each attempt after the first means that another writer came or went in the meantime.
constexpr int kTries = 100;

std::string lock_path(const std::string& directory) { return directory + "/" + kLockFile; }

// Returns nothing if the directory was renamed or removed in the meantime; the caller tries again.
std::optional<FileDescriptor> try_lock(const std::string& directory) {
  const std::string path = lock_path(directory);
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (file.get() < 0) {
    if (errno == ENOENT) return std::nullopt;
    refuse_errno(path, "making it");
  }
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) throw FileError(directory, ": another writer is at work on it");
    refuse_errno(path, "locking it");
  }
  if (!is_named(file, path)) return std::nullopt;
  return file;
}

}  // namespace

DirectoryLock DirectoryLock::acquire(const std::string& directory) {
  int times_without_lock = 0;
  for (int i = 0; i < kTries; ++i) {
    if (::mkdir(directory.c_str(), 0777) != 0) {
      if (errno != EEXIST) refuse_errno(directory, "creating the directory");
      std::error_code error;
      const bool is_empty = fs::is_empty(directory, error);
      if (!error && !is_empty && !fs::exists(lock_path(directory), error)) {
        // The lock file may have belonged to a writer that ended between the two checks. That does not happen three
        // times in a row.
        if (++times_without_lock == 3) {
          throw FileError(directory,
                          ": expected an unused name or the directory of an earlier writer, got something else");
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
    }
    if (std::optional<FileDescriptor> file = try_lock(directory)) return DirectoryLock(std::move(*file));
  }
  throw FileError(directory, ": other writers keep coming and going");
}

DirectoryLock DirectoryLock::acquire_finished(const std::string& directory) {
  std::error_code error;
  for (int i = 0; i < kTries; ++i) {
    if (std::optional<FileDescriptor> file = try_lock(directory)) return DirectoryLock(std::move(*file));
    if (!fs::is_directory(directory, error)) throw FileError(directory, ": it was removed in the meantime");
  }
  throw FileError(directory, ": other writers keep coming and going");
}

void remove_contents(const std::string& directory) {
  std::error_code error;
  fs::directory_iterator entries(directory, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    if (entries->path().filename() == kLockFile) continue;
    fs::remove_all(entries->path(), error);
    if (error) break;
  }
  if (error) throw FileError(directory, ": removing the files of an earlier writer: ", error.message());
}

void remove_directory(const std::string& directory) noexcept {
  try {
    remove_contents(directory);
  } catch (const std::exception&) {
    // The lock file stays, which marks the contents as a writer's. The next writer of this name removes them.
    return;
  }
  ::unlink(lock_path(directory).c_str());
  ::rmdir(directory.c_str());
}

}  // namespace robocache::cache
