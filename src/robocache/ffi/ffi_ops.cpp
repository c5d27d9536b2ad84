#include <optional>
#include <vector>

#include "robocache/ffi/ffi.hpp"
#include "robocache/ops/resample/resample.hpp"

namespace robocache::ffi {
namespace {

std::optional<TensorView> optional_tensor(const Args& args, int i, const char* name) {
  return args.is_none(i) ? std::nullopt : std::optional(args.tensor(i, name));
}

std::optional<Duration> optional_duration(const Args& args, int i, const char* name) {
  if (args.is_none(i)) return std::nullopt;
  return args.is_integer(i) ? Duration(args.integer(i, name)) : Duration(args.real(i, name));
}

// Triples (start, stop, method) from argument i on; a bound that is None is the end on its side.
std::vector<FeatureBlock> feature_blocks_from(const Args& args, int i, int64_t features) {
  std::vector<FeatureBlock> blocks;
  for (; i + 2 < args.count(); i += 3) {
    blocks.push_back({args.is_none(i) ? 0 : args.integer(i, "methods"),
                      args.is_none(i + 1) ? features : args.integer(i + 1, "methods"),
                      interpolation_method_from_name(args.string(i + 2, "methods"), "methods")});
  }
  return blocks;
}

// Arguments 3 to 7 and 12 of a call and of its gradient, and the blocks from `blocks` on.
ResampleOptions resample_options(const Args& args, const TensorView& values, int blocks) {
  ResampleOptions options;
  options.method = interpolation_method_from_name(args.string(3, "method"));
  options.extrapolate = extrapolate_from_name(args.string(4, "extrapolate"));
  options.causal = args.boolean(5, "causal");
  options.max_gap = optional_duration(args, 6, "max_gap");
  options.tolerance = optional_duration(args, 7, "tolerance");
  options.boundary = boundary_from_name(args.string(12, "bc_type"));
  options.methods = feature_blocks_from(args, blocks, values.ndim > 0 ? values.shape[values.ndim - 1] : 0);
  return options;
}

}  // namespace

// (values, times, target_times, method, extrapolate, causal, max_gap, tolerance, lengths, out, valid, target_lengths,
// bc_type, [start, stop, method]...) -> out; allocated where `out` is None.
ROBOCACHE_FFI(resample_trajectories, args, result) {
  const TensorView values = args.tensor(0, "values");
  const TensorView times = args.tensor(1, "times");
  const TensorView target_times = args.tensor(2, "target_times");
  const ResampleOptions options = resample_options(args, values, 13);
  const auto lengths = optional_tensor(args, 8, "lengths");
  const auto out = optional_tensor(args, 9, "out");
  const auto valid = optional_tensor(args, 10, "valid");
  const auto target_lengths = optional_tensor(args, 11, "target_lengths");
  const CudaStream stream = current_stream(values.device);
  if (out) {
    resample_trajectories(values, times, target_times, options, *out, lengths, valid, target_lengths, stream);
    return;
  }
  const ResampleShape shape = resample_shape(values, times, target_times);
  OwnedTensor made =
      shape.batched ? OwnedTensor::allocate(values.dtype, values.device, {shape.batch, shape.targets, shape.features})
                    : OwnedTensor::allocate(values.dtype, values.device, {shape.targets, shape.features});
  resample_trajectories(values, times, target_times, options, made.view(), lengths, valid, target_lengths, stream);
  result.set(std::move(made));
}

// (values, times, target_times, method, extrapolate, causal, max_gap, tolerance, lengths, out_gradient, values_gradient,
// target_lengths, bc_type, times_gradient, targets_gradient, [start, stop, method]...): adds to the three gradients that
// are not None.
ROBOCACHE_FFI(resample_trajectories_backward, args, result) {
  const TensorView values = args.tensor(0, "values");
  resample_trajectories_backward(
      values, args.tensor(1, "times"), args.tensor(2, "target_times"), resample_options(args, values, 15),
      args.tensor(9, "out_gradient"), optional_tensor(args, 10, "values_gradient"),
      optional_tensor(args, 13, "times_gradient"), optional_tensor(args, 14, "targets_gradient"),
      optional_tensor(args, 8, "lengths"), optional_tensor(args, 11, "target_lengths"), current_stream(values.device));
}

// (values, times, target_times) -> an array for `valid`
ROBOCACHE_FFI(resample_valid, args, result) {
  const TensorView values = args.tensor(0, "values");
  const ResampleShape shape = resample_shape(values, args.tensor(1, "times"), args.tensor(2, "target_times"));
  result.set(shape.batched ? OwnedTensor::allocate(DType::kBool, values.device, {shape.batch, shape.targets})
                           : OwnedTensor::allocate(DType::kBool, values.device, {shape.targets}));
}

// (times, lengths)
ROBOCACHE_FFI(check_times, args, result) {
  const TensorView times = args.tensor(0, "times");
  check_times(times, optional_tensor(args, 1, "lengths"), current_stream(times.device));
}

}  // namespace robocache::ffi
