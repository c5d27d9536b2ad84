// What a loader is asked for, and the checks of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "robocache/batch/normalisation.hpp"
#include "robocache/cache/dataset.hpp"
#include "robocache/core/device.hpp"
#include "robocache/core/dtype.hpp"
#include "robocache/interpolation/blocks.hpp"
#include "robocache/interpolation/method.hpp"

namespace robocache {

// What is said of one stream. What it leaves out the LoaderOptions say for all.
struct StreamRequest {
  std::string stream;
  std::vector<double> delta_timestamps;  // seconds from the anchor, any order, at least one; none with rate_hz
  std::optional<int64_t> history = {};   // with rate_hz: steps that end at the anchor
  std::optional<int64_t> horizon = {};   // with rate_hz: steps that begin at it
  std::optional<InterpolationMethod> method = {};
  std::vector<FeatureBlock> methods = {};  // of some of a row's features, counted row-major; the others by `method`
  std::optional<Normalize> normalize = {};
  std::optional<double> max_gap_s = {};
  std::optional<DType> dtype = {};  // floats: any floating one; integers and bool keep their own
};

struct LoaderOptions {
  std::vector<StreamRequest> streams;
  // A second way to say delta_timestamps: steps of 1 / rate_hz seconds, for every stream of the dataset that has a number of
  // steps, its request's or this one. The window of both is their union: the anchor is in it once.
  std::optional<double> rate_hz;
  std::optional<int64_t> history;  // of streams whose name's first part, up to a dot, is not "action"
  std::optional<int64_t> horizon;  // of those where it is

  std::optional<InterpolationMethod> method;  // linear for floats; integers and bool: previous
  Normalize normalize = Normalize::kNone;     // of floating streams
  std::optional<double> max_gap_s;
  DType dtype = DType::kFloat32;  // of floating streams in the batch

  int64_t batch_size = 1;
  std::string anchor;                            // a stream whose ticks are drawn; empty: the slowest of the streams
  std::optional<double> anchor_hz;               // or the ticks of a clock of this rate
  std::optional<std::vector<int64_t>> episodes;  // to draw from; default all
  double snap_s = 1e-6;                          // a target closer than this to a sample is that sample
  bool shuffle = true;
  bool drop_last = false;
  Device device;
};

// The same with nothing left out: a request for each stream of the batch that says all but history and horizon, episodes,
// and the anchor unless anchor_hz is given. Throws ArgumentError, ArgumentTypeError, and DeviceError for a device that is
// not there.
LoaderOptions complete_options(const Dataset& dataset, LoaderOptions options);

// Seconds to nanoseconds; what is not finite or beyond 146 years is refused in the name of `argument`.
int64_t checked_ns(double seconds, std::string_view argument);

}  // namespace robocache
