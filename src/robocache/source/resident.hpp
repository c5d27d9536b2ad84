// A stream of a dataset as batches read it: its clock in memory, and its values in a tier. Both are immutable. All
// loaders of the process with the same dataset, device and tier share them.
//
//   const auto stream = ResidentStream::get(dataset, 2, device, Tier::kPinned);
//   const StreamRows rows = stream->rows();
//
// Copies are read with pread. If a file was cut short, FileError is thrown, and rows that are in memory stay valid.
// Open files stay open when another cache takes the name of their folder.
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
#include "robocache/core/row_range.hpp"
#include "robocache/source/host_copy.hpp"
#include "robocache/source/rows.hpp"
#include "robocache/source/tier.hpp"

namespace robocache {

// The clock of a stream, in host memory and in the device's. All streams of the dataset with the same times and
// episodes share it.
class ResidentClock {
 public:
  // Copies the clock to memory, unless it is there, and waits for the copy. Throws FileError, DeviceError, and
  // OutOfMemory that names the stream, the bytes of its clock and the free bytes.
  static std::shared_ptr<const ResidentClock> get(std::shared_ptr<const Dataset> dataset, int64_t stream,
                                                  Device device);

  // Returns the bytes that the clock takes in host memory, and again in a CUDA device's memory.
  static int64_t bytes(const Dataset& dataset, int64_t stream);

  // Returns these bytes if the clock is in the device's memory already (for the CPU, in the host's), else 0.
  static int64_t bytes_present(const Dataset& dataset, int64_t stream, Device device);

  StreamClock on_host() const { return host_ == nullptr ? on_device_ : host_->on_device_; }
  StreamClock on_device() const { return on_device_; }

 private:
  ResidentClock(std::shared_ptr<const Dataset> dataset, int64_t stream, Device device,
                std::shared_ptr<const ResidentClock> host);
  bool matches(const Dataset& dataset, int64_t stream, Device device) const;

  std::shared_ptr<const Dataset> dataset_;
  Device device_;
  mutable std::vector<int64_t> streams_;       // streams known to have this clock
  std::shared_ptr<const ResidentClock> host_;  // for a clock on a CUDA device: the same clock in host memory
  DeviceBuffer time_memory_;
  DeviceBuffer episode_memory_;
  StreamClock on_device_;
};

// A stream's values and its clock.
class ResidentStream {
 public:
  // Loads the stream into the tier unless it is there, and waits until it is.
  // - kDevice: values and clock in the device's memory.
  // - kPinned: values in pinned host memory, the clock in the device's. On the CPU the same as kDevice: a copy in
  //   memory.
  // - kMapped: values in their file and the clock in host memory, on every device, for a loop of the host.
  //
  // All ranks of this host (local_world_size()) share one copy in host memory, in /dev/shm. If that fails, each rank
  // has its own copy, if memory suffices for all of them. With `part` a copy holds only these rows, which keep their
  // indices; rows() may be read only there. Such a copy is not shared. Throws FileError, DeviceError, and OutOfMemory
  // that names the stream, its bytes and the free bytes: another tier may fit.
  static std::shared_ptr<const ResidentStream> get(std::shared_ptr<const Dataset> dataset, int64_t stream,
                                                   Device device, Tier tier, std::optional<RowRange> part = {});

  // Returns the bytes that the values take in the tier's memory; kMapped takes them only in the page cache.
  static int64_t bytes(const Dataset& dataset, int64_t stream, std::optional<RowRange> part = {});

  // Returns how many of these bytes are in memory already, in this process or shared by ranks of this host. They are
  // not part of the free memory, and get() takes no more for them.
  static int64_t bytes_present(const Dataset& dataset, int64_t stream, Device device, Tier tier,
                               std::optional<RowRange> part = {});

  Tier tier() const { return tier_; }  // never kPinned on the CPU
  const ResidentClock& clock() const { return *clock_; }

  // The rows for a kernel on the device. For kMapped they are for the host: in `file`, or in the mapping if the cache
  // was replaced before this object existed; the mapped file then has no name and cannot be cut short any more. A
  // camera's rows may be blobs of different sizes: `values` and `file` then hold the blobs' bytes, and bytes_of() gives
  // the range of a row.
  StreamRows rows() const { return rows_; }

  // Returns the range of a row's bytes among the stream's bytes.
  RowRange bytes_of(int64_t row) const {
    if (blob_offsets_.empty()) return {row * row_bytes_, (row + 1) * row_bytes_};
    const auto index = static_cast<size_t>(row - first_blob_);
    return {blob_offsets_[index], blob_offsets_[index + 1]};
  }

  // Returns the most bytes of a row in memory.
  int64_t largest_row_bytes() const {
    if (blob_offsets_.empty()) return row_bytes_;
    int64_t largest = 0;
    for (size_t i = 1; i < blob_offsets_.size(); ++i) {
      largest = std::max(largest, blob_offsets_[i] - blob_offsets_[i - 1]);
    }
    return largest;
  }

  // A note for people: that the ranks share the copy in host memory, or why not; else empty.
  const std::string& note() const { return host_memory_.note(); }

 private:
  ResidentStream(std::shared_ptr<const Dataset> dataset, int64_t stream, Device device, Tier tier,
                 std::optional<RowRange> part);
  bool matches(const Dataset& dataset, int64_t stream, Device device, Tier tier, std::optional<RowRange> part) const;

  std::shared_ptr<const Dataset> dataset_;
  int64_t stream_;
  Device device_;
  Tier tier_;
  std::optional<RowRange> part_;
  std::shared_ptr<const ResidentClock> clock_;
  DeviceBuffer device_memory_;
  HostCopy host_memory_;
  cache::FileDescriptor file_;
  StreamRows rows_;
  int64_t row_bytes_;
  std::vector<int64_t> blob_offsets_;  // of the rows in memory, if they are blobs
  int64_t first_blob_ = 0;             // the first of these rows
};

}  // namespace robocache
