// The streams of every source of a loader, each in the tier from which batches read its key.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "robocache/batch/camera.hpp"
#include "robocache/batch/options.hpp"
#include "robocache/batch/residency.hpp"
#include "robocache/batch/spec.hpp"
#include "robocache/core/device_tables.hpp"
#include "robocache/source/resident.hpp"
#include "robocache/source/rows.hpp"
#include "robocache/source/tier.hpp"

namespace robocache {

// The tier of a key's rows.
struct Placement {
  std::string key;
  Tier tier;
  int64_t bytes;    // over all sources; decoded frames count as pixels
  std::string why;  // the reason, for people
};

// Immutable. Sources and requests have the indices that they have in the options.
class LoaderStreams {
 public:
  // Decides the tier of each key and loads its streams there. The options, which are complete, must outlive this; with
  // shard_episodes they have only this rank's episodes. Throws ArgumentError, DeviceError, FileError, FrameError.
  explicit LoaderStreams(const LoaderOptions& options);
  LoaderStreams(const LoaderStreams&) = delete;
  LoaderStreams& operator=(const LoaderStreams&) = delete;

  const LoaderOptions& options() const { return options_; }

  // Describes the batches of a source.
  const BatchSpec& spec(size_t source) const { return specs_[source]; }
  std::span<const BatchSpec> specs() const { return specs_; }

  // Null if the source has no such stream.
  const std::shared_ptr<const ResidentStream>& stream_of(size_t source, size_t request) const {
    return streams_[source][request];
  }

  // Null for a request of numbers.
  const Camera* camera(size_t request) const { return cameras_[request].get(); }

  // The numbers of a camera's rows in a source. Alignment chooses among them like among values.
  StreamRows row_numbers(size_t source, size_t request) const;

  // Whether the next batch's frames are copied ahead of time from pinned memory to the device. This needs the memory of
  // two batches of them, each of fetched_bytes().
  bool is_copied_ahead(size_t request) const { return is_copied_ahead_[request]; }
  int64_t fetched_bytes(size_t request) const { return cameras_[request]->fetched_stride() * frames_of_batch(request); }

  // Returns the bytes of the numbers of a sample's frames.
  int64_t number_bytes(size_t request) const {
    return static_cast<int64_t>(options_.streams[request].delta_timestamps.size() * sizeof(int64_t));
  }

  const std::vector<Placement>& placements() const { return placements_; }

 private:
  const Dataset& dataset(size_t source) const { return *options_.sources[source].dataset; }
  std::optional<RowRange> part_of(size_t source, int64_t stream) const;
  void make_cameras();
  BatchSpec spec_of(size_t source) const;
  std::vector<Residency> decide();
  ResidencyRequest residency_of(size_t request, std::set<std::pair<const Dataset*, int64_t>>& counted);
  MemoryBytes clock_bytes(bool present) const;
  MemoryBytes bytes_present() const;
  void load(size_t request, Residency& residency);
  void load_frames(size_t request, Residency& residency);
  int64_t frames_of_batch(size_t request) const {
    return options_.batch_size * static_cast<int64_t>(options_.streams[request].delta_timestamps.size());
  }
  void decide_copying_ahead(size_t request, Residency& residency);
  void leave_tier(size_t request, Residency& residency, const std::string& why) const;

  const LoaderOptions& options_;
  std::vector<BatchSpec> specs_;  // one for each source
  // [source][request]. A stream has an entry in frame_clocks_, its clock on the device, if the device decodes its frames from
  // memory.
  std::vector<std::vector<std::shared_ptr<const ResidentStream>>> streams_;
  std::vector<std::vector<std::shared_ptr<const ResidentClock>>> frame_clocks_;
  std::vector<std::unique_ptr<Camera>> cameras_;  // one for each request
  std::vector<Placement> placements_;
  std::vector<bool> is_copied_ahead_;  // one for each request
  int64_t device_bytes_left_ = 0;      // of the budget
  std::vector<int64_t> row_numbers_;   // 1, 2, ... up to the most rows of a camera
  const int64_t* row_numbers_on_device_ = nullptr;
  DeviceTables tables_;
};

}  // namespace robocache
