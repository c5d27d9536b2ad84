// A stream of a dataset where batches read it: its clock in memory, and its values in a tier. Both are immutable, and all loaders
// of the process on one dataset, device and tier share them.
//
//   const auto stream = ResidentStream::get(dataset, 2, device, Tier::kPinned);
//   const StreamRows rows = stream->rows();
//
// Copies are read with pread: a file that was cut short throws FileError, and does no harm to rows that are in memory. Open files
// stay open when another cache takes the name of their folder.
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

// The clock of a stream and of all streams of its dataset with the same times and episodes, in host memory and in the device's.
class ResidentClock {
 public:
  // Copies the clock unless it is in memory, and waits for the copy. Streams with equal times have one clock.
  // Throws FileError, DeviceError, and OutOfMemory that names the stream, the bytes of its clock and the free bytes.
  static std::shared_ptr<const ResidentClock> get(std::shared_ptr<const Dataset> dataset, int64_t stream,
                                                  Device device);

  // The bytes that it takes of the host's memory, and again of a CUDA device's.
  static int64_t bytes(const Dataset& dataset, int64_t stream);

  // The same, or 0 if no loader of this process has it in the device's memory (for the CPU, the host's).
  static int64_t bytes_present(const Dataset& dataset, int64_t stream, Device device);

  StreamClock on_host() const { return host_ == nullptr ? on_device_ : host_->on_device_; }
  StreamClock on_device() const { return on_device_; }

 private:
  ResidentClock(std::shared_ptr<const Dataset> dataset, int64_t stream, Device device,
                std::shared_ptr<const ResidentClock> host);
  bool is(const Dataset& dataset, int64_t stream, Device device) const;

  std::shared_ptr<const Dataset> dataset_;
  Device device_;
  mutable std::vector<int64_t> streams_;       // streams known to be on this clock
  std::shared_ptr<const ResidentClock> host_;  // the clock in host memory, for one on a CUDA device
  DeviceBuffer time_memory_;
  DeviceBuffer episode_memory_;
  StreamClock on_device_;
};

// A stream's values and its clock.
class ResidentStream {
 public:
  // Loads the stream into the tier unless it is there, and waits until it is.
  // - kDevice: values and clock in the device's memory.
  // - kPinned: values in pinned host memory, the clock in the device's. On the CPU the same as kDevice: a copy in memory.
  // - kMapped: values in their file and the clock in host memory, on every device, for a loop of the host.
  // All ranks of this host (local_world_size()) share one copy in host memory, in /dev/shm. If that fails, each rank has its own
  // copy, if memory suffices for all of them.
  // With `part` a copy holds only these rows, at their indices: rows() may be read only there. Such a copy is not shared.
  // Throws FileError, DeviceError, and OutOfMemory that names the stream, its bytes and the free bytes: another tier may do.
  static std::shared_ptr<const ResidentStream> get(std::shared_ptr<const Dataset> dataset, int64_t stream,
                                                   Device device, Tier tier, std::optional<RowSpan> part = {});

  // The bytes of the values, in the tier's memory; for kMapped only in the page cache.
  static int64_t bytes(const Dataset& dataset, int64_t stream, std::optional<RowSpan> part = {});

  // The bytes of them that are in memory already, in this process or shared by ranks of this host. Free memory is without them
  // already, and get() takes no more for them.
  static int64_t bytes_present(const Dataset& dataset, int64_t stream, Device device, Tier tier,
                               std::optional<RowSpan> part = {});

  Tier tier() const { return tier_; }  // never kPinned on the CPU
  const ResidentClock& clock() const { return *clock_; }

  // The rows for a kernel on the device. For kMapped they are for the host: in `file`, or, if the cache was replaced before this
  // object existed, in the mapping, whose file cannot be cut short any more. A camera's rows may be blobs of different sizes: then
  // `values` and `file` are the blobs' bytes, and bytes_of() gives those of a row.
  StreamRows rows() const { return rows_; }

  // The range of a row's bytes among the stream's.
  RowSpan bytes_of(int64_t row) const {
    if (blob_offsets_.empty()) return {row * row_bytes_, (row + 1) * row_bytes_};
    const auto at = static_cast<size_t>(row - first_blob_);
    return {blob_offsets_[at], blob_offsets_[at + 1]};
  }

  // The most bytes of a row in memory.
  int64_t largest_row_bytes() const {
    if (blob_offsets_.empty()) return row_bytes_;
    int64_t largest = 0;
    for (size_t i = 1; i < blob_offsets_.size(); ++i) {
      largest = std::max(largest, blob_offsets_[i] - blob_offsets_[i - 1]);
    }
    return largest;
  }

  // For people: that the ranks share the copy in host memory, or why they do not; else empty.
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
  std::vector<int64_t> blob_offsets_;  // for the rows in memory, if they are blobs
  int64_t first_blob_ = 0;             // the first of these rows
};

}  // namespace robocache
