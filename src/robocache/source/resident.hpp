// A dataset's rows where a kernel can read them: the mapped files for the CPU, a copy in device memory for CUDA. Immutable,
// and shared by all loaders on one dataset and device.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/source/rows.hpp"

namespace robocache {

// The clock that a stream and all those of its dataset with the same times and episodes are on.
class ResidentClock {
 public:
  // Copies the clock to the device unless it is there already; waits until it is. Streams whose times are equal give one
  // clock. Throws DeviceError, also where the memory does not suffice.
  static std::shared_ptr<const ResidentClock> get(std::shared_ptr<const Dataset> dataset, int64_t stream,
                                                  Device device);

  StreamClock on_host() const { return {time_ns_, episodes_.data()}; }
  StreamClock on_device() const { return on_device_; }

 private:
  ResidentClock(std::shared_ptr<const Dataset> dataset, int64_t stream, Device device);

  std::shared_ptr<const Dataset> dataset_;  // whose mapped files are on_host()
  Device device_;
  mutable std::vector<int64_t> streams_;  // known to be on this clock
  const int64_t* time_ns_;
  std::vector<EpisodeRows> episodes_;
  DeviceBuffer time_memory_;
  DeviceBuffer episode_memory_;
  StreamClock on_device_;
};

// A stream's values and its clock.
class ResidentStream {
 public:
  // As ResidentClock::get.
  static std::shared_ptr<const ResidentStream> get(std::shared_ptr<const Dataset> dataset, int64_t stream,
                                                   Device device);

  const ResidentClock& clock() const { return *clock_; }
  StreamRows rows() const { return rows_; }  // on the device

 private:
  ResidentStream(std::shared_ptr<const Dataset> dataset, int64_t stream, Device device);

  std::shared_ptr<const Dataset> dataset_;
  int64_t stream_;
  Device device_;
  std::shared_ptr<const ResidentClock> clock_;
  DeviceBuffer value_memory_;
  StreamRows rows_;
};

}  // namespace robocache
