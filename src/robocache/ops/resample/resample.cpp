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

// `out`, or the gradient with respect to it.
void check_out(const TensorView& out, const char* name, const ResampleShape& shape, const TensorView& values) {
  if (out.dtype != values.dtype) {
    refuse_type(name, ": expected ", dtype_name(values.dtype), " like values, got ", dtype_name(out.dtype));
  }
  check_device(out, name, values.device);
  check_target_shape(out, name, shape.batched, shape.batch, shape.targets, shape.features);
}

}  // namespace

ResampleShape resample_shape(const TensorView& values, const TensorView& times, const TensorView& target_times) {
  const auto [batched, batch, samples, features] = stream_shape(values, times);
  check_clock(target_times, "target_times", "T", batched, batch);
  if (target_times.dtype != times.dtype) {
    refuse_type("target_times: expected ", dtype_name(times.dtype), " like times, got ",
                dtype_name(target_times.dtype));
  }
  return {batched, batch, samples, target_times.shape[target_times.ndim - 1], features};
}

namespace {

// A call, checked: its segments are runs of features of one method, in the features' order.
struct ResampleCall {
  ResampleShape shape;
  std::vector<Segment> segments;
  Interpolation interpolation;
};

// `out` is what the call writes or, named so, the gradient with respect to it; whose memory it is, is not checked.
void prepare(const TensorView& values, const TensorView& times, const TensorView& target_times,
             const ResampleOptions& options, const TensorView& out, const char* out_name,
             const std::optional<TensorView>& lengths, const std::optional<TensorView>& valid,
             const std::optional<TensorView>& target_lengths, ResampleCall& call) {
  const ResampleShape& shape = call.shape = resample_shape(values, times, target_times);
  const int first = shape.batched ? 1 : 0;
  Segment s = stream_segment(values, times, lengths, options);
  check_device(target_times, "target_times", values.device);
  if (target_lengths) {
    check_device(*target_lengths, "target_lengths", values.device);
    check_lengths(*target_lengths, "target_lengths", shape.batch, shape.targets);
  }
  check_out(out, out_name, shape, values);
  place_out(s, out, 0);
  if (valid) {
    if (valid->dtype != DType::kBool || valid->ndim != out.ndim - 1 || valid->shape[valid->ndim - 1] != shape.targets ||
        (shape.batched && valid->shape[0] != shape.batch)) {
      refuse("valid: expected bool of out's shape without its last dimension, got ", valid->describe());
    }
    check_device(*valid, "valid", values.device);
    s.valid = static_cast<bool*>(valid->data);
    s.valid_batch = shape.batched ? valid->strides[0] : 0;
    s.valid_target = valid->strides[first];
  }

  append_segments(s, options, call.segments);
  check_boundary(options, call.segments);
  if (call.segments.size() > kMaxSegments) {
    refuse("methods: expected at most ", std::to_string(kMaxSegments), " runs of one method, got ",
           std::to_string(call.segments.size()));
  }
  call.interpolation = call_on(target_times, target_lengths, shape.batch);
  call.interpolation.segments = call.segments.data();
  call.interpolation.segment_count = static_cast<int32_t>(call.segments.size());
}

}  // namespace

void resample_trajectories(const TensorView& values, const TensorView& times, const TensorView& target_times,
                           const ResampleOptions& options, const TensorView& out, CudaStream stream,
                           const std::optional<TensorView>& lengths, const std::optional<TensorView>& valid,
                           const std::optional<TensorView>& target_lengths,
                           const std::optional<TensorView>& workspace) {
  ResampleCall call;
  prepare(values, times, target_times, options, out, "out", lengths, valid, target_lengths, call);
  if (overlaps(out, values)) refuse("out: overlaps values");
  if (overlaps(out, times)) refuse("out: overlaps times");
  if (overlaps(out, target_times)) refuse("out: overlaps target_times");
  if (lengths && overlaps(out, *lengths)) refuse("out: overlaps lengths");
  if (target_lengths && overlaps(out, *target_lengths)) refuse("out: overlaps target_lengths");
  if (out.numel() > 0) check_elements_apart(out, "out");
  make_splines(call.segments, call.shape.batch, workspace, values.device, stream);
  interpolate(call.interpolation, values.device, stream);
}

void resample_trajectories_backward(const TensorView& values, const TensorView& times, const TensorView& target_times,
                                    const ResampleOptions& options, const TensorView& out_gradient,
                                    const std::optional<TensorView>& of_values,
                                    const std::optional<TensorView>& of_times,
                                    const std::optional<TensorView>& of_targets, CudaStream stream,
                                    const std::optional<TensorView>& lengths,
                                    const std::optional<TensorView>& target_lengths,
                                    const std::optional<TensorView>& workspace) {
  ResampleCall call;
  prepare(values, times, target_times, options, out_gradient, "out_gradient", lengths, std::nullopt, target_lengths,
          call);
  const ResampleShape& shape = call.shape;
  SegmentGradient g{};
  g.times = clock_gradient(of_times, "times_gradient", times, shape.batch);
  g.targets = clock_gradient(of_targets, "targets_gradient", target_times, shape.batch);
  g.values_batch = shape.samples * shape.features;
  g.values_sample = shape.features;
  g.values_feature = 1;
  std::vector<SegmentGradient> gradients;
  int64_t feature = 0;
  for (const Segment& s : call.segments) {
    if (of_values) {
      g.values = values_gradient(*of_values, "values_gradient", s, shape.batch, shape.features, values.device);
      g.values = static_cast<char*>(g.values) + feature * dtype_size(of_values->dtype);
    }
    gradients.push_back(g);
    feature += s.features;
  }
  interpolate_backward(call.interpolation, gradients, workspace, values.device, stream);
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
    refuse("times: expected ascending times without NaN, got one that is not at row ", std::to_string(row), ", index ",
           std::to_string(index));
  }
}

}  // namespace robocache
