// What coming batches read of pinned host memory, brought to the device while those before them are made.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "robocache/batch/loader.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/core/error.hpp"

namespace robocache {

// Two places on the device, and a stream of its own that fills them in turns. One thread at a time.
class FramesAhead {
 public:
  static constexpr int64_t kPlaces = 2;

  FramesAhead() = default;
  FramesAhead(Device device, int64_t bytes) : stream_(device) {  // of a batch; throws DeviceError, OutOfMemory
    for (Place& place : places_) {
      place = {{}, DeviceBuffer(device, static_cast<size_t>(bytes)), CudaEvent(device), CudaEvent(device)};
    }
  }
  ~FramesAhead() {
    try {
      stream_.wait();
    } catch (const DeviceError&) {
      // Whoever uses the device next is told.
    }
  }
  FramesAhead(FramesAhead&&) = delete;
  FramesAhead& operator=(FramesAhead&&) = delete;

  // Where the batch at a position is or will be for what is queued on `stream` from now on; null: nowhere.
  const void* find(const BatchPosition& position, CudaStream stream) const {
    for (const Place& place : places_) {
      if (place.position != position) continue;
      place.brought.make_wait(stream);
      return place.memory.data();
    }
    return nullptr;
  }

  // What is queued on `stream` so far may read the place.
  void keep(const void* found, CudaStream stream) {
    for (Place& place : places_) {
      if (place.memory.data() == found) place.read.record(stream);
    }
  }

  // bring(memory, stream) queues on the stream what brings the batch at a position, unless it is there.
  template <class Bring>
  void bring(const BatchPosition& position, const Bring& bring) {
    for (const Place& place : places_) {
      if (place.position == position) return;
    }
    Place& place = places_[next_];
    next_ = (next_ + 1) % places_.size();
    place.position.reset();
    place.read.make_wait(stream_.get());
    bring(place.memory.data(), stream_.get());
    place.brought.record(stream_.get());
    place.position = position;
  }

 private:
  struct Place {
    std::optional<BatchPosition> position;
    DeviceBuffer memory;
    CudaEvent brought, read;
  };

  OwnedCudaStream stream_;
  std::array<Place, kPlaces> places_;
  size_t next_ = 0;
};

}  // namespace robocache
