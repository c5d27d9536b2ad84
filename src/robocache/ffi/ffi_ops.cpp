#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "robocache/ffi/arguments.hpp"
#include "robocache/ffi/ffi.hpp"
#include "robocache/ops/fuse/fuse.hpp"

namespace robocache::ffi {
namespace {

std::optional<Duration> optional_duration(const Args& args, int i, const char* name) {
  if (args.is_none(i)) return std::nullopt;
  return args.is_integer(i) ? Duration(args.integer(i, name)) : Duration(args.real(i, name));
}

// (start, stop, method) from argument i on; a bound that is None is the end on its side.
FeatureBlock feature_block(const Args& args, int i, int64_t features, const char* name) {
  return {args.is_none(i) ? 0 : args.integer(i, name), args.is_none(i + 1) ? features : args.integer(i + 1, name),
          interpolation_method_from_name(args.string(i + 2, name), name)};
}

// The options that each stream may have for itself, in the order in which Python counts them.
enum class StreamOption {
  kMethod,
  kExtrapolate,
  kCausal,
  kMaxGap,
  kTolerance,
  kBoundary,
  kLengths,
  kOffset,
  kScale,
  kShift,
  kDType,
  kMethods,
};
constexpr const char* kStreamOptions[] = {"method",  "extrapolate", "causal", "max_gap", "tolerance", "bc_type",
                                          "lengths", "offset",      "scale",  "shift",   "dtype",     "methods"};

std::optional<FeatureNumbers> optional_numbers(const Args& args, int i, const char* name) {
  if (args.is_none(i)) return std::nullopt;
  return args.is_tensor(i) ? FeatureNumbers(args.tensor(i, name)) : FeatureNumbers(args.real(i, name));
}

void set_option(FuseStream& stream, std::optional<DType>& dtype, StreamOption option, const Args& args, int i,
                const ArgumentsOf& of) {
  const std::string argument = of(kStreamOptions[static_cast<size_t>(option)]);
  const char* const name = argument.c_str();
  switch (option) {
    case StreamOption::kMethod:
      stream.options.method = interpolation_method_from_name(args.string(i, name), name);
      break;
    case StreamOption::kExtrapolate:
      stream.options.extrapolate = extrapolate_from_name(args.string(i, name), name);
      break;
    case StreamOption::kCausal:
      stream.options.causal = args.boolean(i, name);
      break;
    case StreamOption::kMaxGap:
      stream.options.max_gap = optional_duration(args, i, name);
      break;
    case StreamOption::kTolerance:
      stream.options.tolerance = optional_duration(args, i, name);
      break;
    case StreamOption::kBoundary:
      stream.options.boundary = boundary_from_name(args.string(i, name), name);
      break;
    case StreamOption::kLengths:
      stream.lengths = optional_tensor(args, i, name);
      break;
    case StreamOption::kOffset:
      stream.offset = optional_duration(args, i, name);
      break;
    case StreamOption::kScale:
      stream.scale = optional_numbers(args, i, name);
      break;
    case StreamOption::kShift:
      stream.shift = optional_numbers(args, i, name);
      break;
    case StreamOption::kDType:
      dtype = args.is_none(i) ? std::nullopt : std::optional(dtype_from_name(args.string(i, name), name));
      break;
    case StreamOption::kMethods: {
      const int64_t features = stream.values.ndim > 0 ? stream.values.shape[stream.values.ndim - 1] : 0;
      stream.options.methods.push_back(feature_block(args, i, features, name));
      break;
    }
  }
}

OwnedTensor allocate_fused(DType dtype, Device device, const FuseShape& shape, int64_t last) {
  return shape.batched ? OwnedTensor::allocate(dtype, device, {shape.batch, shape.targets, last})
                       : OwnedTensor::allocate(dtype, device, {shape.targets, last});
}

// What the call and its gradient have in common.
struct FuseArguments {
  TensorView target_times;
  std::optional<TensorView> target_lengths;
  bool separate;
  bool with_valid;
  bool with_age;
  size_t outs;
  std::vector<FuseStream> streams;
  std::vector<std::optional<DType>> dtypes;
  std::vector<TensorView> out;
  int gradients;  // the argument after the outs

