#include "robocache/source/host_copy.hpp"

#include <algorithm>
#include <cstdlib>

#include "robocache/core/error.hpp"
#include "robocache/core/host_memory.hpp"

namespace robocache {

HostCopy::HostCopy(Device device, const std::string& identity, int64_t bytes,
                   const std::function<void(void* memory)>& fill) {
  const int64_t ranks = local_world_size();
  // In a full control group no allocation fails: the system kills the process instead.
  if (bytes - bytes_present(identity, bytes) > host_memory().free_bytes) throw OutOfMemory("more than is free");
  if (ranks > 1 && bytes > 0 && !identity.empty()) {
    shared_ = SharedMemory(identity, static_cast<size_t>(bytes), fill);
    std::string why_not = shared_.why_not();
    if (shared_.data() != nullptr) {
      try {
        registration_ = HostRegistration(device, shared_.data(), static_cast<size_t>(bytes));
        on_device_ = registration_.on_device();
        note_ = "one copy for all ranks of this host";
        return;
      } catch (const DeviceError& refusal) {  // in some containers shared memory cannot be pinned
        why_not = refusal.what();
        shared_ = {};
      }
    }
    note_ = "each rank has a copy of its own: " + why_not;
    // The other ranks will allocate as much.
    if (bytes > host_memory().free_bytes / ranks) throw OutOfMemory(note_);
  }
  pinned_ = PinnedBuffer(device, static_cast<size_t>(bytes));
  fill(pinned_.data());
  on_device_ = pinned_.on_device();
}

int64_t HostCopy::bytes_present(const std::string& identity, int64_t bytes) {
  if (local_world_size() == 1 || bytes == 0 || identity.empty()) return 0;
  return SharedMemory::bytes_present(identity, static_cast<size_t>(bytes));
}

int64_t local_world_size() {
  const char* text = std::getenv("LOCAL_WORLD_SIZE");
  return text == nullptr ? 1 : std::max(1, std::atoi(text));
}

}  // namespace robocache
