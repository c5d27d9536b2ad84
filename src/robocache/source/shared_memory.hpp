// Memory that processes of one user on one host share by a name. The first process fills it. The last process removes
// it; if that process is killed, the next one that shares any memory does.
//
//   const SharedMemory copy(name, bytes, [&](void* memory) { read(file, memory); });
//   if (copy.data() == nullptr) warn(copy.why_not());
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "robocache/cache/file.hpp"

namespace robocache {

// A mapped file FOLDER/robocache-UID-NAME-BYTES. The file has that name only once it is filled; a killed process may
// leave a file "....partial", which the next process removes. A process that maps the file holds a lock (flock) on it.
// If all these processes were killed, the next one that shares any memory removes the file.
class SharedMemory {
 public:
  SharedMemory() = default;

  // Maps the `bytes` bytes of that name. If no process has them, `fill(memory)` writes them while other processes wait;
  // an exception of `fill` is passed on, and no file stays. If the folder is missing, too small or not writable, data()
  // is null and why_not() gives the reason.
  SharedMemory(const std::string& name, size_t bytes, const std::function<void(void* memory)>& fill,
               const std::string& folder = "/dev/shm");
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  void* data() const { return data_; }  // [bytes], at the start of a page
  const std::string& why_not() const { return why_not_; }

  // Returns the bytes that the memory of that name takes now, filled or not; 0 if there is none.
  static int64_t bytes_present(const std::string& name, size_t bytes, const std::string& folder = "/dev/shm");

 private:
  bool map();  // returns false if why_not_ has the reason

  cache::FileDescriptor file_;
  std::string path_;
  size_t bytes_ = 0;
  void* data_ = nullptr;
  int64_t process_ = 0;  // the process that holds the lock: a forked child must not release its parent's
  std::string why_not_;
};

}  // namespace robocache
