// A dataset's rows where they are drawn from: a clock in memory, the values in the tier that was asked for. Immutable,
// and shared by all loaders on one dataset, device and tier.
//
// All that is copied is read with pread: a file that was cut short throws FileError, and does nothing to rows that are
// in memory already. What was opened goes on where another cache takes the name of its folder.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/cache/file.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/source/rows.hpp"
#include "robocache/source/shared_memory.hpp"
#include "robocache/source/tier.hpp"

namespace robocache {

// The clock that a stream and all those of its dataset with the same times and episodes are on: in host memory, and in
// the device's.
class ResidentClock {
 public:
  // Copies the clock unless it is there already; waits until it is. Streams whose times are equal give one clock.
  // Throws FileError, DeviceError, and OutOfMemory with both sizes.
  static std::shared_ptr<const ResidentClock> get(std::shared_ptr<const Dataset> dataset, int64_t stream,
                                                  Device device);

  // What a clock takes of the host's memory, and of a CUDA device's as much again.
  static int64_t bytes(const Dataset& dataset, int64_t stream);

  StreamClock on_host() const { return on_host_; }
  StreamClock on_device() const { return on_device_; }

 private:
  ResidentClock(std::shared_ptr<const Dataset> dataset, int64_t stream, Device device,
                std::shared_ptr<const ResidentClock> host);

  std::shared_ptr<const Dataset> dataset_;
  Device device_;
  mutable std::vector<int64_t> streams_;       // known to be on this clock
  std::shared_ptr<const ResidentClock> host_;  // of a CUDA device's: who keeps on_host()
  DeviceBuffer time_memory_;
  DeviceBuffer episode_memory_;
  StreamClock on_host_;
  StreamClock on_device_;
};

// A stream's values and its clock.
//
// - kDevice: values and clock in the device's memory. On the CPU a copy in memory, as kPinned is there: they are one.
// - kPinned: values in pinned host memory, clock in the device's. Where LOCAL_WORLD_SIZE says that several ranks run on
//   this
//   host, and for the CPU too, the first of them fills a copy in /dev/shm and all use it.
// - kMapped: values in their file, clock in host memory, whatever the device: rows for a loop of the host.
class ResidentStream {
 public:
  // Brings the stream there unless it is there already; waits until it is. Throws FileError, DeviceError, and
  // OutOfMemory that names the stream, what it needs and what is free: then a roomier tier may do.
  static std::shared_ptr<const ResidentStream> get(std::shared_ptr<const Dataset> dataset, int64_t stream,
                                                   Device device, Tier tier);

  // What the values take of the memory that their tier says; of kMapped nothing.
  static int64_t bytes(const Dataset& dataset, int64_t stream);

  Tier tier() const { return tier_; }  // on the CPU never kPinned
  const ResidentClock& clock() const { return *clock_; }

  // For a kernel on the device; of kMapped for a loop of the host: `file` is set, or, where another cache has taken the
  // dataset's name before this was made, `values` are those of the mapping.
  StreamRows rows() const { return rows_; }

  // What happened to a copy in host memory, for people to read: that ranks share it, or why they do not; else empty.
  const std::string& note() const { return note_; }

 private:
  ResidentStream(std::shared_ptr<const Dataset> dataset, int64_t stream, Device device, Tier tier);
  void copy_to_host(const StreamFile& file, size_t bytes);

  std::shared_ptr<const Dataset> dataset_;
  int64_t stream_;
  Device device_;
  Tier tier_;
  std::shared_ptr<const ResidentClock> clock_;
  DeviceBuffer device_memory_;
  PinnedBuffer pinned_memory_;
  SharedMemory shared_memory_;
  HostRegistration shared_registration_;
  cache::FileDescriptor file_;
  StreamRows rows_;
  std::string note_;
};

// Ranks on this host: LOCAL_WORLD_SIZE of the environment, 1 where it says nothing.
int64_t local_world_size();

// Of the copy that the ranks of this host share of a stream, what is in memory already: free memory has lost it, and a
// rank that uses it takes no more.
int64_t shared_bytes_present(const Dataset& dataset, int64_t stream);

}  // namespace robocache
