#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "robocache/batch/loader.hpp"
#include "robocache/ffi/arguments.hpp"
#include "robocache/ffi/dataset_handle.hpp"
#include "robocache/ffi/ffi.hpp"

namespace robocache::ffi {
namespace {

struct LoaderHandle {
  static constexpr const char* kTypeKey = "robocache.Loader";
  std::shared_ptr<const Loader> loader;
};

// One batch, alive as long as Python holds it or an array of it.
struct BatchHandle {
  static constexpr const char* kTypeKey = "robocache.Batch";
  std::shared_ptr<const Loader> loader;
  std::shared_ptr<const OwnedTensor> memory;
  int64_t step;
};

// Options on their way to a loader.
struct LoaderOptionsHandle {
  static constexpr const char* kTypeKey = "robocache.LoaderOptions";
  LoaderOptions options;
};

// A dense array that Python made for the call.
template <class T>
std::vector<T> numbers(const Args& args, int i, const char* name) {
  const TensorView array = args.tensor(i, name);
  const T* const first = static_cast<const T*>(array.data);
  return {first, first + array.numel()};
}

// What a call says of a stream, by the argument's name and the stream's.
std::string of_stream(const char* argument, std::string_view stream) {
  return std::string(argument) + "['" + std::string(stream) + "']";
}

}  // namespace

// (batch_size, anchor, anchor_hz, int64 episodes, snap_s, shuffle, drop_last, device, rate_hz, history, horizon, method,
// normalize, max_gap_s, dtype) -> options; None is what is left out
ROBOCACHE_FFI(loader_options, args, result) {
  LoaderOptions options;
  options.batch_size = args.integer(0, "batch_size");
  if (!args.is_none(1)) options.anchor = args.string(1, "anchor");
  options.anchor_hz = optional_real(args, 2, "anchor_hz");
  if (!args.is_none(3)) options.episodes = numbers<int64_t>(args, 3, "episodes");
  options.snap_s = args.real(4, "snap_s");
  options.shuffle = args.boolean(5, "shuffle");
  options.drop_last = args.boolean(6, "drop_last");
  options.device = device_from_name(args.string(7, "device"));
  options.rate_hz = optional_real(args, 8, "rate_hz");
  options.history = optional_integer(args, 9, "history");
  options.horizon = optional_integer(args, 10, "horizon");
  if (!args.is_none(11)) options.method = interpolation_method_from_name(args.string(11, "methods"), "methods");
  if (!args.is_none(12)) options.normalize = normalize_from_name(args.string(12, "normalize"));
  options.max_gap_s = optional_real(args, 13, "max_gap_s");
  if (!args.is_none(14)) options.dtype = dtype_from_name(args.string(14, "dtype"));
  result.set_object(LoaderOptionsHandle{std::move(options)});
}

// (options, stream, float64 delta_timestamps, history, horizon, method, normalize, max_gap_s, dtype); None is what is left
// out
ROBOCACHE_FFI(loader_add_stream, args, result) {
  StreamRequest request;
  request.stream = args.string(1, "stream");
  if (!args.is_none(2)) request.delta_timestamps = numbers<double>(args, 2, "delta_timestamps");
  const std::string of_history = of_stream("history", request.stream);
  const std::string of_horizon = of_stream("horizon", request.stream);
  const std::string of_methods = of_stream("methods", request.stream);
  const std::string of_normalize = of_stream("normalize", request.stream);
  const std::string of_max_gap = of_stream("max_gap_s", request.stream);
  const std::string of_dtype = of_stream("dtype", request.stream);
  request.history = optional_integer(args, 3, of_history.c_str());
  request.horizon = optional_integer(args, 4, of_horizon.c_str());
  if (!args.is_none(5)) {
    request.method = interpolation_method_from_name(args.string(5, of_methods.c_str()), of_methods);
  }
  if (!args.is_none(6)) request.normalize = normalize_from_name(args.string(6, of_normalize.c_str()), of_normalize);
  request.max_gap_s = optional_real(args, 7, of_max_gap.c_str());
  if (!args.is_none(8)) request.dtype = dtype_from_name(args.string(8, of_dtype.c_str()), of_dtype);
  args.object<LoaderOptionsHandle>(0, "options").options.streams.push_back(std::move(request));
}

// (options, begin, end, method): features of the stream added last
ROBOCACHE_FFI(loader_add_method, args, result) {
  StreamRequest& request = args.object<LoaderOptionsHandle>(0, "options").options.streams.back();
  const InterpolationMethod method =
      interpolation_method_from_name(args.string(3, "methods"), of_stream("methods", request.stream));
  request.methods.push_back({args.integer(1, "methods"), args.integer(2, "methods"), method});
}

// (dataset, options) -> loader
ROBOCACHE_FFI(loader_open, args, result) {
  result.set_object(LoaderHandle{std::make_shared<const Loader>(
      args.object<DatasetHandle>(0, "dataset").dataset, args.object<LoaderOptionsHandle>(1, "options").options)});
}

// (loader) -> JSON of what it will give
ROBOCACHE_FFI(loader_describe, args, result) {
  const Loader& loader = *args.object<LoaderHandle>(0, "loader").loader;
  auto arrays = nlohmann::json::array();
  for (const BatchArray& array : loader.arrays()) {
    arrays.push_back({{"name", array.name}, {"dtype", std::string(dtype_name(array.dtype))}});
  }
  const nlohmann::json described = {{"anchors", loader.anchors()},
                                    {"steps_per_epoch", loader.steps_per_epoch()},
                                    {"anchor", loader.options().anchor},
                                    {"device", device_name(loader.options().device)},
                                    {"arrays", arrays}};
  result.set(std::string_view(described.dump()));
}

// (loader, a tensor of the framework and device to allocate in, or None, seed, epoch, step) -> a batch
ROBOCACHE_FFI(loader_fill, args, result) {
  const auto& loader = args.object<LoaderHandle>(0, "loader").loader;
  const BatchPosition position{.seed = static_cast<uint64_t>(args.integer(2, "seed")),
                               .epoch = args.integer(3, "epoch"),
                               .step = args.integer(4, "step")};
  const Device device = loader->options().device;
  const auto memory = std::make_shared<const OwnedTensor>(
      OwnedTensor::allocate(DType::kUInt8, device, {static_cast<int64_t>(loader->batch_bytes())}));
  loader->fill(position, memory->view().data, current_stream(device));
  result.set_object(BatchHandle{loader, memory, position.step});
}

// (batch, a tensor of the framework, or None, place among the arrays) -> that array, over the batch's memory
ROBOCACHE_FFI(batch_array, args, result) {
  const auto& batch = args.object<BatchHandle>(0, "batch");
  const auto& arrays = batch.loader->arrays();
  const auto index = static_cast<size_t>(args.integer(2, "index"));
  if (index >= arrays.size()) throw ArgumentError("index: expected fewer than " + std::to_string(arrays.size()));
  result.set(
      OwnedTensor::share(batch.loader->view(arrays[index], batch.step, batch.memory->view().data), batch.memory));
}

// (batch, address of the framework's DLPackExchangeAPI, address of a list as long as the arrays): puts them into it.
ROBOCACHE_FFI(batch_arrays, args, result) {
  const auto& batch = args.object<BatchHandle>(0, "batch");
  std::vector<TensorView> views;
  for (const BatchArray& array : batch.loader->arrays()) {
    views.push_back(batch.loader->view(array, batch.step, batch.memory->view().data));
  }
  fill_list(args.integer(2, "list"), args.integer(1, "exchange"), views, batch.memory);
}

}  // namespace robocache::ffi
