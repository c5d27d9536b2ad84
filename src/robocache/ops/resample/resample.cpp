#include "robocache/ops/resample/resample.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "robocache/core/backend.hpp"
#include "robocache/core/error.hpp"
#include "robocache/interpolation/interpolate.hpp"
#include "robocache/interpolation/interpolate_backward.hpp"
#include "robocache/ops/resample/check_times_params.hpp"

namespace robocache {
namespace {

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::string text;
  (text.append(parts), ...);
  throw ArgumentError(text);
}

template <class... Parts>
[[noreturn]] void refuse_type(const Parts&... parts) {
  std::string text;
  (text.append(parts), ...);
  throw ArgumentTypeError(text);
}

bool is_clock(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kInt64; }

// A clock is [N] for every row or [B, N]; its length is the last extent.
void check_clock(const TensorView& clock, const char* name, const char* length, bool batched, int64_t batch) {
  if (!is_clock(clock.dtype)) {
    refuse_type(name, ": expected float32, float64 (seconds) or int64 (nanoseconds), got ", dtype_name(clock.dtype));
  }
  const auto expected = [&] {
    return std::string(batched ? "[" + std::to_string(batch) + ", " + length + "] or [" : "[") + length + "]";
  };
  if (clock.ndim != 1 && (clock.ndim != 2 || !batched)) {
    refuse(name, ": expected ", expected(), ", got ", shape_string(clock.shape.data(), clock.ndim));
  }
  if (clock.ndim == 2 && clock.shape[0] != batch) {
    refuse(name, ": expected ", expected(), ", got ", shape_string(clock.shape.data(), clock.ndim),
           clock.shape[0] == 1 ? std::string("; pass [") + length + "] for one clock that serves every row" : "");
  }
}

void check_device(const TensorView& tensor, const char* name, Device device) {
  if (tensor.device != device) {
    refuse(name, ": expected on ", device_name(device), " like values, got on ", device_name(tensor.device));
  }
}

void check_lengths(const TensorView& lengths, const char* name, int64_t batch, int64_t most) {
  if (lengths.dtype != DType::kInt32 && lengths.dtype != DType::kInt64) {
    refuse_type(name, ": expected int32 or int64, got ", dtype_name(lengths.dtype));
  }
  if (lengths.ndim != 1 || lengths.shape[0] != batch) {
    refuse(name, ": expected [", std::to_string(batch), "], got ", shape_string(lengths.shape.data(), lengths.ndim));
  }
  if (lengths.device.is_cuda()) return;  // cut to [0, most] in the kernel: reading them here would wait for the device
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length = length_at(lengths.data, lengths.dtype, b * lengths.strides[0], most);
    if (length < 0 || length > most) {
      refuse(name, ": expected values in [0, ", std::to_string(most), "], got ", std::to_string(length), " at ",
             std::to_string(b));
    }
  }
}

// Into both forms; the clock takes the one it needs.
void set_duration(const std::optional<Duration>& duration, const char* name, DType clock, bool& has, double& seconds,
                  uint64_t& ns) {
  has = duration.has_value();
  if (!has) return;
  const bool whole = std::holds_alternative<int64_t>(*duration);
  const double value = whole ? static_cast<double>(std::get<int64_t>(*duration)) : std::get<double>(*duration);
  if (!(value >= 0)) refuse(name, ": expected 0 or more, got ", std::to_string(value));
  seconds = value;
  if (clock != DType::kInt64) return;
  if (whole) {
    ns = static_cast<uint64_t>(std::get<int64_t>(*duration));
  } else if (value >= 0x1p64) {
    ns = std::numeric_limits<uint64_t>::max();
  } else if (value == std::floor(value)) {
    ns = static_cast<uint64_t>(value);
  } else {
    refuse(name, ": expected whole nanoseconds for an int64 clock, got ", std::to_string(value));
  }
}

