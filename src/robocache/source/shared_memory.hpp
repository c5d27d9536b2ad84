// Memory that processes of one user on one host share by a name. Who comes first fills it; it goes with its last user,
// however those end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "robocache/cache/file.hpp"

namespace robocache {

// A file FOLDER/robocache-USER-NAME, mapped. It has that name only once it is filled whole: until then it is
// "....partial", and one left by a process that was killed is thrown away by the next that comes. Users hold a lock
// (flock) as long as they live, so that what nobody uses any more is known and removed.
class SharedMemory {
 public:
  SharedMemory() = default;

  // `bytes` bytes of that name: those of whoever filled them, or filled here by `fill(memory)` while others wait. What
  // it throws passes on, and nothing is left. Where the folder is missing, too small, or of a file system that cannot:
  // throws OutOfMemory that says so.
  SharedMemory(const std::string& name, size_t bytes, const std::function<void(void* memory)>& fill,
               const std::string& folder = "/dev/shm");
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  // What the memory of that name takes now, filled or being filled; 0 where there is none.
  static int64_t bytes_present(const std::string& name, const std::string& folder = "/dev/shm");

 private:
  cache::FileDescriptor file_;
  std::string path_;
  size_t bytes_ = 0;
  void* data_ = nullptr;
};

}  // namespace robocache
