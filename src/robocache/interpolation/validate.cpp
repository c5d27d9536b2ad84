#include "robocache/interpolation/validate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "robocache/interpolation/interpolate_backward.hpp"
#include "robocache/interpolation/spline.hpp"

namespace robocache {

void check_clock(const TensorView& clock, std::string_view argument, const char* length, bool batched, int64_t batch,
                 const ArgumentNamer& full_name) {
  if (clock.dtype != DType::kFloat32 && clock.dtype != DType::kFloat64 && clock.dtype != DType::kInt64) {
    refuse_type(full_name(argument), ": expected float32, float64 (seconds) or int64 (nanoseconds), got ",
                dtype_name(clock.dtype));
  }
  const auto expected = [&] {
    return std::string(batched ? "[" + std::to_string(batch) + ", " + length + "] or [" : "[") + length + "]";
  };
  if (clock.ndim != 1 && (clock.ndim != 2 || !batched)) {
    refuse(full_name(argument), ": expected ", expected(), ", got ", shape_string(clock));
  }
  if (clock.ndim == 2 && clock.shape[0] != batch) {
    refuse(full_name(argument), ": expected ", expected(), ", got ", shape_string(clock),
           clock.shape[0] == 1 ? std::string("; pass [") + length + "] for one clock that serves every row" : "");
  }
}

void set_duration(const std::optional<Duration>& duration, std::string_view argument, DType clock, bool& has,
                  double& seconds, uint64_t& ns, const ArgumentNamer& full_name) {
  has = duration.has_value();
  if (!has) return;
  const bool is_whole = std::holds_alternative<int64_t>(*duration);
  const double value = is_whole ? static_cast<double>(std::get<int64_t>(*duration)) : std::get<double>(*duration);
  if (!(value >= 0)) refuse(full_name(argument), ": expected 0 or more, got ", number_text(value));
  seconds = value;
  if (clock != DType::kInt64) return;
  if (is_whole) {
    ns = static_cast<uint64_t>(std::get<int64_t>(*duration));
  } else if (value >= 0x1p64) {
    ns = std::numeric_limits<uint64_t>::max();
  } else if (value == std::floor(value)) {
    ns = static_cast<uint64_t>(value);
  } else {
    refuse(full_name(argument), ": expected whole nanoseconds for an int64 clock, got ", number_text(value));
  }
}

StreamShape stream_shape(const TensorView& values, const TensorView& times, const ArgumentNamer& full_name) {
  if (values.ndim != 2 && values.ndim != 3) {
    refuse(full_name("values"), ": expected [B, S, D] or [S, D], got ", shape_string(values));
  }
  const bool batched = values.ndim == 3;
  const int sample_dim = batched ? 1 : 0;
  const int64_t batch = batched ? values.shape[0] : 1;
  check_clock(times, "times", "S", batched, batch, full_name);
  const int64_t samples = times.shape[times.ndim - 1];
  if (samples != values.shape[sample_dim]) {
    refuse(full_name("times"), ": expected ", std::to_string(values.shape[sample_dim]), " samples like values, got ",
           std::to_string(samples));
  }
  return {batched, batch, samples, values.shape[sample_dim + 1]};
}

void check_target_shape(const TensorView& tensor, std::string_view argument, bool batched, int64_t batch,
                        int64_t targets, int64_t last, const ArgumentNamer& full_name) {
  check_shape(tensor, argument,
              batched ? TensorView::contiguous(nullptr, tensor.dtype, {batch, targets, last})
                      : TensorView::contiguous(nullptr, tensor.dtype, {targets, last}),
              full_name);
}

namespace {

std::string duration_text(const Duration& duration) {
  return std::holds_alternative<int64_t>(duration) ? std::to_string(std::get<int64_t>(duration))
                                                   : number_text(std::get<double>(duration));
}

// Checks the options that fit only some methods.
void check_method(InterpolationMethod method, DType values, const InterpolationOptions& options,
                  const ArgumentNamer& full_name) {
  const bool is_step_method = is_step(method);
  const auto name = [&] { return "'" + std::string(name_of(method)) + "'"; };
  if (!is_step_method && !is_floating(values)) {
    refuse_type(full_name("values"), ": method ", name(), " expects float64, float32, float16 or bfloat16, got ",
                dtype_name(values), "; use 'nearest', 'previous' or 'next'");
  }
  if (is_step_method && options.extrapolate == Extrapolate::kLinear) {
    refuse(full_name("extrapolate"), ": 'linear' goes with no step method, got ", name());
  }
  if (!is_step_method && options.tolerance) {
    refuse(full_name("tolerance"), ": goes with 'nearest', 'previous' and 'next', got ",
           duration_text(*options.tolerance), " with ", name());
  }
  if (options.causal && method == InterpolationMethod::kNext) {
    refuse(full_name("causal"), ": goes with no method that takes samples later than the target, got True with ",
           name());
  }
}

// Whether one method computes all features, in one run.
bool has_one_method(const InterpolationOptions& options) {
  return options.methods.empty() && options.method != InterpolationMethod::kSlerp &&
         options.method != InterpolationMethod::kPose;
}

std::vector<FeatureBlock> runs_of(int64_t features, const InterpolationOptions& options,
                                  const ArgumentNamer& full_name) {
  try {
    return feature_blocks(features, options.method, options.methods);
  } catch (const ArgumentError& error) {  // its text begins with the argument's name
    throw ArgumentError(full_name(error.what()));
  }
}

void check_methods(int64_t features, DType values, const InterpolationOptions& options,
                   const ArgumentNamer& full_name) {
  if (has_one_method(options)) {
    check_method(options.method, values, options, full_name);
  } else {
    const auto runs = runs_of(features, options, full_name);
    for (const FeatureBlock& run : runs) {
      check_method(run.method, values, options, full_name);
      if (options.tolerance && run.method != runs[0].method) {
        refuse(full_name("tolerance"), ": expected one method for all features, got '", name_of(runs[0].method),
               "' and '", name_of(run.method), "'");  // a target would be valid by one and not by the other
      }
    }
  }
}

int64_t cubic_bytes(const TensorView& values, const InterpolationOptions& options, const ArgumentNamer& full_name,
                    int64_t (*bytes_of)(const Segment&, int64_t batch)) {
  const bool has_cubic = options.method == InterpolationMethod::kCubic || !options.methods.empty();
  if (!has_cubic || options.causal || values.ndim < 2) return 0;
  Segment s{};
  s.samples = values.shape[values.ndim - 2];
  s.value_dtype = values.dtype;
  int64_t bytes = 0;
  for (const FeatureBlock& run : runs_of(values.shape[values.ndim - 1], options, full_name)) {
    if (run.method != InterpolationMethod::kCubic) continue;
    s.features = run.end - run.begin;
    bytes += bytes_of(s, values.ndim == 3 ? values.shape[0] : 1);
  }
  return bytes;
}

}  // namespace

int64_t stream_workspace_bytes(const TensorView& values, const InterpolationOptions& options,
                               const ArgumentNamer& full_name) {
  return cubic_bytes(values, options, full_name, spline_workspace_bytes);
}

int64_t stream_gradient_workspace_bytes(const TensorView& values, const InterpolationOptions& options,
                                        const ArgumentNamer& full_name) {
  return cubic_bytes(values, options, full_name, spline_gradient_bytes);
}

Segment stream_segment(const TensorView& values, const TensorView& times, const std::optional<TensorView>& lengths,
                       const InterpolationOptions& options, const ArgumentNamer& full_name) {
  const StreamShape shape = stream_shape(values, times, full_name);
  check_device(times, "times", values.device, full_name);
  check_methods(shape.features, values.dtype, options, full_name);
  if (lengths) {
    check_device(*lengths, "lengths", values.device, full_name);
    check_lengths(*lengths, "lengths", shape.batch, shape.samples, full_name);
  }
  if (values.device.is_cuda()) {
    // The kernels count a row's samples and a tile's vectors, and sums of two of them, in 32 bits.
    constexpr int64_t kMostSamples = int64_t{1} << 30;
    constexpr int64_t kMostFeatures = int64_t{1} << 23;
    if (shape.samples > kMostSamples) {
      refuse(full_name("values"), ": on CUDA expected at most 2^30 samples a row, got ", std::to_string(shape.samples));
    }
    if (shape.features > kMostFeatures) {
      refuse(full_name("values"), ": on CUDA expected at most 2^23 features, got ", std::to_string(shape.features));
    }
  }

  const int sample_dim = shape.batched ? 1 : 0;
  Segment s{};
  s.values = values.data;
  s.values_batch = shape.batched ? values.strides[0] : 0;
  s.values_sample = values.strides[sample_dim];
  s.values_feature = values.strides[sample_dim + 1];
  s.times = times.data;
  s.times_batch = times.ndim == 2 ? times.strides[0] : 0;
  s.times_sample = times.strides[times.ndim - 1];
  if (lengths) {
    s.lengths = lengths->data;
    s.lengths_batch = lengths->strides[0];
    s.lengths_dtype = lengths->dtype;
  }
  s.samples = shape.samples;
  s.features = shape.features;
  s.value_dtype = values.dtype;
  s.clock_dtype = times.dtype;
  s.extrapolate = options.extrapolate;
  s.boundary = options.boundary;
  s.causal = options.causal;
  set_duration(options.max_gap, "max_gap", times.dtype, s.has_max_gap, s.max_gap, s.max_gap_ns, full_name);
  set_duration(options.tolerance, "tolerance", times.dtype, s.has_tolerance, s.tolerance, s.tolerance_ns, full_name);
  return s;
}

void place_out(Segment& stream, const TensorView& out, int64_t first) {
  const int target_dim = out.ndim - 2;
  stream.out_batch = target_dim == 1 ? out.strides[0] : 0;
  stream.out_target = out.strides[target_dim];
  stream.out_feature = out.strides[target_dim + 1];
  stream.out_dtype = out.dtype;
  stream.out = static_cast<char*>(out.data) + first * stream.out_feature * dtype_size(out.dtype);
}

void append_segments(const Segment& stream, const InterpolationOptions& options, std::vector<Segment>& segments) {
  if (has_one_method(options)) {
    segments.push_back(stream);
    segments.back().method = options.method;
    return;
  }
  const auto runs = feature_blocks(stream.features, options.method, options.methods);
  for (const FeatureBlock& run : runs) {
    Segment s = stream;
    s.values = static_cast<const char*>(s.values) + run.begin * s.values_feature * dtype_size(s.value_dtype);
    s.out = static_cast<char*>(s.out) + run.begin * s.out_feature * dtype_size(s.out_dtype);
    const int64_t skipped = run.begin * (works_in_double(s) ? 8 : 4);
    if (s.scale_per_feature) s.scale.array = static_cast<const char*>(s.scale.array) + skipped;
    if (s.shift_per_feature) s.shift.array = static_cast<const char*>(s.shift.array) + skipped;
    if (&run != runs.data()) {
      s.valid = nullptr;
      s.age = nullptr;
    }
    s.features = run.end - run.begin;
    s.method = run.method;
    segments.push_back(s);
  }
}

void check_boundary(const InterpolationOptions& options, std::span<const Segment> segments,
                    const ArgumentNamer& full_name) {
  if (options.boundary == Boundary::kNotAKnot) return;  // the default: the caller may not have set it
  const auto uses_boundary = [&](const Segment& s) {
    return s.method == InterpolationMethod::kCubic && s.boundary == options.boundary;
  };
  if (std::any_of(segments.begin(), segments.end(), uses_boundary)) return;
  refuse(full_name("bc_type"), ": goes with 'cubic', got '", name_of(options.boundary), "' with '",
         name_of(options.method), "'");
}

Interpolation make_interpolation(const TensorView& target_times, const std::optional<TensorView>& target_lengths,
                                 int64_t batch) {
  Interpolation call{};
  call.batch = batch;
  call.targets_count = target_times.shape[target_times.ndim - 1];
  call.targets = target_times.data;
  call.targets_batch = target_times.ndim == 2 ? target_times.strides[0] : 0;
  call.targets_target = target_times.strides[target_times.ndim - 1];
  call.target_dtype = target_times.dtype;
  if (target_lengths) {
    call.target_lengths = target_lengths->data;
    call.target_lengths_batch = target_lengths->strides[0];
    call.target_lengths_dtype = target_lengths->dtype;
  }
  return call;
}

namespace {

void check_gradient(const TensorView& gradient, std::string_view argument, DType dtype, Device device,
                    std::initializer_list<int64_t> shape, const ArgumentNamer& full_name) {
  check_expected(gradient, argument, TensorView::contiguous(nullptr, dtype, shape, device), full_name);
  check_dense(gradient, argument, full_name);
}

}  // namespace

void* values_gradient(const TensorView& gradient, std::string_view argument, const Segment& s, int64_t batch,
                      int64_t features, Device device, const ArgumentNamer& full_name) {
  if (!is_floating(s.value_dtype)) {
    refuse_type(full_name(argument), ": values of ", dtype_name(s.value_dtype), " have no gradient");
  }
  const DType work = works_in_double(s) ? DType::kFloat64 : DType::kFloat32;
  check_gradient(gradient, argument, work, device, {batch, s.samples, features}, full_name);
  return gradient.data;
}

double* clock_gradient(const std::optional<TensorView>& gradient, std::string_view argument, const TensorView& clock,
                       int64_t batch, const ArgumentNamer& full_name) {
  if (!gradient) return nullptr;
  if (clock.dtype == DType::kInt64) refuse_type(full_name(argument), ": an int64 clock has no gradient");
  check_gradient(*gradient, argument, DType::kFloat64, clock.device, {batch, clock.shape[clock.ndim - 1]}, full_name);
  return static_cast<double*>(gradient->data);
}

}  // namespace robocache