// What the method of some features asks of the other arguments.
void check_method(InterpolationMethod method, DType values, const ResampleOptions& options) {
  const bool step = is_step(method);
  const std::string name = "'" + std::string(method_name(method)) + "'";
  if (!step && !is_floating(values)) {
    refuse_type("values: method ", name, " expects float64, float32, float16 or bfloat16, got ", dtype_name(values),
                "; use 'nearest', 'previous' or 'next'");
  }
  if (step && options.extrapolate == Extrapolate::kLinear) {
    refuse("extrapolate: 'linear' goes with no step method, got ", name);
  }
  if (!step && options.tolerance) {
    refuse("tolerance: goes with 'nearest', 'previous' and 'next', not with ", name);
  }
  if (options.causal && method == InterpolationMethod::kNext) {
    refuse("causal: method 'next' takes samples later than the target");
  }
}

void check_out(const TensorView& out, const ResampleShape& shape, const TensorView& values, const TensorView& times,
               const TensorView& targets, const std::optional<TensorView>& lengths,
               const std::optional<TensorView>& target_lengths) {
  if (out.dtype != values.dtype) {
    refuse_type("out: expected ", dtype_name(values.dtype), " like values, got ", dtype_name(out.dtype));
  }
  check_device(out, "out", values.device);
  const TensorView expected =
      shape.batched ? TensorView::contiguous(nullptr, out.dtype, {shape.batch, shape.targets, shape.features})
                    : TensorView::contiguous(nullptr, out.dtype, {shape.targets, shape.features});
  if (out.ndim != expected.ndim || out.shape != expected.shape) {
    refuse("out: expected ", shape_string(expected.shape.data(), expected.ndim), ", got ",
           shape_string(out.shape.data(), out.ndim));
  }
  if (out.numel() == 0) return;  // touches no memory, whatever its address and strides
  const auto [low, high] = out.extent();
  const auto overlaps = [&](const TensorView& input) {
    const auto [input_low, input_high] = input.extent();
    return low < input_high && input_low < high;
  };
  if (overlaps(values)) refuse("out: overlaps values");
  if (overlaps(times)) refuse("out: overlaps times");
  if (overlaps(targets)) refuse("out: overlaps target_times");
  if (lengths && overlaps(*lengths)) refuse("out: overlaps lengths");
  if (target_lengths && overlaps(*target_lengths)) refuse("out: overlaps target_lengths");
  for (int d = 0; d < out.ndim; ++d) {
    if (out.shape[d] > 1 && out.strides[d] == 0)
      refuse("out: expected memory of its own for each element, got stride 0");
  }
}

}  // namespace

ResampleShape resample_shape(const TensorView& values, const TensorView& times, const TensorView& target_times) {
  if (values.ndim != 2 && values.ndim != 3) {
    refuse("values: expected [B, S, D] or [S, D], got ", shape_string(values.shape.data(), values.ndim));
  }
  const bool batched = values.ndim == 3;
  const int first = batched ? 1 : 0;
  const int64_t batch = batched ? values.shape[0] : 1;
  check_clock(times, "times", "S", batched, batch);
  const int64_t samples = times.shape[times.ndim - 1];
  if (samples != values.shape[first]) {
    refuse("times: expected ", std::to_string(values.shape[first]), " samples like values, got ",
           std::to_string(samples));
  }
  check_clock(target_times, "target_times", "T", batched, batch);
  if (target_times.dtype != times.dtype) {
    refuse_type("target_times: expected ", dtype_name(times.dtype), " like times, got ",
                dtype_name(target_times.dtype));
  }
  return {batched, batch, samples, target_times.shape[target_times.ndim - 1], values.shape[first + 1]};
}

