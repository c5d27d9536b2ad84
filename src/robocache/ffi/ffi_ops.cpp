#include <optional>

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

// Arguments 3 to 7 of a call and of its gradient.
ResampleOptions resample_options(const Args& args) {
  ResampleOptions options;
  options.method = interpolation_method_from_name(args.string(3, "method"));
  options.extrapolate = extrapolate_from_name(args.string(4, "extrapolate"));
  options.causal = args.boolean(5, "causal");
  options.max_gap = optional_duration(args, 6, "max_gap");
  options.tolerance = optional_duration(args, 7, "tolerance");
  return options;
}

}  // namespace

// (values, times, target_times, method, extrapolate, causal, max_gap, tolerance, lengths, out, valid) -> out; allocated
// where `out` is None.
ROBOCACHE_FFI(resample_trajectories, args, result) {
  const TensorView values = args.tensor(0, "values");
  const TensorView times = args.tensor(1, "times");
  const TensorView target_times = args.tensor(2, "target_times");
  const ResampleOptions options = resample_options(args);
  const auto lengths = optional_tensor(args, 8, "lengths");
  const auto out = optional_tensor(args, 9, "out");
  const auto valid = optional_tensor(args, 10, "valid");
  const CudaStream stream = current_stream(values.device);
  if (out) {
    resample_trajectories(values, times, target_times, options, *out, lengths, valid, stream);
    return;
  }
  const ResampleShape shape = resample_shape(values, times, target_times);
  OwnedTensor made =
      shape.batched ? OwnedTensor::allocate(values.dtype, values.device, {shape.batch, shape.targets, shape.features})
                    : OwnedTensor::allocate(values.dtype, values.device, {shape.targets, shape.features});
  resample_trajectories(values, times, target_times, options, made.view(), lengths, valid, stream);
  result.set(std::move(made));
}

// (values, times, target_times, method, extrapolate, causal, max_gap, tolerance, lengths, out_gradient, values_gradient,
// times_gradient, targets_gradient): adds to the last three, each an array or None.
ROBOCACHE_FFI(resample_trajectories_backward, args, result) {
  const TensorView values = args.tensor(0, "values");
  resample_trajectories_backward(
      values, args.tensor(1, "times"), args.tensor(2, "target_times"), resample_options(args),
      args.tensor(9, "out_gradient"), optional_tensor(args, 10, "values_gradient"),
      optional_tensor(args, 11, "times_gradient"), optional_tensor(args, 12, "targets_gradient"),
      optional_tensor(args, 8, "lengths"), current_stream(values.device));
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
