// The right to write into a directory, which its holder loses at the latest when it dies.
#pragma once

#include <string>
#include <utility>

#include "robocache/cache/file.hpp"

namespace robocache::cache {

// A file of this name lies in a directory that is being written and is locked (flock) as long as its writer lives.
inline constexpr const char* kLockFile = "writer.lock";

class DirectoryLock {
 public:
  // Makes `directory` where it is missing. Throws FileError where a living writer holds it, and where it holds files but
  // no lock file: then no writer left it.
  static DirectoryLock acquire(const std::string& directory);

  // For a finished cache, which has no lock file: makes one.
  static DirectoryLock acquire_finished(const std::string& directory);

 private:
  explicit DirectoryLock(FileDescriptor file) : file_(std::move(file)) {}

  FileDescriptor file_;
};

// Removes all that is in the directory but the lock file. Throws FileError.
void remove_contents(const std::string& directory);

// Removes the directory, its lock file last. Best effort: what cannot be removed stays.
void remove_directory(const std::string& directory) noexcept;

}  // namespace robocache::cache
