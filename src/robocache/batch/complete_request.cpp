// Completes and checks the request of one key.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "robocache/align/window_params.hpp"
#include "robocache/batch/option_checks.hpp"
#include "robocache/core/arguments.hpp"
#include "robocache/core/tensor_view.hpp"
#include "robocache/core/time.hpp"

namespace robocache {
namespace {

void check_methods(const StreamRequest& request, const Stream& stream) {
  const std::string name = argument_of(request, "method");
  const auto check = [&](InterpolationMethod method) {
    if (method == InterpolationMethod::kCubic) {
      refuse(name, ": 'cubic' looks at a whole recording, not at a window: expected another method, such as 'akima'");
    }
    if (!is_floating(stream.dtype) && !is_step(method)) {
      refuse_type(name, ": '", name_of(method), "' expects a floating stream, got ", dtype_name(stream.dtype),
                  "; use 'previous', 'nearest' or 'next'");
    }
    if (*request.causal && method == InterpolationMethod::kNext) {
      refuse(argument_of(request, "causal"), ": 'next' looks at a later sample; expected another method");
    }
    if (request.tolerance_s && !is_step(method)) {
      refuse(argument_of(request, "tolerance_s"), ": goes with 'previous', 'nearest' or 'next', got '", name_of(method),
             "'; max_gap_s limits the gap between two samples");
    }
  };
  try {
    for (const FeatureBlock& block : feature_blocks(stream.features, *request.method, request.methods)) {
      check(block.method);
    }
  } catch (const ArgumentError& error) {
    const std::string_view text = error.what();
    if (text.starts_with("methods:") || text.starts_with("method:")) refuse(name, text.substr(text.find(':')));
    throw;
  }
}

// A camera takes whole rows: no method may mix two of them.
void complete_camera(const LoaderOptions& options, const std::vector<const Stream*>& streams, StreamRequest& request) {
  for (const Stream* const other : streams) {
    if (other->frames) continue;
    refuse(argument_of(request), ": expected frames in all sources, got numbers in one");
  }
  const auto takes_a_row = [](std::optional<InterpolationMethod> method) {
    return method == InterpolationMethod::kPrevious || method == InterpolationMethod::kNearest;
  };
  if (!request.method) request.method = takes_a_row(options.method) ? options.method : InterpolationMethod::kPrevious;
  if (!takes_a_row(request.method) || !request.methods.empty()) {
    refuse(argument_of(request, "method"), ": expected 'previous' or 'nearest' for a camera, got ",
           request.methods.empty() ? "'" + std::string(name_of(*request.method)) + "'" : "methods of slices");
  }
  if (request.normalize && *request.normalize != Normalize::kNone) {
    refuse(argument_of(request, "normalize"), ": expected none for a camera, whose mean and std stand in images=");
  }
  request.normalize = Normalize::kNone;
  if (!request.images) {
    const DType default_dtype = options.dtype == DType::kFloat64 ? DType::kFloat32 : options.dtype;
    request.images.emplace().dtype = request.dtype.value_or(default_dtype);
  }
  request.dtype = request.images->dtype;
}

// A window in rows takes recorded rows, and no values between them.
void check_rows(const StreamRequest& request) {
  for (const double rows : request.delta_timestamps) {
    if (rows == std::nearbyint(rows) && std::abs(rows) <= static_cast<double>(kMostRowOffset)) continue;
    refuse(argument_of(request), ": expected whole numbers of rows, at most 2^30, since rows=True, got ", rows);
  }
  const bool mixes = request.method && request.method != InterpolationMethod::kPrevious;
  if (mixes || (request.method_asked && !request.methods.empty())) {
    refuse(argument_of(request, "method"), ": expected none with rows=True, since a step is a recorded row, got ",
           request.methods.empty() ? "'" + std::string(name_of(*request.method)) + "'" : "methods of slices");
  }
  if (request.max_gap_s) {
    refuse(argument_of(request, "max_gap_s"), ": expected none with rows=True, since nothing lies between rows, got ",
           *request.max_gap_s, "; tolerance_s limits the age of the anchor's row");
  }
}

void check_moment(const StreamRequest& request) {
  const MomentRequest& moment = *request.moment;
  const std::string name = argument_of(request, "moment");
  if (moment.kind == MomentKind::kFuture) {
    if (!(0 <= moment.low_s && moment.low_s < moment.high_s)) {
      refuse(name, ": expected 0 <= low_s < high_s, got ", moment.low_s, " and ", moment.high_s);
    }
    checked_ns(moment.low_s, name + ".low_s");
    if (std::isfinite(moment.high_s)) checked_ns(moment.high_s, name + ".high_s");
  }
  if (moment.kind == MomentKind::kGeometric && !(0 < moment.discount && moment.discount < 1)) {
    refuse(name, ": expected a discount between 0 and 1, got ", moment.discount);
  }
}

// Refuses a key if one array cannot hold the rows of every source.
void check_alike(const LoaderOptions& options, const std::vector<const Stream*>& streams,
                 const StreamRequest& request) {
  const Stream& stream = *streams[0];
  const bool has_frames = stream.frames.has_value();
  const bool is_float = is_floating(stream.dtype);
  for (const Stream* const other : streams) {
    if (other->ragged) {
      refuse(argument_of(request), ": expected rows of one size, which a batch is made of, got ",
             *other->ragged == Ragged::kText ? "text; task_text='" + request.stream + "' gives the text at each anchor"
                                             : "ragged rows; 'Clouds beside a batch' in docs/loader.md shows how to "
                                               "gather a batch's clouds from Dataset.streams");
    }
    if (has_frames) continue;
    if (other->frames) {
      refuse(argument_of(request), ": expected numbers in all sources, got frames in one");
    }
    if (other->dtype != stream.dtype && !(is_float && is_floating(other->dtype))) {
      refuse_type(argument_of(request), ": expected one dtype in all sources, got ", dtype_name(stream.dtype), " and ",
                  dtype_name(other->dtype));
    }
    if (other->shape == stream.shape) continue;
    const std::string got_shapes = ", got " + shape_string(stream.shape) + " and " + shape_string(other->shape);
    if (!options.pad_features) {
      refuse(argument_of(request), ": expected rows of one shape in all sources, or pad_features=True", got_shapes);
    }
    if (other->shape.size() != 1 || stream.shape.size() != 1) {
      refuse(argument_of(request), ": pad_features expects rows of one axis", got_shapes);
    }
  }
  if (stream.shape.size() + 2 > static_cast<size_t>(kMaxDims)) {
    refuse(argument_of(request), ": expected rows of at most ", kMaxDims - 2, " dimensions, got ", stream.shape.size());
  }
}

// Completes and checks the request's durations.
void complete_durations(const LoaderOptions& options, StreamRequest& request) {
  if (!request.max_gap_s && !request.rows) request.max_gap_s = options.max_gap_s;
  if (request.max_gap_s && !(*request.max_gap_s >= 0)) {
    refuse(argument_of(request, "max_gap_s"), ": expected 0 or more, got ", *request.max_gap_s);
  }
  if (!request.tolerance_s) request.tolerance_s = options.tolerance_s;
  if (request.tolerance_s && !(*request.tolerance_s >= 0)) {
    refuse(argument_of(request, "tolerance_s"), ": expected 0 or more, got ", *request.tolerance_s);
  }
  if (!request.offset_s) request.offset_s = options.offset_s;
  const int64_t offset_ns = checked_ns(*request.offset_s, argument_of(request, "offset_s"));
  for (const double delta : request.delta_timestamps) {
    const int64_t delta_ns = request.rows ? 0 : checked_ns(delta, argument_of(request));
    if (std::abs(delta_ns) > INT64_MAX / 2 - std::abs(offset_ns)) {
      refuse(argument_of(request, "offset_s"), ": expected less than 146 years together with delta_timestamps, got ",
             *request.offset_s);
    }
  }
}

void complete_numbers(const LoaderOptions& options, const std::vector<const Stream*>& streams, StreamRequest& request) {
  const Stream& stream = *streams[0];
  const bool is_float = is_floating(stream.dtype);
  if (request.images) refuse(argument_of(request, "images"), ": expected a camera's key, got one of numbers");
  if (!request.method) request.method = options.method;
  if (!request.method) request.method = is_float ? InterpolationMethod::kLinear : InterpolationMethod::kPrevious;
  for (const Stream* const other : streams) check_methods(request, *other);

  if (!request.normalize) request.normalize = is_float ? options.normalize : Normalize::kNone;
  if (!is_float && *request.normalize != Normalize::kNone) {
    refuse_type(argument_of(request, "normalize"), ": expected a floating stream, got ", dtype_name(stream.dtype));
  }
  request.dtype_asked = request.dtype.has_value();
  if (!request.dtype) request.dtype = is_float ? options.dtype : stream.dtype;
  if (*request.dtype != stream.dtype && !(is_float && is_floating(*request.dtype))) {
    refuse_type(argument_of(request, "dtype"), ": expected ", is_float ? "a floating dtype" : dtype_name(stream.dtype),
                ", got ", dtype_name(*request.dtype));
  }
}

}  // namespace

std::string argument_of(const StreamRequest& request, std::string_view field) {
  return "delta_timestamps['" + request.stream + "']" + (field.empty() ? "" : "." + std::string(field));
}

void complete_request(const LoaderOptions& options, const std::vector<const Stream*>& streams, StreamRequest& request) {
  if (request.delta_timestamps.empty()) {
    refuse(argument_of(request), ": expected at least one offset, got none");
  }
  check_alike(options, streams, request);
  if (request.moment) check_moment(request);
  if (request.rows) {
    check_rows(request);
    request.method = InterpolationMethod::kPrevious;
    request.methods.clear();
  }
  complete_durations(options, request);
  if (!request.causal) request.causal = options.causal;
  if (!request.residency) request.residency = options.residency;
  if (streams[0]->frames) return complete_camera(options, streams, request);
  complete_numbers(options, streams, request);
}

double period_ns_of(const Stream& stream, int64_t episode) {
  const std::span times(stream.time_ns + stream.first_row(episode), static_cast<size_t>(stream.rows_of(episode)));
  constexpr size_t kFirstRows = 8;
  double period = 0;
  for (size_t row = 1; row < std::min(times.size(), kFirstRows); ++row) {
    const auto step_ns = static_cast<double>(times[row] - times[row - 1]);
    if (step_ns > 0 && (period == 0 || step_ns < period)) period = step_ns;
  }
  // Stamps are rounded. The more periods lie between two rows, the less this changes the period computed from them.
  for (size_t row = std::min(times.size(), kFirstRows); period > 0; row = std::min(2 * row, times.size())) {
    const auto span = static_cast<double>(times[row - 1] - times[0]);
    period = span / std::max(1.0, std::nearbyint(span / period));
    if (row == times.size()) break;
  }
  return period;
}

std::string period_text(double period_ns) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.4g s (%.4g Hz)", period_ns / kNsPerSecond, kNsPerSecond / period_ns);
  return text.data();
}

