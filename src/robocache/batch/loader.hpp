// Training batches from a cache: windows around randomly drawn times, aligned, with one kernel launch for each batch.
//
//   const auto dataset = robocache::Dataset::open("cache");
//   robocache::LoaderOptions options;
//   options.batch_size = 1024;
//   options.streams = {{.stream = "observation.state", .delta_timestamps = {-0.1, 0.0}},
//                      {.stream = "action", .delta_timestamps = {0.0, 0.02, 0.04}, .normalize = Normalize::kMeanStd}};
//   const robocache::Loader loader(dataset, options);
//   robocache::DeviceBuffer memory(options.device, loader.batch_bytes());
//   robocache::BatchPosition position{.seed = 7};
//   while (const int64_t samples = loader.samples_at(position)) {
//     loader.fill(position, memory.data(), stream);
//     for (const robocache::BatchArray& array : loader.arrays()) use(loader.view(array, samples, memory.data()));
//     position = loader.after(position);
//   }
//
// A batch is a pure function of (options, position): the same bytes in every run, with any number of threads, on every device.
// align/window_batch.hpp, sample/anchors.hpp and sample/mixture.hpp define a sample and its edges.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "robocache/batch/draws.hpp"
#include "robocache/batch/frames_ahead.hpp"
#include "robocache/batch/key.hpp"
#include "robocache/batch/layout.hpp"
#include "robocache/batch/loader_streams.hpp"
#include "robocache/batch/options.hpp"
#include "robocache/batch/plans.hpp"
#include "robocache/batch/spec.hpp"
#include "robocache/cache/dataset.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/core/device.hpp"
#include "robocache/core/tensor_view.hpp"

namespace robocache {

// Where the anchor of a sample lies.
struct SampleAnchor {
  int64_t source;
  int64_t episode;
  int64_t time_ns;
  int64_t number;  // of the sample in its epoch's order; for a given anchor, the anchor's number
};

// An episode that has anchors, and their number. Its anchors have consecutive numbers.
struct AnchoredEpisode {
  int64_t source;
  int64_t episode;
  int64_t anchors;
};

// Immutable, except that weights can change. Any number of threads may use a loader. It owns the anchors and the tables of its
// plans. It shares streams with all loaders of this process that read the same streams from the same tier. The caller owns the
// batches' memory.
class Loader {
 public:
  // Loads the streams into their tiers. Throws ArgumentError, ArgumentTypeError, DeviceError, FileError, FrameError.
  explicit Loader(LoaderOptions options);
  // A loader of one dataset. A source in the options selects a part of it.
  Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options);
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  const LoaderOptions& options() const { return options_; }  // complete_options() has completed them
  int64_t anchors() const { return draws_.anchors(); }       // in all sources
  int64_t anchors_before_filter() const { return draws_.anchors_before_filter(); }
  // The draws of all ranks together in an epoch: one for each anchor, or as the weights say.
  int64_t samples() const { return draws_.samples(); }
  int64_t steps_per_epoch() const;
  size_t batch_bytes() const { return static_cast<size_t>(layout_.bytes()); }
  const std::vector<BatchArray>& arrays() const { return layout_.arrays(); }

  // Returns the number of samples in this rank's batch at a position: batch_size, or less at the epoch's end. If too few are
  // left for all ranks, each gets an even share, rounded up, or 0 with drop_last. Throws ArgumentError for a position outside
  // [0, samples()].
  int64_t samples_at(const BatchPosition& position) const;

  // Returns the position after the batch at this one, in the same epoch.
  BatchPosition after(const BatchPosition& position) const;

  // Whether the sources have weights. Only then can they change.
  bool is_weighted() const { return draws_.is_weighted(); }

  // Gives each source, by its name, a new weight from a position on. Put the result into the `weights` of later positions:
  //   position.weights = loader.change_weights(position, {{"bridge", 2}, {"droid", 1}});
  // A batch has the weights of its first draw. Each source continues with its next anchor; a source of weight 0 is not drawn.
  // Earlier changes are in `from.weights`; `from` must not come before the last of them. The loader owns the result. Throws
  // ArgumentError unless each source is named once, with a finite weight of at least 0; if all weights are 0; if a weight is
  // too small for one draw in a block of draws (sample/mixture.hpp); and if the sources had no weights at first.
  const WeightChange* change_weights(const BatchPosition& from,
                                     const std::vector<std::pair<std::string, double>>& weights) const;

  // Fills `memory` (batch_bytes() on the device, 64-byte aligned) with this rank's batch at a position. The ranks share the
  // draws from position.samples on. If the epoch's last share is uneven, the epoch's first draws complete it. On CUDA this
  // queues one kernel on `stream` and does not wait; it allocates only for streams in files. Returns the number of frames that
  // did not decode and are padding (BadFrame::kPad); frames that a CUDA device decodes do not count. Throws DeviceError,
  // FileError for a stream in a file, and FrameError for a frame that does not decode.
  int64_t fill(const BatchPosition& position, void* memory, CudaStream stream) const;

