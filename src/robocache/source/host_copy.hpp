// A copy in host memory that a device's kernels read across the link. If possible, all ranks of a host share one copy.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "robocache/core/backend.hpp"
#include "robocache/source/shared_memory.hpp"

namespace robocache {

class HostCopy {
 public:
  HostCopy() = default;
  // Allocates `bytes` bytes, which `fill(memory)` writes; pinned for a CUDA device, plain for the CPU. Ranks of this
  // host (local_world_size()) with the same `identity` share one copy, in /dev/shm, and the first rank fills it. With
  // an empty identity the copy is not shared. Throws OutOfMemory, DeviceError, and whatever `fill` throws.
  HostCopy(Device device, const std::string& identity, int64_t bytes, const std::function<void(void* memory)>& fill);

  // Returns how many of the bytes exist already in a copy that ranks of this host share.
  static int64_t bytes_present(const std::string& identity, int64_t bytes);

  void* data() const { return shared_.data() != nullptr ? shared_.data() : pinned_.data(); }  // for the host
  void* on_device() const { return on_device_; }                                              // for a kernel

  bool is_shared() const { return shared_.data() != nullptr; }

  // A note for people: that the ranks share the copy, or why not; else empty.
  const std::string& note() const { return note_; }

 private:
  PinnedBuffer pinned_;
  SharedMemory shared_;
  HostRegistration registration_;
  void* on_device_ = nullptr;
  std::string note_;
};

// Returns the number of ranks on this host: LOCAL_WORLD_SIZE of the environment, as torchrun sets it, or 1.
int64_t local_world_size();

}  // namespace robocache
