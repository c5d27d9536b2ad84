#include "robocache/ops/resample/resample.hpp"

#include <string>
#include <vector>

#include "robocache/core/backend.hpp"
#include "robocache/interpolation/interpolate.hpp"
#include "robocache/interpolation/interpolate_backward.hpp"
#include "robocache/interpolation/spline.hpp"
#include "robocache/ops/resample/check_times_params.hpp"

namespace robocache {
namespace {

struct Shape {
  bool batched;
  int64_t batch;
  int64_t samples;
  int64_t targets;
  int64_t features;
};

Shape shape_of(const ResampleCall& call) {
  const auto [batched, batch, samples, features] = stream_shape(call.values, call.times);
  check_clock(call.target_times, "target_times", "T", batched, batch);
  if (call.target_times.dtype != call.times.dtype) {
    refuse_type("target_times: expected ", dtype_name(call.times.dtype), " like times, got ",
                dtype_name(call.target_times.dtype));
  }
  return {batched, batch, samples, call.target_times.shape[call.target_times.ndim - 1], features};
}

// A checked call. Its segments are runs of features with one method, in the order of the features.
struct Prepared {
  Shape shape;
  std::vector<Segment> segments;
  Interpolation interpolation;
};

// Checks the arguments, except for overlaps, and fills `prepared`. `out` is the output or its gradient; errors call it
// `out_name`.
void prepare(const ResampleCall& call, const TensorView& out, const char* out_name,
             const std::optional<TensorView>& valid, Prepared& prepared) {
  const TensorView& values = call.values;
  const Shape& shape = prepared.shape = shape_of(call);
  const int target_dim = shape.batched ? 1 : 0;
  Segment s = stream_segment(values, call.times, call.lengths, call.options);
  check_device(call.target_times, "target_times", values.device);
  if (call.target_lengths) {
    check_device(*call.target_lengths, "target_lengths", values.device);
    check_lengths(*call.target_lengths, "target_lengths", shape.batch, shape.targets);
  }
  if (out.dtype != values.dtype) {
    refuse_type(out_name, ": expected ", dtype_name(values.dtype), " like values, got ", dtype_name(out.dtype));
  }
  check_device(out, out_name, values.device);
  check_target_shape(out, out_name, shape.batched, shape.batch, shape.targets, shape.features);
  place_out(s, out, 0);
  if (valid) {
    if (valid->dtype != DType::kBool || valid->ndim != out.ndim - 1 || valid->shape[valid->ndim - 1] != shape.targets ||
        (shape.batched && valid->shape[0] != shape.batch)) {
      refuse("valid: expected bool of out's shape without its last dimension, got ", valid->describe());
    }
    check_device(*valid, "valid", values.device);
    s.valid = static_cast<bool*>(valid->data);
    s.valid_batch = shape.batched ? valid->strides[0] : 0;
    s.valid_target = valid->strides[target_dim];
  }

  append_segments(s, call.options, prepared.segments);
  check_boundary(call.options, prepared.segments);
  if (prepared.segments.size() > kMaxSegments) {
    refuse("methods: expected at most ", std::to_string(kMaxSegments), " runs of one method, got ",
           std::to_string(prepared.segments.size()));
  }
  prepared.interpolation = make_interpolation(call.target_times, call.target_lengths, shape.batch);
  prepared.interpolation.segments = prepared.segments.data();
  prepared.interpolation.segment_count = static_cast<int32_t>(prepared.segments.size());
}

}  // namespace

ResampleOutputs resample_outputs(const ResampleCall& call) {
  const auto [batched, batch, samples, targets, features] = shape_of(call);
  const auto result_view = [&](DType dtype, auto... last) {
    return batched ? TensorView::contiguous(nullptr, dtype, {batch, targets, last...}, call.values.device)
                   : TensorView::contiguous(nullptr, dtype, {targets, last...}, call.values.device);
  };
  return {result_view(call.values.dtype, features), result_view(DType::kBool)};
}

void resample_trajectories(const ResampleCall& call, CudaStream stream) {
  Prepared prepared;
  prepare(call, call.out, "out", call.valid, prepared);
  if (overlaps(call.out, call.values)) refuse("out: overlaps values");
  if (overlaps(call.out, call.times)) refuse("out: overlaps times");
  if (overlaps(call.out, call.target_times)) refuse("out: overlaps target_times");
  if (call.lengths && overlaps(call.out, *call.lengths)) refuse("out: overlaps lengths");
  if (call.target_lengths && overlaps(call.out, *call.target_lengths)) refuse("out: overlaps target_lengths");
  if (call.out.numel() > 0) check_elements_apart(call.out, "out");
  make_splines(prepared.segments, prepared.shape.batch, call.workspace, call.values.device, stream);
  interpolate(prepared.interpolation, call.values.device, stream);
}

void resample_trajectories_backward(const ResampleCall& call, const ResampleGradients& gradients, CudaStream stream) {
  Prepared prepared;
  prepare(call, gradients.out_gradient, "out_gradient", std::nullopt, prepared);
  const Shape& shape = prepared.shape;
  const std::optional<TensorView>& values_array = gradients.values_gradient;
  SegmentGradient g{};
  g.times = clock_gradient(gradients.times_gradient, "times_gradient", call.times, shape.batch);
  g.targets = clock_gradient(gradients.targets_gradient, "targets_gradient", call.target_times, shape.batch);
  g.values_batch = shape.samples * shape.features;
  g.values_sample = shape.features;
  g.values_feature = 1;
  std::vector<SegmentGradient> segment_gradients;
  int64_t feature = 0;
  for (const Segment& s : prepared.segments) {
    if (values_array) {
      g.values = values_gradient(*values_array, "values_gradient", s, shape.batch, shape.features, call.values.device);
      g.values = static_cast<char*>(g.values) + feature * dtype_size(values_array->dtype);
    }
    segment_gradients.push_back(g);
    feature += s.features;
  }
  interpolate_backward(prepared.interpolation, segment_gradients, call.workspace, call.values.device, stream);
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

void check_times(const TensorView& times, CudaStream stream, const std::optional<TensorView>& lengths) {
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
      index = with_clock(p.clock_dtype, [&](auto clock) { return first_bad_time<decltype(clock)>(p, b); });
    }
  }
  if (index >= 0) {
    refuse("times: expected ascending times without NaN, got NaN or an earlier time at row ", std::to_string(row),
           ", index ", std::to_string(index));
  }
}

}  // namespace robocache
