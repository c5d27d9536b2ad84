#include "robocache/batch/options.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "robocache/core/arguments.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/core/tensor_view.hpp"
#include "robocache/core/time.hpp"

namespace robocache {
namespace {

// "methods['action']".
std::string of_stream(std::string_view argument, const StreamRequest& request) {
  return std::string(argument) + "['" + request.stream + "']";
}

// The place of a stream; an unknown one is refused in the name of the argument that asked for it.
int64_t index_of(const Dataset& dataset, std::string_view argument, std::string_view stream) {
  try {
    return dataset.index_of(stream);
  } catch (const ArgumentError& error) {
    const std::string_view text = error.what();
    throw ArgumentError(std::string(argument) + std::string(text.substr(std::min(text.size(), text.find(':')))));
  }
}

void check_call(const LoaderOptions& options) {
  if (options.batch_size < 1 || options.batch_size > INT32_MAX) {
    refuse("batch_size: expected from 1 to 2^31 - 1, got ", std::to_string(options.batch_size));
  }
  if (!is_floating(options.dtype)) {
    refuse("dtype: expected float64, float32, float16 or bfloat16, got ", dtype_name(options.dtype));
  }
  if (!(options.snap_s >= 0)) refuse("snap_s: expected 0 or more, got ", number_text(options.snap_s));
  checked_ns(options.snap_s, "snap_s");
  if (options.anchor_hz) {
    if (!options.anchor.empty()) {
      refuse("anchor: goes without anchor_hz, got '", options.anchor, "' and ", number_text(*options.anchor_hz));
    }
    if (!(*options.anchor_hz >= 1e-9 && *options.anchor_hz <= 1e9)) {  // a tick in 31 years to one a ns
      refuse("anchor_hz: expected a rate from 1e-9 to 1e9, got ", number_text(*options.anchor_hz));
    }
  }
  if (options.device.is_cuda() && options.device.index >= cuda_device_count()) {
    cuda_backend();  // throws the reason where there is none at all
    throw DeviceError("device: expected one of " + std::to_string(cuda_device_count()) + " CUDA devices, got " +
                      device_name(options.device));
  }
}

// ---- rate_hz, history, horizon as delta_timestamps ---------------------------------------------------------------------

void check_steps(const std::optional<int64_t>& steps, const std::string& name) {
  if (steps && *steps < 1) refuse(name, ": expected at least 1 step, got ", std::to_string(*steps));
}

// Whether a horizon for all is meant for this stream, and a history is not.
bool is_action(std::string_view stream) { return stream.substr(0, stream.find('.')) == "action"; }

// The requests that have steps, those with a history first.
std::vector<StreamRequest> grid_requests(const Dataset& dataset, const LoaderOptions& options) {
  const double rate_hz = *options.rate_hz;
  if (!(rate_hz > 0 && rate_hz <= HUGE_VAL) || std::isinf(rate_hz)) {
    refuse("rate_hz: expected a finite rate above 0, got ", number_text(rate_hz));
  }
  check_steps(options.history, "history");
  check_steps(options.horizon, "horizon");
  std::vector<StreamRequest> asked = options.streams;
  for (const Stream& stream : dataset.streams()) {
    const auto named = [&](const StreamRequest& request) { return request.stream == stream.name; };
    if (std::none_of(asked.begin(), asked.end(), named))
      asked.push_back({.stream = stream.name, .delta_timestamps = {}});
  }
  std::vector<StreamRequest> past;
  std::vector<StreamRequest> future;
  for (StreamRequest& request : asked) {
    if (!request.delta_timestamps.empty()) {
      refuse(of_stream("delta_timestamps", request), ": goes without rate_hz, got both");
    }
    check_steps(request.history, of_stream("history", request));
    check_steps(request.horizon, of_stream("horizon", request));
    if (!request.history && !is_action(request.stream)) request.history = options.history;
    if (!request.horizon && is_action(request.stream)) request.horizon = options.horizon;
    if (!request.history && !request.horizon) continue;
    for (int64_t k = 1 - request.history.value_or(1); k < request.horizon.value_or(1); ++k) {
      request.delta_timestamps.push_back(static_cast<double>(k) / rate_hz);
    }
    auto& to = request.history ? past : future;
    request.history.reset();
    request.horizon.reset();
    to.push_back(std::move(request));
  }
  if (past.empty() && future.empty()) {
    refuse("history, horizon: expected steps of at least one of the dataset's streams beside rate_hz, got none");
  }
  past.insert(past.end(), future.begin(), future.end());
  return past;
}

// ---- one stream --------------------------------------------------------------------------------------------------------

void check_methods(const StreamRequest& request, const Stream& stream) {
  const std::string name = of_stream("methods", request);
  const auto check = [&](InterpolationMethod method) {
    if (method == InterpolationMethod::kCubic) {
      refuse(name, ": 'cubic' looks at a whole recording, not at a window: expected another method, such as 'akima'");
    }
    if (!is_floating(stream.dtype) && !is_step(method)) {
      refuse_type(name, ": '", method_name(method), "' expects a floating stream, got ", dtype_name(stream.dtype),
                  "; use 'previous', 'nearest' or 'next'");
    }
  };
  check(*request.method);
  for (const FeatureBlock& block : request.methods) check(block.method);
  try {
    feature_blocks(stream.features, *request.method, request.methods);
  } catch (const ArgumentError& error) {
    const std::string_view text = error.what();
    refuse(name, text.substr(text.find(':')));
  }
}

// Says what the request leaves out, and checks all that it then says.
void complete(const LoaderOptions& options, const Stream& stream, StreamRequest& request) {
  const bool floating = is_floating(stream.dtype);
  if (request.delta_timestamps.empty()) {
    refuse(of_stream("delta_timestamps", request), ": expected at least one offset, got none");
  }
  for (const double delta : request.delta_timestamps) checked_ns(delta, of_stream("delta_timestamps", request));
  if (request.history || request.horizon) {
    refuse(of_stream(request.history ? "history" : "horizon", request), ": goes with rate_hz, got none");
  }
  if (stream.shape.size() + 2 > static_cast<size_t>(kMaxDims)) {
    refuse(of_stream("delta_timestamps", request), ": expected rows of at most ", std::to_string(kMaxDims - 2),
           " dimensions, got ", std::to_string(stream.shape.size()));
  }

  if (!request.method) request.method = options.method;
  if (!request.method) request.method = floating ? InterpolationMethod::kLinear : InterpolationMethod::kPrevious;
  check_methods(request, stream);

  if (!request.normalize) request.normalize = floating ? options.normalize : Normalize::kNone;
  if (!floating && *request.normalize != Normalize::kNone) {
    refuse_type(of_stream("normalize", request), ": expected a floating stream, got ", dtype_name(stream.dtype));
  }
  if (!request.dtype) request.dtype = floating ? options.dtype : stream.dtype;
  if (*request.dtype != stream.dtype && !(floating && is_floating(*request.dtype))) {
    refuse_type(of_stream("dtype", request), ": expected ", floating ? "a floating dtype" : dtype_name(stream.dtype),
                ", got ", dtype_name(*request.dtype));
  }
  if (!request.max_gap_s) request.max_gap_s = options.max_gap_s;
  if (request.max_gap_s && !(*request.max_gap_s >= 0)) {
    refuse(of_stream("max_gap_s", request), ": expected 0 or more, got ", number_text(*request.max_gap_s));
  }
}

}  // namespace

int64_t checked_ns(double seconds, std::string_view argument) {
  if (!(std::abs(seconds) < 0x1p62 / kNsPerSecond)) {
    refuse(argument, ": expected finite seconds, less than 146 years, got ", number_text(seconds));
  }
  return seconds_to_ns(seconds);
}

LoaderOptions complete_options(const Dataset& dataset, LoaderOptions options) {
  check_call(options);
  if (options.rate_hz) {
    options.streams = grid_requests(dataset, options);
  } else if (options.history || options.horizon) {
    refuse(options.history ? "history" : "horizon", ": goes with rate_hz, got none");
  }
  if (options.streams.empty()) refuse("delta_timestamps: expected at least one stream, got none");
  std::set<std::string_view> seen;
  std::vector<int64_t> streams;
  for (StreamRequest& request : options.streams) {
    if (!seen.insert(request.stream).second) {
      refuse("delta_timestamps: stream '", request.stream, "' is there twice");
    }
    streams.push_back(index_of(dataset, "delta_timestamps", request.stream));
    complete(options, dataset.streams()[static_cast<size_t>(streams.back())], request);
  }
  if (options.episodes) {
    if (options.episodes->empty()) refuse("episodes: expected at least one, got none");
    for (const int64_t episode : *options.episodes) {
      if (episode >= 0 && episode < dataset.num_episodes()) continue;
      refuse("episodes: expected indices in [0, ", std::to_string(dataset.num_episodes()), "), got ",
             std::to_string(episode));
    }
  } else {
    options.episodes.emplace(static_cast<size_t>(dataset.num_episodes()));
    std::iota(options.episodes->begin(), options.episodes->end(), int64_t{0});
  }
  if (!options.anchor.empty()) {
    index_of(dataset, "anchor", options.anchor);
  } else if (!options.anchor_hz) {
    // A stream without a rate has at most one row an episode: the slowest there is.
    const auto rate = [&](int64_t stream) { return dataset.streams()[static_cast<size_t>(stream)].rate_hz; };
    const auto slower = [&](int64_t a, int64_t b) { return rate(a) < rate(b); };
    const int64_t slowest = *std::min_element(streams.begin(), streams.end(), slower);
    options.anchor = dataset.streams()[static_cast<size_t>(slowest)].name;
  }
  return options;
}

}  // namespace robocache