  ArgumentsOf of(size_t i) const { return {streams[i].name, static_cast<int64_t>(i)}; }
};

FuseArguments fuse_arguments(const Args& args, bool backward) {
  FuseArguments made;
  const auto count = static_cast<size_t>(args.integer(0, "streams"));
  made.target_times = args.tensor(1, "target_times");
  made.target_lengths = optional_tensor(args, 2, "target_lengths");
  const bool separate = made.separate = args.boolean(3, "output");
  made.with_valid = args.boolean(4, "return_valid");
  made.with_age = args.boolean(5, "return_age");
  const size_t outs = made.outs = static_cast<size_t>(args.integer(6, "out"));
  int at = 7;
  FuseStream shared;
  std::optional<DType> shared_dtype;
  for (int option = 0; option < static_cast<int>(StreamOption::kMethods); ++option) {
    set_option(shared, shared_dtype, static_cast<StreamOption>(option), args, at++, {});
  }

  std::vector<FuseStream>& streams = made.streams;
  streams.assign(count, shared);
  made.dtypes.assign(separate ? count : 1, shared_dtype);
  for (size_t i = 0; i < count; ++i) {
    if (!args.is_none(at)) streams[i].name = args.string(at, "streams");
    try {
      streams[i].values = args.tensor(at + 1, "values");
      streams[i].times = args.tensor(at + 2, "times");
    } catch (const ArgumentTypeError& error) {  // begins with the argument's name
      throw ArgumentTypeError(made.of(i)(error.what()));
    } catch (const ArgumentError& error) {
      throw ArgumentError(made.of(i)(error.what()));
    }
    at += 3;
  }
  made.out.reserve(std::max(outs, made.dtypes.size()));
  for (size_t i = 0; i < outs; ++i) made.out.push_back(args.tensor(at++, "out"));
  made.gradients = at;
  if (backward) at += static_cast<int>(2 * count + 1);
  while (at < args.count()) {
    const auto i = static_cast<size_t>(args.integer(at, "stream"));
    const auto option = static_cast<StreamOption>(args.integer(at + 1, "option"));
    if (option == StreamOption::kDType && !separate) {
      throw ArgumentError("dtype: expected one for all streams, since output is 'concat'");
    }
    set_option(streams[i], made.dtypes[separate ? i : 0], option, args, at + 2, made.of(i));
    at += option == StreamOption::kMethods ? 5 : 3;
  }
  return made;
}

}  // namespace

// (streams, target_times, target_lengths, separate, with valid, with age, outs, each of kStreamOptions but the last for
//  all streams; a name or None, values and times of each stream; each out; (stream, place in kStreamOptions, value) of
//  each option that one stream has for itself, a block of methods as three values)
// -> what is made, in the order out, valid, age: nothing, an array, or Arrays
ROBOCACHE_FFI(fuse_multimodal, args, result) {
  FuseArguments call = fuse_arguments(args, false);
  auto& [target_times, target_lengths, separate, with_valid, with_age, outs, streams, dtypes, out, gradients] = call;
  const FuseShape shape = fuse_shape(streams, target_times);
  const Device device = streams[0].values.device;
  Arrays arrays;
  std::vector<std::optional<OwnedTensor>>& made = arrays.arrays;
  made.reserve(dtypes.size() + 2);
  for (size_t i = 0; i < dtypes.size(); ++i) {
    const TensorView& values = streams[i].values;
    const DType dtype = dtypes[i] ? *dtypes[i] : separate ? values.dtype : common_dtype(streams);
    if (outs == 0) {
      made.push_back(allocate_fused(dtype, device, shape, separate ? values.shape[values.ndim - 1] : shape.features));
      out.push_back(made.back()->view());
    } else if (i < outs && out[i].dtype != dtype) {
      throw ArgumentTypeError((separate ? call.of(i)("out") : "out") + ": expected " + std::string(dtype_name(dtype)) +
                              ", got " + std::string(dtype_name(out[i].dtype)) + "; say so with dtype=");
    }
  }
  std::optional<TensorView> valid;
  std::optional<TensorView> age;
  if (with_valid) {
    made.push_back(allocate_fused(DType::kBool, device, shape, static_cast<int64_t>(streams.size())));
    valid = made.back()->view();
  }
  if (with_age) {
    made.push_back(allocate_fused(target_times.dtype, device, shape, static_cast<int64_t>(streams.size())));
    age = made.back()->view();
  }
  int64_t bytes = 0;
  for (size_t i = 0; i < streams.size(); ++i) {
    bytes += stream_workspace_bytes(streams[i].values, streams[i].options, call.of(i));
  }
  const Workspace workspace(bytes, device);
  fuse_multimodal(streams, target_times, out, current_stream(device), target_lengths, valid, age, workspace.view);
  if (made.size() == 1) result.set(*std::move(made.front()));
  if (made.size() > 1) result.set_object(std::move(arrays));
}

// As above; after each out, which are the gradients with respect to them: gradients of values and times of each stream and
// of target_times, each an array or None, that are added to.
ROBOCACHE_FFI(fuse_multimodal_backward, args, result) {
  const FuseArguments call = fuse_arguments(args, true);
  std::vector<FuseGradient> gradients(call.streams.size());
  int at = call.gradients;
  for (FuseGradient& gradient : gradients) {
    gradient.values = optional_tensor(args, at++, "values_gradient");
    gradient.times = optional_tensor(args, at++, "times_gradient");
  }
  int64_t bytes = 0;
  for (size_t i = 0; i < call.streams.size(); ++i) {
    bytes += stream_gradient_workspace_bytes(call.streams[i].values, call.streams[i].options, call.of(i));
  }
  const Workspace workspace(bytes, call.target_times.device);
  fuse_multimodal_backward(call.streams, call.target_times, call.out, gradients,
                           current_stream(call.target_times.device), optional_tensor(args, at, "targets_gradient"),
                           call.target_lengths, workspace.view);
}

// (Arrays, a tensor of the framework, place) -> the array there, once; nothing where there is none
ROBOCACHE_FFI(array_of, args, result) {
  auto& arrays = args.object<Arrays>(0, "arrays").arrays;
  const auto place = static_cast<size_t>(args.integer(2, "place"));
  if (place >= arrays.size()) throw ArgumentError("place: expected fewer than " + std::to_string(arrays.size()));
  if (arrays[place]) result.set(*std::exchange(arrays[place], std::nullopt));
}

}  // namespace robocache::ffi
