// A dataset's rows where they are drawn from: a clock in memory, the values in the tier that was asked for. Immutable,
// and shared by all loaders on one dataset, device and tier.
//
// What is copied is read with pread: a file that was cut short throws FileError, and does nothing to rows that are in
// memory already. What was opened goes on where another cache takes the name of its folder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/cache/file.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/source/host_copy.hpp"
#include "robocache/source/rows.hpp"
#include "robocache/source/tier.hpp"

namespace robocache {

// The clock that a stream and all those of its dataset with the same times and episodes are on: in host memory, and in
// the device's.
class ResidentClock {
 public:
  // Copies the clock unless it is there already; waits until it is. Streams whose times are equal give one clock.
  // Throws FileError, DeviceError, and OutOfMemory that names the stream, what its clock needs and what is free.
  static std::shared_ptr<const ResidentClock> get(std::shared_ptr<const Dataset> dataset, int64_t stream,
                                                  Device device);

  // What it takes of the host's memory, and of a CUDA device's as much again.
  static int64_t bytes(const Dataset& dataset, int64_t stream);

  // That, or 0 where no loader of this process has brought it to the device's memory (the CPU: the host's).
  static int64_t bytes_present(const Dataset& dataset, int64_t stream, Device device);

  StreamClock on_host() const { return host_ == nullptr ? on_device_ : host_->on_device_; }
  StreamClock on_device() const { return on_device_; }

 private:
  ResidentClock(std::shared_ptr<const Dataset> dataset, int64_t stream, Device device,
                std::shared_ptr<const ResidentClock> host);
  bool is(const Dataset& dataset, int64_t stream, Device device) const;

  std::shared_ptr<const Dataset> dataset_;
  Device device_;
  mutable std::vector<int64_t> streams_;       // known to be on this clock
  std::shared_ptr<const ResidentClock> host_;  // of a clock on a CUDA device
  DeviceBuffer time_memory_;
  DeviceBuffer episode_memory_;
  StreamClock on_device_;
};

// A stream's values and its clock.
class ResidentStream {
 public:
  // Brings the stream to the tier unless it is there already; waits until it is.
  // - kDevice: values and clock in the device's memory.
  // - kPinned: values in pinned host memory, the clock in the device's. On the CPU the same as kDevice: a copy in
  //   memory.
  // - kMapped: values in their file and the clock in host memory, whatever the device, for a loop of the host.
  // A copy in host memory is one for all ranks of this host (local_world_size()), in /dev/shm. Where that cannot be,
  // each rank has its own, if there is memory for one each.
  // With `part` a copy holds these rows alone, at their places: rows() may be read there and nowhere else. It is nobody
  // else's then.
  // Throws FileError, DeviceError, and OutOfMemory that names the stream, what it needs and what is free: a roomier
  // tier may do.
  static std::shared_ptr<const ResidentStream> get(std::shared_ptr<const Dataset> dataset, int64_t stream,
                                                   Device device, Tier tier, std::optional<RowSpan> part = {});

  // What the values take, of the memory that the tier says; of kMapped only the page cache's.
  static int64_t bytes(const Dataset& dataset, int64_t stream, std::optional<RowSpan> part = {});

  // What is in memory already of what get() would bring, because it lives in this process or ranks of this host share
  // it: free memory has lost that, and get() takes no more for it.
  static int64_t bytes_present(const Dataset& dataset, int64_t stream, Device device, Tier tier,
                               std::optional<RowSpan> part = {});

  Tier tier() const { return tier_; }  // never kPinned on the CPU
  const ResidentClock& clock() const { return *clock_; }

  // For a kernel on the device; of kMapped for the host: with `file`, or, where the cache was replaced before this was
  // made, with values in the mapping, which nobody can cut short any more. Of a camera, whose rows may be blobs of unequal
  // size, `values` and `file` are of its bytes; bytes_of() says which are a row's.
  StreamRows rows() const { return rows_; }

  // The place of a row's bytes among the stream's.
  RowSpan bytes_of(int64_t row) const {
    if (blob_offsets_.empty()) return {row * row_bytes_, (row + 1) * row_bytes_};
    const auto at = static_cast<size_t>(row - first_blob_);
    return {blob_offsets_[at], blob_offsets_[at + 1]};
  }

  // Of the rows that are here.
  int64_t largest_row_bytes() const {
    if (blob_offsets_.empty()) return row_bytes_;
    int64_t largest = 0;
    for (size_t i = 1; i < blob_offsets_.size(); ++i) {
      largest = std::max(largest, blob_offsets_[i] - blob_offsets_[i - 1]);
    }
    return largest;
  }

  // For people, of a copy in host memory: that the ranks share it, or why they do not; else empty.
  const std::string& note() const { return host_memory_.note(); }

 private:
  ResidentStream(std::shared_ptr<const Dataset> dataset, int64_t stream, Device device, Tier tier,
                 std::optional<RowSpan> part);
  bool is(const Dataset& dataset, int64_t stream, Device device, Tier tier, std::optional<RowSpan> part) const;

  std::shared_ptr<const Dataset> dataset_;
  int64_t stream_;
  Device device_;
  Tier tier_;
  std::optional<RowSpan> part_;
  std::shared_ptr<const ResidentClock> clock_;
  DeviceBuffer device_memory_;
  HostCopy host_memory_;
  cache::FileDescriptor file_;
  StreamRows rows_;
  int64_t row_bytes_;
  std::vector<int64_t> blob_offsets_;  // of the rows that are here, where they are blobs
  int64_t first_blob_ = 0;             // the first of those rows
};

}  // namespace robocache
