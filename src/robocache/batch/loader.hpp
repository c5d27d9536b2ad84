// Training batches out of a cache: windows around drawn moments, aligned in time, one kernel launch each.
//
//   const auto dataset = robocache::Dataset::open("cache");
//   robocache::LoaderOptions options;
//   options.batch_size = 1024;
//   options.streams = {{.stream = "observation.state", .delta_timestamps = {-0.1, 0.0}},
//                      {.stream = "action", .delta_timestamps = {0.0, 0.02, 0.04}, .normalize = Normalize::kMeanStd}};
//   const robocache::Loader loader(dataset, options);
//   robocache::DeviceBuffer memory(options.device, loader.batch_bytes());
//   for (int64_t step = 0; step < loader.steps_per_epoch(); ++step) {
//     loader.fill({.seed = 7, .epoch = 0, .step = step}, memory.data(), stream);
//     for (const robocache::BatchArray& array : loader.arrays()) use(loader.view(array, step, memory.data()));
//   }
//
// A batch is a pure function of (options, seed, epoch, step): the same bytes on every run, thread count and device. What a
// sample is, and every edge, stands in align/window_batch.hpp and sample/anchors.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "robocache/batch/layout.hpp"
#include "robocache/batch/options.hpp"
#include "robocache/cache/dataset.hpp"
#include "robocache/core/device.hpp"
#include "robocache/core/tensor_view.hpp"

namespace robocache {

// Which batch: all that a training run must remember to go on.
struct BatchPosition {
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t step = 0;
};

// Immutable; any number of threads may use one.
class Loader {
 public:
  // Brings the streams to the device. Throws ArgumentError, ArgumentTypeError, DeviceError.
  Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options);
  ~Loader();
  Loader(Loader&&) noexcept;

  const LoaderOptions& options() const;  // with nothing left out
  int64_t anchors() const;               // samples an epoch
  int64_t steps_per_epoch() const;
  int64_t samples_at(int64_t step) const;  // batch_size, or what is left for the last step
  size_t batch_bytes() const;
  const std::vector<BatchArray>& arrays() const;

  // Fills `memory` (batch_bytes() on the device, 64-byte aligned) with the batch at a position.
  // On CUDA queued on `stream` and not waited for, one kernel; nothing is allocated. Throws ArgumentError for a step
  // outside [0, steps_per_epoch()), DeviceError.
  void fill(const BatchPosition& position, void* memory, CudaStream stream) const;

  // An array of the batch that fill wrote to `memory`.
  TensorView view(const BatchArray& array, int64_t step, void* memory) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace robocache