  // Does the same for given anchors, counted over all sources, each in [0, anchors()), at most batch_size of them. On CUDA this
  // waits for the batch. A sample's random draws depend on the position's seed and epoch, and on its number in `draws`, or else
  // its anchor's number. Throws ArgumentError for other anchors.
  int64_t gather(const BatchPosition& position, std::span<const int64_t> anchors, std::span<const int64_t> draws,
                 void* memory, CudaStream stream) const;

  // Returns the moments of the samples that fill gives at a position, or of the given anchors. The host computes them, so this
  // does not wait for the device. Throws what gather throws.
  std::vector<SampleAnchor> anchors_at(const BatchPosition& position, std::span<const int64_t> anchors = {}) const;

  // Returns the episodes with anchors, in the order of the anchors' numbers.
  std::vector<AnchoredEpisode> episodes() const;

  // Queues the copies of frames' files that the batch at a position decodes from pinned host memory, on a CUDA stream of the
  // loader. If fill or fill_device follows for that position, it uses the copies. Does not wait or allocate. Throws DeviceError.
  void fetch(const BatchPosition& position) const;

  // Waits for the frames that a CUDA device decodes. Throws FrameError if one is damaged. Call it at an epoch's end.
  void check_frames(CudaStream stream) const;

  // The two halves of fill for a CUDA loader with streams in files. fill_host fills the last host_bytes() of the batch in host
  // memory, 64-byte aligned, and copy_host_part queues their copies. fill_device then queues the rest, on the same stream or
  // one that waits for it. Without such streams host_bytes() is 0, and fill_device does everything.
  size_t host_bytes() const { return static_cast<size_t>(layout_.bytes() - host_offset_); }
  HostPart fill_host(const BatchPosition& position, void* memory) const;
  void copy_host_part(const HostPart& part, const void* from, void* memory, CudaStream stream) const;
  int64_t fill_device(const BatchPosition& position, const HostPart& part, void* memory, CudaStream stream) const;

  // Whether filling a batch takes less time than handing it to another thread: on the CPU, from memory, at most 64 KiB.
  bool is_small() const;

  // Describes the batches as one value. Sources differ only in rows and normalisation. Throws ArgumentError if there is
  // no such source.
  const BatchSpec& spec(size_t source = 0) const;

  // The tier of each key's rows.
  const std::vector<Placement>& placements() const { return streams_.placements(); }

  // With BadFrame::kPad, the number of frames so far that a CUDA device could not decode and that are padding.
  int64_t bad_frames_on_device() const;

  // Identifies the order of the draws: it differs for another dataset, selection or order settings (batch/fingerprint.hpp). A
  // position is valid only for loaders with the same fingerprint.
  std::string fingerprint() const { return draws_.fingerprint(); }

  // Returns an array of the batch of `samples` samples that fill wrote to `memory`.
  TensorView view(const BatchArray& array, int64_t samples, void* memory) const {
    return BatchLayout::view(array, samples, memory, options_.device);
  }

  // Checks that the rows around every anchor lie within their streams' tolerance_s. Throws ArgumentError that names the stream,
  // episode, time and distance of the first row that does not.
  void check_tolerance() const;

 private:
  void make_plans();
  void add_notes();
  void plan_frames();

  HostPart fill_host(const Wanted& wanted, void* memory) const;
  int64_t fill_device(const Wanted& wanted, const HostPart& part, void* memory, CudaStream stream) const;
  int64_t fill(const Wanted& wanted, void* memory, CudaStream stream) const;
  BatchMemory batch_memory(const Wanted& wanted, void* memory) const;
  void check_anchors(std::span<const int64_t> anchors) const;
  void check_damage() const;
  void synchronize(CudaStream stream, const char* what) const;

  LoaderOptions options_;
  LoaderStreams streams_;
  BatchKeys keys_;  // one for each request that batches hold
  BatchLayout layout_;
  int64_t host_offset_ = 0;    // where the host's part of a batch begins
  int64_t packed_offset_ = 0;  // where the frames' files begin in it
  const Draws draws_;
  std::optional<PartPlans> on_device_, on_host_, on_device_ahead_;
  mutable std::mutex scratch_mutex_;  // held while a batch that uses scratch_ or ahead_ is queued
  DeviceBuffer scratch_;              // where a device decodes frames
  mutable CudaEvent scratch_used_;
  mutable std::optional<FramesAhead> ahead_;  // destroyed first: its queued work reads everything above
};

}  // namespace robocache
