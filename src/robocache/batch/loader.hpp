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
//     loader.fill({.seed = 7, .epoch = 0, .step = step}, memory.data());
//     for (const robocache::BatchArray& array : loader.arrays()) use(loader.view(array, step, memory.data()));
//   }
//
// A batch is a pure function of (options, seed, epoch, step): the same bytes on every run, thread count and device. What a
// sample is, and every edge, stands in align/window_batch.hpp and sample/anchors.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/core/tensor_view.hpp"
#include "robocache/interpolation/method.hpp"

namespace robocache {

// y = (x - centre) / spread, computed as fma(x, scale, -centre * scale), scale = 1 / spread, from the cache's statistics
// in float64, both then rounded to the work type. Where that type cannot hold them (the spread is 0), x - centre; where
// the centre is infinite, x.
enum class Normalize : uint8_t {
  kNone,
  kMeanStd,  // centre mean, spread std
  kMinMax,   // min to -1, max to 1
  kQ01Q99,   // q01 to -1, q99 to 1
};

// "mean_std", "min_max", "q01_q99". Throws ArgumentError.
Normalize normalize_from_name(std::string_view name, std::string_view argument = "normalize");

struct StreamRequest {
  std::string stream;
  std::vector<double> delta_timestamps;       // seconds from the anchor, any order, at least one
  std::optional<InterpolationMethod> method;  // linear for floats; integers and bool: previous
  Normalize normalize = Normalize::kNone;
  std::optional<double> max_gap_s;
  std::optional<DType> dtype;  // floats: options.dtype; integers and bool keep their own
};

struct LoaderOptions {
  std::vector<StreamRequest> streams;
  int64_t batch_size = 1;
  std::string anchor;                            // a stream whose ticks are drawn; empty: the slowest of `streams`
  std::optional<double> anchor_hz;               // or the ticks of a clock of this rate
  std::optional<std::vector<int64_t>> episodes;  // to draw from; default all
  double snap_s = 1e-6;                          // a target closer than this to a sample is that sample
  bool shuffle = true;
  bool drop_last = false;
  DType dtype = DType::kFloat32;  // of floating streams in the batch
  Device device;
};

// One array of a batch: "<stream>" [B, T, ...], "<stream>_is_pad" [B, T], "time_ns" [B] and "episode_index" [B] (int64).
struct BatchArray {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;  // of one sample
  int64_t offset;              // bytes from the batch's start; 256-byte aligned
};

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

  const LoaderOptions& options() const;
  int64_t anchors() const;  // samples an epoch
  int64_t steps_per_epoch() const;
  int64_t samples_at(int64_t step) const;  // batch_size, or what is left for the last step
  size_t batch_bytes() const;
  const std::vector<BatchArray>& arrays() const;

  // Fills `memory` (batch_bytes() on the device, 64-byte aligned) with the batch at a position.
  // On CUDA queued on `stream` and not waited for, one kernel; nothing is allocated. Throws ArgumentError for a step
  // outside [0, steps_per_epoch()), DeviceError.
  void fill(const BatchPosition& position, void* memory, CudaStream stream = {}) const;

  // An array of the batch that fill wrote to `memory`.
  TensorView view(const BatchArray& array, int64_t step, void* memory) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace robocache
