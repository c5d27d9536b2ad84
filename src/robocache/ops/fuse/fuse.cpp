#include "robocache/ops/fuse/fuse.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "robocache/interpolation/interpolate.hpp"
#include "robocache/interpolation/interpolate_backward.hpp"
#include "robocache/interpolation/spline.hpp"

namespace robocache {
namespace {

ArgumentNamer namer_of(std::span<const FuseStream> streams, size_t index) {
  return {streams[index].name, static_cast<int64_t>(index)};
}

void check_out_dtype(DType values, DType out, const ArgumentNamer& full_name) {
  if (out == values || is_floating(out)) return;
  refuse_type(full_name("values"), ": expected an output of ", is_floating(values) ? "" : dtype_name(values),
              is_floating(values) ? "a float dtype" : " or a float dtype", ", got ", dtype_name(out));
}

void set_offset(Segment& s, const std::optional<Duration>& offset, const ArgumentNamer& full_name) {
  bool has_offset = false;
  uint64_t ns = 0;
  set_duration(offset, "offset", s.clock_dtype, has_offset, s.offset, ns, full_name);
  s.offset_ns = static_cast<int64_t>(std::min<uint64_t>(ns, std::numeric_limits<int64_t>::max()));
}

// Sets the scale or the shift of a segment.
void set_numbers(const std::optional<FeatureNumbers>& numbers, double default_number, const Segment& s,
                 const TensorView& values, std::string_view argument, const ArgumentNamer& full_name,
                 PerFeature& result, bool& per_feature) {
  per_feature = numbers && std::holds_alternative<TensorView>(*numbers);
  if (!per_feature) {
    result.all = numbers ? std::get<double>(*numbers) : default_number;
    return;
  }
  const TensorView& array = std::get<TensorView>(*numbers);
  const DType work = works_in_double(s) ? DType::kFloat64 : DType::kFloat32;
  if (array.dtype != work) {
    refuse_type(full_name(argument), ": expected ", dtype_name(work), ", the work type of ", dtype_name(values.dtype),
                " values, got ", dtype_name(array.dtype));
  }
  if (array.ndim != 1 || array.shape[0] != s.features || !array.is_contiguous()) {
    refuse(full_name(argument), ": expected a number or contiguous [", std::to_string(s.features), "], got ",
           shape_string(array));
  }
  check_device(array, argument, values.device, full_name);
  result.array = array.data;
}

void set_scale_and_shift(Segment& s, const FuseStream& stream, const ArgumentNamer& full_name) {
  s.scaled = stream.scale || stream.shift;
  if (!s.scaled) return;
  if (!is_floating(s.out_dtype)) {
    refuse_type(full_name(stream.scale ? "scale" : "shift"), ": expected an output of a float dtype, got ",
                dtype_name(s.out_dtype));
  }
  set_numbers(stream.scale, 1, s, stream.values, "scale", full_name, s.scale, s.scale_per_feature);
  set_numbers(stream.shift, 0, s, stream.values, "shift", full_name, s.shift, s.shift_per_feature);
}

// Refuses an output that overlaps an input or whose own elements overlap.
void check_memory(const TensorView& out, std::string_view argument, const ArgumentNamer& full_name,
                  std::span<const FuseStream> streams, const TensorView& target_times,
                  const std::optional<TensorView>& target_lengths) {
  if (out.numel() == 0) return;  // without elements, no memory is touched
  check_elements_apart(out, argument, full_name);
  if (overlaps(out, target_times)) refuse(full_name(argument), ": overlaps target_times");
  if (target_lengths && overlaps(out, *target_lengths)) refuse(full_name(argument), ": overlaps target_lengths");
  for (size_t i = 0; i < streams.size(); ++i) {
    const FuseStream& stream = streams[i];
    const auto check = [&](const TensorView& input, const char* name) {
      if (overlaps(out, input)) refuse(full_name(argument), ": overlaps ", namer_of(streams, i)(name));
    };
    const auto check_numbers = [&](const std::optional<FeatureNumbers>& numbers, const char* name) {
      if (numbers && std::holds_alternative<TensorView>(*numbers)) check(std::get<TensorView>(*numbers), name);
    };
    check(stream.values, "values");
    check(stream.times, "times");
    if (stream.lengths) check(*stream.lengths, "lengths");
    check_numbers(stream.scale, "scale");
    check_numbers(stream.shift, "shift");
  }
}

struct FuseShape {
  bool batched;
  int64_t batch;
  int64_t targets;
  int64_t features;  // sum over all streams
};

FuseShape fuse_shape(std::span<const FuseStream> streams, const TensorView& target_times) {
  if (streams.empty()) refuse("streams: expected at least one, got none");
  FuseShape shape{};
  for (size_t i = 0; i < streams.size(); ++i) {
    const StreamShape stream_size = stream_shape(streams[i].values, streams[i].times, namer_of(streams, i));
    if (i == 0) {
      shape.batched = stream_size.batched;
      shape.batch = stream_size.batch;
    } else if (stream_size.batched != shape.batched || stream_size.batch != shape.batch) {
      refuse(namer_of(streams, i)("values"), ": expected ",
             shape.batched ? "[" + std::to_string(shape.batch) + ", S, D]" : "[S, D]", " like ",
             namer_of(streams, 0)("values"), ", got ", shape_string(streams[i].values));
    }
    shape.features += stream_size.features;
  }
  check_clock(target_times, "target_times", "T", shape.batched, shape.batch);
  shape.targets = target_times.shape[target_times.ndim - 1];
  return shape;
}

DType common_dtype(std::span<const FuseStream> streams) {
  if (streams.empty()) refuse("streams: expected at least one, got none");
  const DType first = streams[0].values.dtype;
  for (size_t i = 1; i < streams.size(); ++i) {
    const DType other = streams[i].values.dtype;
    if (other != first) {
      refuse_type(
          "dtype: expected one dtype, or an explicit dtype, got streams that differ: ", namer_of(streams, 0)("values"),
          " is ", dtype_name(first), ", ", namer_of(streams, i)("values"), " is ", dtype_name(other));
    }
  }
  return first;
}

}  // namespace

FuseOutputs fuse_outputs(std::span<const FuseStream> streams, const TensorView& target_times, bool separate) {
  const FuseShape shape = fuse_shape(streams, target_times);
  const auto result_view = [&](DType dtype, int64_t last) {
    const Device device = streams[0].values.device;
    return shape.batched ? TensorView::contiguous(nullptr, dtype, {shape.batch, shape.targets, last}, device)
                         : TensorView::contiguous(nullptr, dtype, {shape.targets, last}, device);
  };
  const auto count = static_cast<int64_t>(streams.size());
  FuseOutputs outputs{{}, result_view(DType::kBool, count), result_view(target_times.dtype, count)};
  if (separate) {
    for (const FuseStream& stream : streams) {
      const TensorView& values = stream.values;
      outputs.out.push_back(result_view(stream.dtype.value_or(values.dtype), values.shape[values.ndim - 1]));
    }
  } else {
    outputs.out.push_back(result_view(streams[0].dtype ? *streams[0].dtype : common_dtype(streams), shape.features));
  }
  return outputs;
}

namespace {

// A checked call. Each stream's segments follow those of the previous stream.
struct FuseCall {
  FuseShape shape;
  std::vector<Segment> segments;
  std::vector<size_t> stream_of;  // for each segment the index of its stream
  Interpolation interpolation;
};

// Checks the arguments, except for overlaps, and fills `call`. `out` is the output or its gradient; errors call it
// `out_name`.
void prepare(std::span<const FuseStream> streams, const TensorView& target_times, std::span<const TensorView> out,
             const char* out_name, const std::optional<TensorView>& target_lengths,
             const std::optional<TensorView>& valid, const std::optional<TensorView>& age, FuseCall& call) {
  const FuseShape& shape = call.shape = fuse_shape(streams, target_times);
  const Device device = streams[0].values.device;
  const auto count = static_cast<int64_t>(streams.size());
  const auto first_values_name = [&] { return namer_of(streams, 0)("values"); };
  const auto check_same_device = [&](const TensorView& tensor, std::string_view argument,
                                     const ArgumentNamer& full_name = {}) {
    if (tensor.device != device) check_device(tensor, argument, device, full_name, first_values_name());
  };
  check_same_device(target_times, "target_times");
  if (target_lengths) {
    check_same_device(*target_lengths, "target_lengths");
    check_lengths(*target_lengths, "target_lengths", shape.batch, shape.targets);
  }
  if (out.size() != 1 && out.size() != streams.size()) {
    refuse(out_name, ": expected one array, or one for each of the ", std::to_string(streams.size()), " streams, got ",
           std::to_string(out.size()));
  }
  const bool is_concatenated = out.size() == 1;
  const auto out_of = [&](size_t i) { return is_concatenated ? ArgumentNamer{} : namer_of(streams, i); };
  for (size_t i = 0; i < out.size(); ++i) {
    check_same_device(out[i], out_name, out_of(i));
    const int64_t features = is_concatenated ? shape.features : streams[i].values.shape[streams[i].values.ndim - 1];
    check_target_shape(out[i], out_name, shape.batched, shape.batch, shape.targets, features, out_of(i));
  }
  if (valid) {
    if (valid->dtype != DType::kBool) refuse_type("valid: expected bool, got ", dtype_name(valid->dtype));
    check_same_device(*valid, "valid");
    check_target_shape(*valid, "valid", shape.batched, shape.batch, shape.targets, count);
  }
  if (age) {
    if (age->dtype != target_times.dtype) {
      refuse_type("age: expected ", dtype_name(target_times.dtype), " like target_times, got ", dtype_name(age->dtype));
    }
    check_same_device(*age, "age");
    check_target_shape(*age, "age", shape.batched, shape.batch, shape.targets, count);
  }

  const int target_dim = shape.batched ? 1 : 0;
  std::vector<Segment>& segments = call.segments;
  segments.reserve(streams.size());
  int64_t column = 0;
  for (size_t i = 0; i < streams.size(); ++i) {
    const FuseStream& from = streams[i];
    const ArgumentNamer full_name = namer_of(streams, i);
    check_same_device(from.values, "values", full_name);
    Segment s = stream_segment(from.values, from.times, from.lengths, from.options, full_name);
    const TensorView& to = is_concatenated ? out[0] : out[i];
    check_out_dtype(from.values.dtype, to.dtype, full_name);
    place_out(s, to, is_concatenated ? column : 0);
    column += s.features;
    if (valid) {
      s.valid = static_cast<bool*>(valid->data) + static_cast<int64_t>(i) * valid->strides[target_dim + 1];
      s.valid_batch = shape.batched ? valid->strides[0] : 0;
      s.valid_target = valid->strides[target_dim];
    }
    if (age) {
      s.age = static_cast<char*>(age->data) +
              static_cast<int64_t>(i) * age->strides[target_dim + 1] * dtype_size(age->dtype);
      s.age_batch = shape.batched ? age->strides[0] : 0;
      s.age_target = age->strides[target_dim];
    }
    set_offset(s, from.offset, full_name);
    set_scale_and_shift(s, from, full_name);
    append_segments(s, from.options, segments);
    call.stream_of.resize(segments.size(), i);
  }
  for (size_t i = 0; i < streams.size(); ++i) check_boundary(streams[i].options, segments, namer_of(streams, i));
  if (segments.size() > kMaxSegments) {
    refuse("streams: expected at most ", std::to_string(kMaxSegments), " runs of features of one method, got ",
           std::to_string(segments.size()));
  }
  call.interpolation = make_interpolation(target_times, target_lengths, shape.batch);
  call.interpolation.segments = segments.data();
  call.interpolation.segment_count = static_cast<int32_t>(segments.size());
}

}  // namespace

void fuse_multimodal(std::span<const FuseStream> streams, const TensorView& target_times,
                     std::span<const TensorView> out, CudaStream stream,
                     const std::optional<TensorView>& target_lengths, const std::optional<TensorView>& valid,
                     const std::optional<TensorView>& age, const std::optional<TensorView>& workspace) {
  FuseCall call;
  prepare(streams, target_times, out, "out", target_lengths, valid, age, call);
  const auto out_of = [&](size_t i) { return out.size() == 1 ? ArgumentNamer{} : namer_of(streams, i); };
  for (size_t i = 0; i < out.size(); ++i) {
    check_memory(out[i], "out", out_of(i), streams, target_times, target_lengths);
    for (size_t j = 0; j < i; ++j) {
      if (overlaps(out[i], out[j])) refuse(out_of(i)("out"), ": overlaps ", out_of(j)("out"));
    }
  }
  make_splines(call.segments, call.shape.batch, workspace, streams[0].values.device, stream);
  interpolate(call.interpolation, streams[0].values.device, stream);
}

void fuse_multimodal_backward(std::span<const FuseStream> streams, const TensorView& target_times,
                              std::span<const TensorView> out_gradient, std::span<const FuseGradient> gradients,
                              CudaStream stream, const std::optional<TensorView>& targets_gradient,
                              const std::optional<TensorView>& target_lengths,
                              const std::optional<TensorView>& workspace) {
  FuseCall call;
  prepare(streams, target_times, out_gradient, "out_gradient", target_lengths, std::nullopt, std::nullopt, call);
  if (gradients.size() != streams.size()) {
    refuse("gradients: expected one for each of the ", std::to_string(streams.size()), " streams, got ",
           std::to_string(gradients.size()));
  }
  const int64_t batch = call.shape.batch;
  double* const shared_targets_gradient = clock_gradient(targets_gradient, "targets_gradient", target_times, batch);
  std::vector<SegmentGradient> segment_gradients;
  int64_t feature = 0;  // index of the segment's first feature in its stream
  for (size_t i = 0; i < call.segments.size(); ++i) {
    const Segment& s = call.segments[i];
    const size_t index = call.stream_of[i];
    const FuseStream& from = streams[index];
    const ArgumentNamer full_name = namer_of(streams, index);
    const int64_t features = from.values.shape[from.values.ndim - 1];
    if (i == 0 || call.stream_of[i - 1] != index) feature = 0;
    SegmentGradient g{};
    if (gradients[index].values) {
      g.values = values_gradient(*gradients[index].values, "values_gradient", s, batch, features, from.values.device,
                                 full_name);
      g.values = static_cast<char*>(g.values) + feature * dtype_size(gradients[index].values->dtype);
    }
    g.values_batch = s.samples * features;
    g.values_sample = features;
    g.values_feature = 1;
    g.times = clock_gradient(gradients[index].times, "times_gradient", from.times, batch, full_name);
    g.targets = shared_targets_gradient;
    segment_gradients.push_back(g);
    feature += s.features;
  }
  interpolate_backward(call.interpolation, segment_gradients, workspace, streams[0].values.device, stream);
}

}  // namespace robocache