void check_grid(const LoaderOptions& options, size_t index) {
  const StreamRequest& request = options.streams[index];
  if (request.rows) return;
  struct Period {
    double ns;
    int64_t episodes;
  };
  constexpr size_t kMostNamedPeriods = 4;
  bool mixes = false;  // a latency matters only if the method mixes rows: other methods take a recorded row
  std::vector<Period> all_periods;
  std::string text;
  for (size_t i = 0; i < options.sources.size(); ++i) {
    const SourceRequest& source = options.sources[i];
    const Stream* const stream = source.stream_of(index);
    if (stream == nullptr || stream->clock != Clock::kNominal || !(stream->findings.period_ns > 0) ||
        !same_clock(*stream, source.dataset->stream(source.anchor))) {
      continue;
    }
    mixes = mixes || (is_floating(stream->dtype) && !stream->frames && !request.causal.value_or(options.causal));
    std::map<int64_t, Period> periods;  // by the period in microseconds; several, if episodes differ in rate
    const StreamFindings& findings = stream->findings;
    if (static_cast<double>(findings.max_period_ns - findings.min_period_ns) <= kOffGridNs) {
      periods[0] = {findings.period_ns, 1};
    } else {
      for (const int64_t episode : *source.episodes) {
        const double period = period_ns_of(*stream, episode);
        if (period > 0) ++periods.try_emplace(std::llround(period / 1000), Period{period, 0}).first->second.episodes;
      }
    }
    const std::string stream_name =
        "'" + stream->name + "'" + (options.mixture ? " of sources[" + std::to_string(i) + "]" : "");
    for (const auto& [_, period] : periods) {
      all_periods.push_back(period);
      if (all_periods.size() > kMostNamedPeriods) continue;
      text += (text.empty() ? "of " : ", of ") + stream_name + " " + period_text(period.ns);
      if (periods.size() > 1) {
        text += " in " + std::to_string(period.episodes) + (period.episodes == 1 ? " episode" : " episodes");
      }
    }
  }
  if (all_periods.size() > kMostNamedPeriods)
    text += ", and " + std::to_string(all_periods.size() - kMostNamedPeriods) + " more";
  const double latency = mixes ? request.offset_s.value_or(options.offset_s) : 0;
  for (const double delta : request.delta_timestamps) {
    const double ns = (delta + latency) * kNsPerSecond;
    const bool is_on_grid = std::ranges::all_of(all_periods, [&](const Period& period) {
      return std::abs(ns - std::nearbyint(ns / period.ns) * period.ns) <= kOffGridNs;
    });
    if (is_on_grid) continue;
    refuse(argument_of(request), ": ", delta, " s",
           latency == 0 ? "" : " and the offset of " + number_text(latency) + " s", " is not a multiple of ",
           all_periods.size() > 1 ? "every period: " : "the period ", text,
           "; the clock is nominal: nothing was recorded there; expected multiples, or method=, such as ",
           method_proposal(request), ", to make values between rows",
           all_periods.size() > 1 ? "; Window(..., rows=True) counts recorded rows of any rate" : "");
  }
}

std::string first_difference(const std::vector<std::string>& names, const std::vector<std::string>& other_names) {
  if (names.empty() || other_names.empty()) return "";
  for (size_t f = 0; f < std::min(names.size(), other_names.size()); ++f) {
    if (names[f] != other_names[f])
      return "feature " + std::to_string(f) + " is '" + names[f] + "' and '" + other_names[f] + "'";
  }
  return "";
}

bool are_reordered(std::vector<std::string> names, std::vector<std::string> other_names) {
  std::ranges::sort(names);
  std::ranges::sort(other_names);
  return names == other_names;
}

void check_names(const StreamRequest& request, const std::vector<const Stream*>& streams, std::string& note) {
  for (const Stream* const other : streams) {
    const std::string difference = first_difference(streams[0]->names, other->names);
    if (difference.empty()) continue;
    if (are_reordered(streams[0]->names, other->names)) {
      refuse(argument_of(request), ": expected features in one order in all sources, got ", difference,
             "; ingest one source with a mapping whose slices give each part of the row a stream of its own");
    }
    add_to_note(note, argument_of(request) + ": sources name features differently: " + difference +
                          "; if they mean other things, Source(rename=) gives each source a key of its own");
    return;
  }
}

}  // namespace robocache
