// Training batches out of a cache: windows around drawn moments, aligned in time, one kernel launch each.
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
// A batch is a pure function of (options, position): the same bytes on every run, thread count and device. What a sample is,
// and every edge, stands in align/window_batch.hpp, sample/anchors.hpp and sample/mixture.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "robocache/batch/key.hpp"
#include "robocache/batch/layout.hpp"
#include "robocache/batch/loader_streams.hpp"
#include "robocache/batch/options.hpp"
#include "robocache/cache/dataset.hpp"
#include "robocache/core/device.hpp"
#include "robocache/core/tensor_view.hpp"

namespace robocache {

// Which batch: all that a training run must remember to go on, with any batch size and any number of ranks.
struct BatchPosition {
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t samples = 0;  // of the epoch's, that all ranks together have had

  bool operator==(const BatchPosition&) const = default;
};

// Immutable; any number of threads may use one.
class Loader {
 public:
  // Brings the streams to the device. Throws ArgumentError, ArgumentTypeError, DeviceError.
  explicit Loader(LoaderOptions options);
  // Of one dataset: the options' one source, where they have one, says which part of it.
  Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options);
  ~Loader();
  Loader(Loader&&) noexcept;

  const LoaderOptions& options() const;  // with nothing left out
  int64_t anchors() const;               // that can be drawn, of all sources
  int64_t samples() const;               // that all ranks together draw in an epoch: the anchors, or what weights draw
  int64_t steps_per_epoch() const;
  size_t batch_bytes() const;
  const std::vector<BatchArray>& arrays() const;

  // Samples of this rank's batch at a position: batch_size; where fewer are left for all ranks, this one's share of them,
  // rounded up, or 0 with drop_last; 0 at the epoch's end. Throws ArgumentError for samples outside [0, samples()].
  int64_t samples_at(const BatchPosition& position) const;

  // The position behind the batch at this one, in the same epoch.
  BatchPosition after(const BatchPosition& position) const;

  // Fills `memory` (batch_bytes() on the device, 64-byte aligned) with the batch at a position: of the draws from
  // position.samples on that the ranks share out, those of this rank. What is missing for an even share of an epoch's last
  // draws is made up by its first.
  // On CUDA queued on `stream` and not waited for, one kernel; nothing is allocated. Throws DeviceError, and FileError where a
  // stream is read from its file; and FrameError where a frame does not decode.
  // Returns how many frames did not decode and are padding, with pad_bad_frames, but for those that a CUDA device decodes.
  int64_t fill(const BatchPosition& position, void* memory, CudaStream stream) const;

  // The same with these anchors, counted over all sources, each in [0, anchors()) and at most batch_size of them. On CUDA
  // waited for. The random draws of a camera's frames are those of the position's seed and epoch and the anchor's number.
  // Throws ArgumentError for others. Returns what fill does.
  int64_t gather(const BatchPosition& position, std::span<const int64_t> anchors, void* memory,
                 CudaStream stream) const;

  // Begins to copy to the device what the batch at a position decodes out of pinned host memory, on a stream of the loader's;
  // fill and fill_device find it if they are called for that position soon. Where there is no such frame, it does nothing.
  // Not waited for, and nothing is allocated. Throws DeviceError.
  void fetch(const BatchPosition& position) const;

  // At an epoch's end: waits for the frames that a CUDA device decodes, and throws FrameError where one was damaged.
  void check_frames(CudaStream stream) const;

  // The two halves of fill, where a CUDA loader has streams that stay in their files. The host makes what is copied to the last
  // host_bytes() of the batch, anywhere in host memory, 64-byte aligned; then, `stream` being behind those copies, the device
  // makes the rest. On the CPU, and where no stream stays in its file, host_bytes() is 0 and fill_device is all.
  size_t host_bytes() const;
  HostPart fill_host(const BatchPosition& position, void* memory) const;
  // Queues on `stream` the part's copies from the memory that fill_host filled to the batch's. Throws DeviceError.
  void copy_host_part(const HostPart& part, const void* from, void* memory, CudaStream stream) const;
  int64_t fill_device(const BatchPosition& position, const HostPart& part, void* memory, CudaStream stream) const;

  // On the CPU: filling a batch takes less time than handing it to another thread, since it is small and lies in memory.
  bool is_small() const;

  // How the key of a request is normalised in a source: of each feature, none where it is not.
  std::vector<Affine> affines(size_t source, size_t request) const;

  // Where the rows of each of the batch's keys lie.
  const std::vector<Placement>& placements() const;

  // Frames that a CUDA device could not decode so far and that are padding, with pad_bad_frames.
  int64_t bad_frames_on_device() const;

  // Tells the order of this loader's draws from others: of another dataset, selection or order settings
  // (batch/fingerprint.hpp). Positions of one are none of another.
  std::string fingerprint() const;

  // An array of the batch of `samples` samples that fill wrote to `memory`.
  TensorView view(const BatchArray& array, int64_t samples, void* memory) const;

  // Looks at every anchor for a sample farther than its stream's tolerance_s. Throws ArgumentError that names the stream,
  // episode, time and distance of the first.
  void check_tolerance() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace robocache