namespace {

// A call, validated, all but where it writes: its segments are runs of features, each of one method.
struct ResampleCall {
  ResampleShape shape;
  std::vector<FeatureBlock> blocks;
  std::array<Segment, kMaxSegments> segments;
  Interpolation interpolation;
};

void check_call(const TensorView& values, const TensorView& times, const TensorView& target_times,
                const ResampleOptions& options, const std::optional<TensorView>& lengths,
                const std::optional<TensorView>& target_lengths, ResampleCall& made) {
  const ResampleShape& shape = made.shape = resample_shape(values, times, target_times);
  const int first = shape.batched ? 1 : 0;
  check_device(times, "times", values.device);
  check_device(target_times, "target_times", values.device);

  const std::vector<FeatureBlock>& blocks = made.blocks =
      feature_blocks(shape.features, options.method, options.methods);
  for (const FeatureBlock& block : blocks) {
    check_method(block.method, values.dtype, options);
    if (options.tolerance && block.method != blocks[0].method) {
      refuse("tolerance: expected one method for all features, got '", method_name(blocks[0].method), "' and '",
             method_name(block.method), "'");  // a target would be valid by one and not by the other
    }
  }
  if (blocks.size() > static_cast<size_t>(kMaxSegments)) {
    refuse("methods: expected at most ", std::to_string(kMaxSegments), " runs of one method, got ",
           std::to_string(blocks.size()));
  }
  if (lengths) {
    check_device(*lengths, "lengths", values.device);
    check_lengths(*lengths, "lengths", shape.batch, shape.samples);
  }
  if (target_lengths) {
    check_device(*target_lengths, "target_lengths", values.device);
    check_lengths(*target_lengths, "target_lengths", shape.batch, shape.targets);
  }

  Segment whole{};
  whole.values_batch = shape.batched ? values.strides[0] : 0;
  whole.values_sample = values.strides[first];
  whole.values_feature = values.strides[first + 1];
  whole.times = times.data;
  whole.times_batch = times.ndim == 2 ? times.strides[0] : 0;
  whole.times_sample = times.strides[times.ndim - 1];
  if (lengths) {
    whole.lengths = lengths->data;
    whole.lengths_batch = lengths->strides[0];
    whole.lengths_dtype = lengths->dtype;
  }
  whole.samples = shape.samples;
  whole.value_dtype = values.dtype;
  whole.out_dtype = values.dtype;
  whole.clock_dtype = times.dtype;
  whole.extrapolate = options.extrapolate;
  whole.causal = options.causal;
  set_duration(options.max_gap, "max_gap", times.dtype, whole.has_max_gap, whole.max_gap, whole.max_gap_ns);
  set_duration(options.tolerance, "tolerance", times.dtype, whole.has_tolerance, whole.tolerance, whole.tolerance_ns);
  if (values.device.is_cuda()) {
    // The kernel counts a row's samples and a tile's vectors in 32 bits, sums of two included.
    constexpr int64_t kMostSamples = int64_t{1} << 30;
    constexpr int64_t kMostFeatures = int64_t{1} << 23;
    if (shape.samples > kMostSamples) {
      refuse("values: on CUDA expected at most 2^30 samples a row, got ", std::to_string(shape.samples));
    }
    if (shape.features > kMostFeatures) {
      refuse("values: on CUDA expected at most 2^23 features, got ", std::to_string(shape.features));
    }
  }

  for (size_t i = 0; i < blocks.size(); ++i) {
    Segment& s = made.segments[i] = whole;
    const int64_t size = dtype_size(values.dtype);
    s.values = static_cast<const char*>(values.data) + blocks[i].begin * whole.values_feature * size;
    s.features = blocks[i].end - blocks[i].begin;
    s.method = blocks[i].method;
  }

  Interpolation& call = made.interpolation = Interpolation{};
  call.targets = target_times.data;
  call.targets_batch = target_times.ndim == 2 ? target_times.strides[0] : 0;
  call.targets_target = target_times.strides[target_times.ndim - 1];
  call.target_dtype = target_times.dtype;
  if (target_lengths) {
    call.target_lengths = target_lengths->data;
    call.target_lengths_batch = target_lengths->strides[0];
    call.target_lengths_dtype = target_lengths->dtype;
  }
  call.batch = shape.batch;
  call.targets_count = shape.targets;
  call.segments = made.segments.data();
  call.segment_count = static_cast<int32_t>(blocks.size());
}

}  // namespace

