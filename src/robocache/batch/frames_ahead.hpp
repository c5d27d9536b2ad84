// Copies the frames' files of the next batch from pinned host memory to the device, while the current batch is made.
//
//   FramesAhead ahead(device, bytes);
//   ahead.copy(next, [&](void* memory, CudaStream side) { queue_copies(next, memory, side); });
//   if (const void* files = ahead.find(next, stream)) {
//     decode(files, stream);
//     ahead.keep(files, stream);
//   }
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "robocache/batch/draws.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/core/error.hpp"

namespace robocache {

// Owns two slots of device memory and a CUDA stream that fills them in turn. For one thread at a time.
class FramesAhead {
 public:
  static constexpr int64_t kSlots = 2;

  // `bytes` is the size of a batch's files. Throws DeviceError, OutOfMemory.
  FramesAhead(Device device, int64_t bytes) : stream_(device) {
    for (Slot& slot : slots_) {
      slot = {{}, DeviceBuffer(device, static_cast<size_t>(bytes)), CudaEvent(device), CudaEvent(device)};
    }
  }
  ~FramesAhead() {
    try {
      stream_.wait();
    } catch (const DeviceError&) {
      // The next use of the device reports it.
    }
  }
  FramesAhead(FramesAhead&&) = delete;
  FramesAhead& operator=(FramesAhead&&) = delete;

  // Returns the memory with the files of the batch at a position, or null. Work queued on `stream` afterwards may read it.
  const void* find(const BatchPosition& position, CudaStream stream) const {
    for (const Slot& slot : slots_) {
      if (slot.position != position) continue;
      slot.copied.make_wait(stream);
      return slot.memory.data();
    }
    return nullptr;
  }

  // Keeps the memory unchanged until the work that is now queued on `stream` is done.
  void keep(const void* files, CudaStream stream) {
    for (Slot& slot : slots_) {
      if (slot.memory.data() == files) slot.read.record(stream);
    }
  }

  // Calls queue(memory, stream) to queue the copies of the batch at a position, unless a slot has them already.
  template <class Queue>
  void copy(const BatchPosition& position, const Queue& queue) {
    for (const Slot& slot : slots_) {
      if (slot.position == position) return;
    }
    Slot& slot = slots_[next_];
    next_ = (next_ + 1) % slots_.size();
    slot.position.reset();
    slot.read.make_wait(stream_.get());
    queue(slot.memory.data(), stream_.get());
    slot.copied.record(stream_.get());
    slot.position = position;
  }

 private:
  struct Slot {
    std::optional<BatchPosition> position;
    DeviceBuffer memory;
    CudaEvent copied, read;
  };

  OwnedCudaStream stream_;
  std::array<Slot, kSlots> slots_;
  size_t next_ = 0;
};

}  // namespace robocache
