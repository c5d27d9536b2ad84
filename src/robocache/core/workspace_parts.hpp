// Divides one piece of memory into the temporary arrays of a CUDA call.
#pragma once

#include <cstdint>

namespace robocache {

// Returns parts of a workspace, each aligned to 256 bytes like the workspace itself. If `memory` is null, it only
// counts bytes. A pointer whose part is not wanted stays unchanged.
class WorkspaceParts {
 public:
  explicit WorkspaceParts(void* memory) : memory_(static_cast<char*>(memory)) {}

  template <class T>
  void take(T*& part, int64_t count, bool wanted = true) {
    if (!wanted) return;
    if (memory_ != nullptr) part = reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
  }
  int64_t bytes() const { return bytes_; }

 private:
  char* memory_;
  int64_t bytes_ = 0;
};

}  // namespace robocache
