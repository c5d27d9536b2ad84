#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "robocache/batch/loader.hpp"
#include "robocache/ffi/dataset_handle.hpp"
#include "robocache/ffi/ffi.hpp"

namespace robocache::ffi {
namespace {

using nlohmann::json;

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

// A field of the options, or nothing where it is absent or null; `name` is the argument Python's users know.
template <class T>
std::optional<T> field(const json& options, const char* key, const std::string& name) {
  const auto found = options.find(key);
  if (found == options.end() || found->is_null()) return std::nullopt;
  try {
    return found->get<T>();
  } catch (const json::exception&) {
    throw ArgumentTypeError(name + ": unexpected " + found->dump());
  }
}

StreamRequest stream_request(const json& options) {
  StreamRequest request;
  request.stream = field<std::string>(options, "stream", "delta_timestamps").value_or("");
  const std::string at = "['" + request.stream + "']";
  request.delta_timestamps =
      field<std::vector<double>>(options, "delta_timestamps", "delta_timestamps" + at).value_or(std::vector<double>());
  if (const auto name = field<std::string>(options, "method", "methods" + at)) {
    request.method = interpolation_method_from_name(*name, "methods" + at);
  }
  if (const auto name = field<std::string>(options, "normalize", "normalize" + at)) {
    request.normalize = normalize_from_name(*name, "normalize" + at);
  }
  if (const auto name = field<std::string>(options, "dtype", "dtype" + at))
    request.dtype = dtype_from_name(*name, "dtype" + at);
  request.max_gap_s = field<double>(options, "max_gap_s", "max_gap_s" + at);
  return request;
}

LoaderOptions loader_options(const json& from) {
  LoaderOptions options;
  for (const json& stream : from.at("streams")) options.streams.push_back(stream_request(stream));
  options.batch_size = field<int64_t>(from, "batch_size", "batch_size").value_or(options.batch_size);
  options.anchor = field<std::string>(from, "anchor", "anchor").value_or("");
  options.anchor_hz = field<double>(from, "anchor_hz", "anchor_hz");
  options.episodes = field<std::vector<int64_t>>(from, "episodes", "episodes");
  options.snap_s = field<double>(from, "snap_s", "snap_s").value_or(options.snap_s);
  options.shuffle = field<bool>(from, "shuffle", "shuffle").value_or(options.shuffle);
  options.drop_last = field<bool>(from, "drop_last", "drop_last").value_or(options.drop_last);
  if (const auto name = field<std::string>(from, "dtype", "dtype")) options.dtype = dtype_from_name(*name);
  if (const auto name = field<std::string>(from, "device", "device")) options.device = device_from_name(*name);
  return options;
}

}  // namespace

// (dataset, options as JSON) -> loader
ROBOCACHE_FFI(loader_open, args, result) {
  const json options = json::parse(args.string(1, "options"));
  result.set_object(LoaderHandle{
      std::make_shared<const Loader>(args.object<DatasetHandle>(0, "dataset").dataset, loader_options(options))});
}

// (loader) -> JSON of what it will give
ROBOCACHE_FFI(loader_describe, args, result) {
  const Loader& loader = *args.object<LoaderHandle>(0, "loader").loader;
  json arrays = json::array();
  for (const BatchArray& array : loader.arrays()) {
    arrays.push_back({{"name", array.name}, {"dtype", std::string(dtype_name(array.dtype))}});
  }
  const json described = {{"anchors", loader.anchors()},
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
