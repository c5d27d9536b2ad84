// What a loader's batches are drawn from: the streams of every source, each key's brought to its tier.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "robocache/batch/camera.hpp"
#include "robocache/batch/options.hpp"
#include "robocache/batch/residency.hpp"
#include "robocache/core/device_tables.hpp"
#include "robocache/source/resident.hpp"
#include "robocache/source/rows.hpp"
#include "robocache/source/tier.hpp"

namespace robocache {

// Where the rows of a key lie.
struct Placement {
  std::string key;
  Tier tier;
  int64_t bytes;    // of all its sources' streams, of decoded frames their pixels
  std::string why;  // for people
};

// Of each source and rank.
using EpisodesOfRanks = std::vector<std::vector<std::vector<int64_t>>>;

// Cuts the episodes of every source between the ranks: each has neighbouring ones, about as many bytes as any other. The
// complete options keep this rank's.
EpisodesOfRanks cut_episodes(LoaderOptions& options);

// Immutable. A source and a request are named by their places in the options.
class LoaderStreams {
 public:
  // Decides which key goes to which tier, and brings its streams there. The complete options outlive this; with shard_episodes
  // their episodes are this rank's. Throws ArgumentError, DeviceError, FileError, FrameError.
  explicit LoaderStreams(const LoaderOptions& options);
  LoaderStreams(const LoaderStreams&) = delete;
  LoaderStreams& operator=(const LoaderStreams&) = delete;

  const LoaderOptions& options() const { return options_; }

  // Null if the source has no such stream.
  const std::shared_ptr<const ResidentStream>& of(size_t source, size_t request) const {
    return streams_[source][request];
  }

  // Null for a request of numbers.
  const Camera* camera(size_t request) const { return cameras_[request].get(); }

  // The numbers of a camera's rows in a source, among which the alignment chooses.
  StreamRows row_numbers(size_t source, size_t request) const;

  // The frames of the next batch are copied from pinned memory to the device, since the budget has room for two batches of
  // them; and the bytes of one batch.
  bool is_fetched(size_t request) const { return is_fetched_[request]; }
  int64_t fetched_bytes(size_t request) const { return cameras_[request]->fetched_stride() * frames_of_batch(request); }

  // The numbers of a sample's frames.
  int64_t number_bytes(size_t request) const {
    return static_cast<int64_t>(options_.streams[request].delta_timestamps.size() * sizeof(int64_t));
  }

  const std::vector<Placement>& placements() const { return placements_; }

 private:
  const Dataset& dataset(size_t source) const { return *options_.sources[source].dataset; }
  std::optional<RowSpan> part_of(size_t source, int64_t stream) const;
  void make_cameras();
  std::vector<Residency> decide();
  void bring(size_t request, Residency& residency);
  void bring_frames(size_t request, Residency& residency);
  int64_t frames_of_batch(size_t request) const {
    return options_.batch_size * static_cast<int64_t>(options_.streams[request].delta_timestamps.size());
  }
  void decide_fetching(size_t request, Residency& residency);
  void leave_tier(size_t request, Residency& residency, const std::string& why) const;

  const LoaderOptions& options_;
  std::vector<std::vector<std::shared_ptr<const ResidentStream>>> streams_;  // of each source and request
  // The same, of frames that the device decodes from its memory or the host's.
  std::vector<std::vector<std::shared_ptr<const ResidentClock>>> frame_clocks_;
  std::vector<std::unique_ptr<Camera>> cameras_;  // of each request
  std::vector<Placement> placements_;
  std::vector<bool> is_fetched_;      // of each request
  int64_t device_bytes_left_ = 0;     // of the budget
  std::vector<int64_t> row_numbers_;  // 1, 2, ... as many as a camera has
  const int64_t* row_numbers_on_device_ = nullptr;
  DeviceTables tables_;
};

}  // namespace robocache
