// A lock on a directory, for writing. The kernel releases it when the process ends.
#pragma once

#include <string>
#include <utility>

#include "robocache/cache/file.hpp"

namespace robocache::cache {

// The name of a file in every directory that is being written. It is locked (flock) while the writer lives.
inline constexpr const char* kLockFile = "writer.lock";

class DirectoryLock {
 public:
  // Creates `directory` if it is missing. Throws FileError if a living writer holds it. Throws FileError if it has
  // files but no lock file, because then no writer created it.
  static DirectoryLock acquire(const std::string& directory);

  // Locks a finished cache by creating the lock file, which a finished cache does not have.
  static DirectoryLock acquire_finished(const std::string& directory);

 private:
  explicit DirectoryLock(FileDescriptor file) : file_(std::move(file)) {}

  FileDescriptor file_;
};

// Removes everything in the directory except the lock file. Throws FileError.
void remove_contents(const std::string& directory);

// Removes the directory, the lock file last. Ignores errors and leaves what it cannot remove.
void remove_directory(const std::string& directory) noexcept;

}  // namespace robocache::cache
