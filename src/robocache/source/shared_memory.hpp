// Memory that processes of one user on one host share by a name. Who comes first fills it; it goes with its last user,
// however those end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "robocache/cache/file.hpp"

namespace robocache {

// A file FOLDER/robocache-USER-NAME, mapped. It has that name only once it is filled whole; one that a killed process
// left half filled, "....partial", is thrown away by whoever comes next. A user holds a lock (flock) on it as long as
// it lives: what nobody uses any more, because all were killed, is removed by the next that shares anything.
class SharedMemory {
 public:
  SharedMemory() = default;

  // `bytes` bytes of that name: those of whoever was first, or filled here by `fill(memory)` while others wait. What it
  // throws passes on, and nothing is left. Where the folder is missing, too small or refuses, data() is null and
  // why_not() says so.
  SharedMemory(const std::string& name, size_t bytes, const std::function<void(void* memory)>& fill,
               const std::string& folder = "/dev/shm");
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  void* data() const { return data_; }  // [bytes], at the start of a page
  const std::string& why_not() const { return why_not_; }

  // What the memory of that name takes now, filled or being filled; 0 where there is none.
  static int64_t bytes_present(const std::string& name, size_t bytes, const std::string& folder = "/dev/shm");

 private:
  bool map();  // or why_not_

  cache::FileDescriptor file_;
  std::string path_;
  size_t bytes_ = 0;
  void* data_ = nullptr;
  int64_t process_ = 0;  // a forked child shares the lock of its parent, which is not the child's to give back
  std::string why_not_;
};

}  // namespace robocache
