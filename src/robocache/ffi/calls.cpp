// Runs every operation by the fields of its call, on the caller's stream. The operation itself checks its arguments.
#include <concepts>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "robocache/core/fields.hpp"
#include "robocache/ffi/arguments.hpp"
#include "robocache/ffi/call_arguments.hpp"
#include "robocache/ffi/ffi.hpp"
#include "robocache/ops/fuse/fuse.hpp"
#include "robocache/ops/resample/resample.hpp"
#include "robocache/points/integrate_tsdf/integrate_tsdf.hpp"
#include "robocache/points/voxelize/voxelize.hpp"
#include "robocache/points/voxelize_sparse/voxel_downsample.hpp"
#include "robocache/points/voxelize_sparse/voxelize_sparse.hpp"

namespace robocache::ffi {
namespace {

using json = nlohmann::ordered_json;

// ---- Description ----

template <class T>
std::string type_word() {
  if constexpr (kIsOptional<T>) {
    return type_word<typename T::value_type>() + "?";
  } else if constexpr (kIsVector<T>) {
    return type_word<typename T::value_type>() + "[]";
  } else if constexpr (kIsArray<T>) {
    return type_word<typename T::value_type>() + "[" + std::to_string(std::tuple_size_v<T>) + "]";
  } else if constexpr (std::same_as<T, std::string_view>) {
    return "str?";
  } else if constexpr (HasNames<T> || std::same_as<T, DType>) {
    return "str";
  } else if constexpr (std::same_as<T, TensorView>) {
    return "tensor";
  } else if constexpr (std::same_as<T, bool>) {
    return "bool";
  } else if constexpr (std::same_as<T, int64_t>) {
    return "int";
  } else if constexpr (std::same_as<T, double>) {
    return "float";
  } else if constexpr (std::same_as<T, std::variant<int64_t, double>>) {
    return "number";
  } else if constexpr (std::same_as<T, FeatureNumbers>) {
    return "numbers";
  } else {
    static_assert(std::same_as<T, FeatureBlock>);
    return "block";
  }
}

template <class T>
json default_of(const T& value) {
  if constexpr (kIsOptional<T>) {
    return value ? default_of(*value) : json();
  } else if constexpr (kIsVector<T> || kIsArray<T>) {
    json list = json::array();
    for (const auto& element : value) list.push_back(default_of(element));
    return list;
  } else if constexpr (HasNames<T>) {
    return std::string(name_of(value));
  } else if constexpr (std::is_arithmetic_v<T>) {
    return value;
  } else if constexpr (std::same_as<T, std::variant<int64_t, double>>) {
    return std::visit([](auto number) { return json(number); }, value);
  } else {
    return nullptr;  // the type has no default
  }
}

struct Describe {
  json& fields;
  const char* suffix = "";  // of the types: "[]" within a list

  template <class T>
  void operator()(const char* name, const T& value) const {
    if constexpr (HasFields<T>) {
      for_each_field(value, *this);
    } else if constexpr (std::same_as<T, std::vector<FuseStream>>) {
      const FuseStream stream;
      for_each_field(stream, Describe{fields, "[]"});
    } else {
      fields.push_back({name, type_word<T>() + suffix, default_of(value)});
    }
  }
};

template <class Call>
std::string fields_json() {
  json fields = json::array();
  const Call call;
  for_each_field(call, Describe{fields});
  return fields.dump();
}

// ---- Calls ----

struct FuseCall {
  std::vector<FuseStream> streams;
  TensorView target_times;
  std::optional<TensorView> target_lengths;

  static constexpr auto fields() {
    return std::tuple(Field{"streams", &FuseCall::streams}, Field{"target_times", &FuseCall::target_times},
                      Field{"target_lengths", &FuseCall::target_lengths});
  }
};

template <class Options>
struct PointsCall {
  PointArguments arguments;
  Options options;

  static constexpr auto fields() {
    return std::tuple(Field{"arguments", &PointsCall::arguments}, Field{"options", &PointsCall::options});
  }
};
using VoxelizeCall = PointsCall<VoxelizeOptions>;
using SparseCall = PointsCall<SparseOptions>;

struct DownsampleCall {
  TensorView points;
  std::optional<TensorView> features;
  DownsampleOptions options;

  static constexpr auto fields() {
    return std::tuple(Field{"points", &DownsampleCall::points}, Field{"features", &DownsampleCall::features},
                      Field{"options", &DownsampleCall::options});
  }
};

struct TsdfCall {
  std::optional<TensorView> points;
  std::optional<TensorView> depth;
  TensorView T_world_sensor;
  std::optional<TensorView> intrinsics;
  TsdfOptions options;

