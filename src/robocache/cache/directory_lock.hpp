// A lock on a directory for writing. The kernel releases it when the process dies.
#pragma once

#include <string>
#include <utility>

#include "robocache/cache/file.hpp"

namespace robocache::cache {

// A directory that is being written has a file of this name, locked (flock) as long as its writer lives.
inline constexpr const char* kLockFile = "writer.lock";

class DirectoryLock {
 public:
  // Creates `directory` if it is missing. Throws FileError if a living writer holds it, or if it has files but no lock
  // file, because then it is not a writer's.
  static DirectoryLock acquire(const std::string& directory);

  // Locks a finished cache, which has no lock file, by creating one.
  static DirectoryLock acquire_finished(const std::string& directory);

 private:
  explicit DirectoryLock(FileDescriptor file) : file_(std::move(file)) {}

  FileDescriptor file_;
};

// Removes everything in the directory except the lock file. Throws FileError.
void remove_contents(const std::string& directory);

// Removes the directory, its lock file last. Ignores errors: what cannot be removed stays.
void remove_directory(const std::string& directory) noexcept;

}  // namespace robocache::cache
