// A copy in host memory that a device's kernels read across the link. If possible, all ranks of this host share one.
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
  // Memory of `bytes` bytes that `fill(memory)` writes; for the CPU plain memory. Ranks of this host (local_world_size()) with the
  // same `identity` share one copy, in /dev/shm, and the first rank fills it. Without an identity it is not shared. Throws
  // OutOfMemory, DeviceError, and what `fill` throws.
  HostCopy(Device device, const std::string& identity, int64_t bytes, const std::function<void(void* memory)>& fill);

  // The bytes of it that ranks of this host share already.
  static int64_t bytes_present(const std::string& identity, int64_t bytes);

  void* data() const { return shared_.data() != nullptr ? shared_.data() : pinned_.data(); }  // for the host
  void* on_device() const { return on_device_; }                                              // for a kernel

  bool is_shared() const { return shared_.data() != nullptr; }

  // For people: that the ranks share it, or why they do not; else empty.
  const std::string& note() const { return note_; }

 private:
  PinnedBuffer pinned_;
  SharedMemory shared_;
  HostRegistration registration_;
  void* on_device_ = nullptr;
  std::string note_;
};

// The number of ranks on this host: LOCAL_WORLD_SIZE of the environment, as torchrun sets it, or 1.
int64_t local_world_size();

}  // namespace robocache