  static constexpr auto fields() {
    using T = TsdfCall;
    return std::tuple(Field{"points", &T::points}, Field{"depth", &T::depth},
                      Field{"T_world_sensor", &T::T_world_sensor}, Field{"intrinsics", &T::intrinsics},
                      Field{"options", &T::options});
  }
};

}  // namespace

// (operation) -> JSON: [name, type, default] of each of its arguments, in order
ROBOCACHE_FFI(fields_of, args, result) {
  const std::string_view operation = args.string(0, "operation");
  constexpr std::pair<std::string_view, std::string (*)()> kCalls[] = {
      {"resample_trajectories", fields_json<ResampleCall>}, {"fuse_multimodal", fields_json<FuseCall>},
      {"voxelize_pointcloud", fields_json<VoxelizeCall>},   {"voxelize_sparse", fields_json<SparseCall>},
      {"voxel_downsample", fields_json<DownsampleCall>},    {"integrate_tsdf", fields_json<TsdfCall>}};
  for (const auto& [name, describe] : kCalls) {
    if (name == operation) return result.set(std::string_view(describe()));
  }
  throw ArgumentError("operation: expected one of the library's, got '", operation, "'");
}

// ---- Operations ----
// An operation takes the fields of its call, the number of results, and each result or None. A gradient takes the fields of the
// call and those of its gradients, and adds to them.

ROBOCACHE_FFI(resample_trajectories, args, result) {
  Reader reader(args);
  auto call = reader.read<ResampleCall>("call");
  Results results(args, reader);
  const ResampleOutputs outputs = resample_outputs(call);
  call.out = results.next(outputs.out).value();
  call.valid = results.next(outputs.valid);
  const Workspace workspace(stream_workspace_bytes(call.values, call.options), call.values.device);
  call.workspace = workspace.view;
  resample_trajectories(call, current_stream(call.values.device));
  results.give(result);
}

ROBOCACHE_FFI(resample_trajectories_backward, args, result) {
  Reader reader(args);
  auto call = reader.read<ResampleCall>("call");
  const auto out_gradients = reader.read<std::vector<TensorView>>("out_gradient");
  const auto gradients = reader.read<std::vector<std::optional<TensorView>>>("gradients");
  const Workspace workspace(stream_gradient_workspace_bytes(call.values, call.options), call.values.device);
  call.workspace = workspace.view;
  resample_trajectories_backward(call, {out_gradients.at(0), gradients.at(0), gradients.at(1), gradients.at(2)},
                                 current_stream(call.values.device));
}

// Results: an out or a list of outs, valid, age.
ROBOCACHE_FFI(fuse_multimodal, args, result) {
  Reader reader(args);
  const auto call = reader.read<FuseCall>("call");
  const std::vector<FuseStream>& streams = call.streams;
  Results results(args, reader);
  const FuseOutputs outputs = fuse_outputs(streams, call.target_times, results.count() != 3);
  std::vector<TensorView> out;
  for (size_t i = 0; i < outputs.out.size(); ++i) {
    const DType dtype = outputs.out[i].dtype;
    const TensorView& out_array = out.emplace_back(results.next(outputs.out[i]).value());
    if (out_array.dtype != dtype) {
      const ArgumentNamer argument_name{streams[i].name, outputs.out.size() > 1 ? static_cast<int64_t>(i) : -1};
      refuse_type(argument_name("out"), ": expected ", dtype_name(dtype), ", got ", dtype_name(out_array.dtype),
                  "; dtype= changes it");
    }
  }
  const auto valid = results.next(outputs.valid);
  const auto age = results.next(outputs.age);
  int64_t bytes = 0;
  for (size_t i = 0; i < streams.size(); ++i) {
    bytes += stream_workspace_bytes(streams[i].values, streams[i].options, {streams[i].name, static_cast<int64_t>(i)});
  }
  const Device device = streams[0].values.device;
  const Workspace workspace(bytes, device);
  fuse_multimodal(streams, call.target_times, out, current_stream(device), call.target_lengths, valid, age,
                  workspace.view);
  results.give(result);
}

// Gradients: of all values, of all times, of target_times.
ROBOCACHE_FFI(fuse_multimodal_backward, args, result) {
  Reader reader(args);
  const auto call = reader.read<FuseCall>("call");
  const auto out_gradients = reader.read<std::vector<TensorView>>("out_gradient");
  const auto gradients = reader.read<std::vector<std::optional<TensorView>>>("gradients");
  const size_t count = call.streams.size();
  std::vector<FuseGradient> stream_gradients(count);
  int64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    const FuseStream& stream = call.streams[i];
    stream_gradients[i] = {gradients.at(i), gradients.at(count + i)};
    bytes += stream_gradient_workspace_bytes(stream.values, stream.options, {stream.name, static_cast<int64_t>(i)});
  }
  const Workspace workspace(bytes, call.target_times.device);
  fuse_multimodal_backward(call.streams, call.target_times, out_gradients, stream_gradients,
                           current_stream(call.target_times.device), gradients.at(2 * count), call.target_lengths,
                           workspace.view);
}