void resample_trajectories(const TensorView& values, const TensorView& times, const TensorView& target_times,
                           const ResampleOptions& options, const TensorView& out,
                           const std::optional<TensorView>& lengths, const std::optional<TensorView>& valid,
                           const std::optional<TensorView>& target_lengths, CudaStream stream) {
  ResampleCall call;
  check_call(values, times, target_times, options, lengths, target_lengths, call);
  const ResampleShape& shape = call.shape;
  const int first = shape.batched ? 1 : 0;
  check_out(out, shape, values, times, target_times, lengths, target_lengths);
  for (size_t i = 0; i < call.blocks.size(); ++i) {
    Segment& s = call.segments[i];
    s.out_batch = shape.batched ? out.strides[0] : 0;
    s.out_target = out.strides[first];
    s.out_feature = out.strides[first + 1];
    s.out = static_cast<char*>(out.data) + call.blocks[i].begin * s.out_feature * dtype_size(out.dtype);
  }
  if (valid) {  // of a target, whichever method brings a feature to it
    if (valid->dtype != DType::kBool || valid->ndim != out.ndim - 1 || valid->shape[valid->ndim - 1] != shape.targets ||
        (shape.batched && valid->shape[0] != shape.batch)) {
      refuse("valid: expected bool of out's shape without its last dimension, got ", valid->describe());
    }
    check_device(*valid, "valid", values.device);
    call.segments[0].valid = static_cast<bool*>(valid->data);
    call.segments[0].valid_batch = shape.batched ? valid->strides[0] : 0;
    call.segments[0].valid_target = valid->strides[first];
  }
  interpolate(call.interpolation, values.device, stream);
}

void resample_trajectories_backward(const TensorView& values, const TensorView& times, const TensorView& target_times,
                                    const ResampleOptions& options, const TensorView& out_gradient,
                                    const std::optional<TensorView>& values_gradient,
                                    const std::optional<TensorView>& times_gradient,
                                    const std::optional<TensorView>& targets_gradient,
                                    const std::optional<TensorView>& lengths,
                                    const std::optional<TensorView>& target_lengths, CudaStream stream) {
  ResampleCall call;
  check_call(values, times, target_times, options, lengths, target_lengths, call);
  const ResampleShape& shape = call.shape;
  const int first = shape.batched ? 1 : 0;
  const auto check = [&](const TensorView& gradient, const char* name, DType dtype, bool dense,
                         std::initializer_list<int64_t> extents) {
    const TensorView expected = TensorView::contiguous(gradient.data, dtype, extents, values.device);
    if (gradient.dtype != dtype) {
      refuse_type(name, ": expected ", dtype_name(dtype), ", got ", dtype_name(gradient.dtype));
    }
    check_device(gradient, name, values.device);
    if (gradient.ndim != expected.ndim || gradient.shape != expected.shape) {
      refuse(name, ": expected ", shape_string(expected.shape.data(), expected.ndim), ", got ",
             shape_string(gradient.shape.data(), gradient.ndim));
    }
    if (dense && gradient.numel() > 0 && !gradient.is_contiguous()) {
      refuse(name, ": expected a dense array, got ", gradient.describe());
    }
  };
  const bool clock_moves = times.dtype != DType::kInt64;
  if (!is_floating(values.dtype)) {
    refuse_type("values: expected a floating dtype to take the gradient of, got ", dtype_name(values.dtype));
  }
  if (shape.batched) {
    check(out_gradient, "out_gradient", values.dtype, false, {shape.batch, shape.targets, shape.features});
  } else {
    check(out_gradient, "out_gradient", values.dtype, false, {shape.targets, shape.features});
  }
  const DType work = works_in_double(call.segments[0]) ? DType::kFloat64 : DType::kFloat32;
  if (values_gradient) {
    check(*values_gradient, "values_gradient", work, true, {shape.batch, shape.samples, shape.features});
  }
  if (times_gradient) {
    if (!clock_moves) refuse_type("times_gradient: an int64 clock has no gradient");
    check(*times_gradient, "times_gradient", DType::kFloat64, true, {shape.batch, shape.samples});
  }
  if (targets_gradient) {
    if (!clock_moves) refuse_type("targets_gradient: an int64 clock has no gradient");
    check(*targets_gradient, "targets_gradient", DType::kFloat64, true, {shape.batch, shape.targets});
  }

  std::array<SegmentGradient, kMaxSegments> gradients;
  for (size_t i = 0; i < call.blocks.size(); ++i) {
    SegmentGradient& g = gradients[i] = SegmentGradient{};
    const int64_t feature = call.blocks[i].begin;
    g.out_batch = shape.batched ? out_gradient.strides[0] : 0;
    g.out_target = out_gradient.strides[first];
    g.out_feature = out_gradient.strides[first + 1];
    g.out = static_cast<const char*>(out_gradient.data) + feature * g.out_feature * dtype_size(out_gradient.dtype);
    if (values_gradient) {
      g.values = static_cast<char*>(values_gradient->data) + feature * dtype_size(work);
      g.values_batch = shape.samples * shape.features;
      g.values_sample = shape.features;
      g.values_feature = 1;
    }
    g.times = times_gradient ? static_cast<double*>(times_gradient->data) : nullptr;
    g.targets = targets_gradient ? static_cast<double*>(targets_gradient->data) : nullptr;
  }
  interpolate_backward(call.interpolation, gradients.data(), values.device, stream);
}