// Results: an out for each mode, dropped.
ROBOCACHE_FFI(voxelize_pointcloud, args, result) {
  Reader reader(args);
  const auto [arguments, options] = reader.read<VoxelizeCall>("call");
  Results results(args, reader);
  const Device device = arguments.points.device;
  std::vector<TensorView> outs;
  for (const TensorView& output : voxelize_outputs(arguments, options)) outs.push_back(results.next(output).value());
  const auto dropped = results.next(voxelize_dropped(arguments));
  const Workspace workspace(voxelize_workspace_bytes(arguments, options), device);
  voxelize_pointcloud(arguments, options, outs, current_stream(device), dropped, workspace.view);
  results.give(result);
}

// Takes the gradient of one mode, and from the forward call the counts (mean), the out (min, max) or None.
ROBOCACHE_FFI(voxelize_pointcloud_backward, args, result) {
  Reader reader(args);
  const auto [arguments, options] = reader.read<VoxelizeCall>("call");
  const auto out_gradients = reader.read<std::vector<TensorView>>("out_gradient");
  const auto gradients = reader.read<std::vector<TensorView>>("gradients");
  const auto forward = reader.read<std::optional<TensorView>>("forward");
  const Device device = arguments.points.device;
  const Workspace workspace(voxelize_gradient_workspace_bytes(arguments, options), device);
  voxelize_pointcloud_backward(arguments, options, out_gradients.at(0), forward, gradients.at(0),
                               current_stream(device), workspace.view);
}

// (mode, the features' dtype or None) -> the dtype of its out
ROBOCACHE_FFI(voxel_mode_dtype, args, result) {
  Reader reader(args);
  const auto mode = reader.read<VoxelMode>("mode");
  result.set(dtype_name(voxel_mode_dtype(mode, reader.read<std::optional<DType>>("features"))));
}

// Results: coords, features, counts, point_to_voxel, dropped; with a capacity num_voxels; with a reduce and
// max_points_per_voxel kept; without a reduce rows_of_voxel.
ROBOCACHE_FFI(voxelize_sparse, args, result) {
  Reader reader(args);
  const auto [arguments, options] = reader.read<SparseCall>("call");
  Results results(args, reader);
  const Device device = arguments.points.device;
  const SparseVoxels voxels = voxelize_sparse(arguments.points, arguments.features, options, results.allocate(device),
                                              current_stream(device), arguments.lengths, arguments.batch_offsets);
  for (const std::optional<TensorView>& view :
       {std::optional(voxels.coords), std::optional(voxels.features), std::optional(voxels.counts),
        std::optional(voxels.point_to_voxel), std::optional(voxels.dropped), voxels.num_voxels,
        std::optional(voxels.kept), voxels.rows_of_voxel}) {
    results.set_next(view);
  }
  results.give(result);
}

// Results: points; features if there are any; with a centroid counts and point_to_voxel, else the row of each point.
ROBOCACHE_FFI(voxel_downsample, args, result) {
  Reader reader(args);
  const auto [points, features, options] = reader.read<DownsampleCall>("call");
  Results results(args, reader);
  const Downsampled downsampled =
      voxel_downsample(points, features, options, results.allocate(points.device), current_stream(points.device));
  for (const std::optional<TensorView>& view :
       {std::optional(downsampled.points), downsampled.features, downsampled.counts,
        std::optional(downsampled.point_to_voxel), downsampled.row}) {
    results.set_next(view);
  }
  results.give(result);
}

// Outputs: grid and weights, which the caller gives.
ROBOCACHE_FFI(integrate_tsdf, args, result) {
  Reader reader(args);
  const auto call = reader.read<TsdfCall>("call");
  if (reader.read<int64_t>("results") != 2) throw ArgumentTypeError("grid: expected grid and weights");
  const auto grid = reader.read<TensorView>("grid");
  const auto weights = reader.read<TensorView>("weights");
  const std::optional<TensorView>& measured = call.intrinsics ? call.depth : call.points;
  if (!measured)
    throw ArgumentTypeError(call.intrinsics ? "depth: expected an array, got none"
                                            : "points: expected an array, got none");
  const Workspace workspace(tsdf_workspace_bytes(grid, *measured, call.T_world_sensor, call.intrinsics), grid.device);
  integrate_tsdf(grid, weights, *measured, call.T_world_sensor, call.intrinsics, call.options,
                 current_stream(grid.device), workspace.view);
}

// (Arrays, a tensor of the framework, index) -> the array at the index, once; None if there is none
ROBOCACHE_FFI(array_of, args, result) {
  auto& arrays = args.object<Arrays>(0, "arrays").arrays;
  const auto index = static_cast<size_t>(args.integer(2, "index"));
  if (index >= arrays.size()) throw ArgumentError("index: expected fewer than ", arrays.size());
  if (arrays[index]) result.set(*std::exchange(arrays[index], std::nullopt));
}

// (times, lengths)
ROBOCACHE_FFI(check_times, args, result) {
  const TensorView times = args.tensor(0, "times");
  check_times(times, current_stream(times.device), optional_tensor(args, 1, "lengths"));
}

}  // namespace robocache::ffi