namespace {

template <class Clock>
int64_t first_bad_time(const CheckTimesParams& p, int64_t batch) {
  const int64_t n = length_at(p.lengths, p.lengths_dtype, batch * p.lengths_batch, p.samples);
  const auto* times = static_cast<const Clock*>(p.times) + batch * p.times_batch;
  for (int64_t i = 0; i < n; ++i) {
    const Clock t = times[i * p.times_sample];
    if (t != t || (i > 0 && t < times[(i - 1) * p.times_sample])) return i;
  }
  return -1;
}

}  // namespace

void check_times(const TensorView& times, const std::optional<TensorView>& lengths, CudaStream stream) {
  const bool batched = times.ndim == 2;
  check_clock(times, "times", "S", batched, batched ? times.shape[0] : 1);
  CheckTimesParams p{};
  p.times = times.data;
  p.batch = batched ? times.shape[0] : 1;
  p.samples = times.shape[times.ndim - 1];
  p.times_batch = batched ? times.strides[0] : 0;
  p.times_sample = times.strides[times.ndim - 1];
  p.clock_dtype = times.dtype;
  if (lengths) {
    check_device(*lengths, "lengths", times.device);
    check_lengths(*lengths, "lengths", p.batch, p.samples);
    p.lengths = lengths->data;
    p.lengths_batch = lengths->strides[0];
    p.lengths_dtype = lengths->dtype;
  }
  int64_t row = -1;
  int64_t index = -1;
  if (times.device.is_cuda()) {
    using Launch = int(const CheckTimesParams*, int64_t* flat, int32_t device, void* stream);
    static Launch* const launch = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_check_times"));
    int64_t flat = -1;
    check_cuda(launch(&p, &flat, times.device.index, stream.handle), "check_times");
    if (flat >= 0) {
      row = flat / p.samples;
      index = flat % p.samples;
    }
  } else {
    for (int64_t b = 0; b < p.batch && index < 0; ++b) {
      row = b;
      index = p.clock_dtype == DType::kFloat32   ? first_bad_time<float>(p, b)
              : p.clock_dtype == DType::kFloat64 ? first_bad_time<double>(p, b)
                                                 : first_bad_time<int64_t>(p, b);
    }
  }
  if (index >= 0) {
    refuse("times: expected ascending times without NaN, got one that is not at row ", std::to_string(row), ", index ",
           std::to_string(index));
  }
}

}  // namespace robocache
