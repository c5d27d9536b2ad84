#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "robocache/batch/feed.hpp"
#include "robocache/batch/loader.hpp"
#include "robocache/batch/normalisation.hpp"
#include "robocache/batch/window_statistics.hpp"
#include "robocache/ffi/arguments.hpp"
#include "robocache/ffi/ffi.hpp"

namespace robocache::ffi {
namespace {

// Returns the tensors of a batch of `samples` samples, for Python.
std::shared_ptr<const TensorSet> tensors_of(const Loader& loader, int64_t samples) {
  std::vector<TensorView> views;
  std::vector<int64_t> offsets;
  for (BatchArray array : loader.arrays()) {
    offsets.push_back(std::exchange(array.offset, 0));  // the view needs no memory yet
    views.push_back(loader.view(array, samples, nullptr));
  }
  return std::make_shared<const TensorSet>(views, offsets);
}

struct LoaderHandle {
  static constexpr const char* kTypeKey = "robocache.Loader";
  std::shared_ptr<const Loader> loader;
  std::shared_ptr<Feed> feed;
  std::shared_ptr<const TensorSet> full_batch;                // a batch of batch_size samples
  std::shared_ptr<std::atomic<int64_t>> bad_gathered_frames;  // frames of loader_gather's batches that did not decode

  std::shared_ptr<const TensorSet> tensors(int64_t samples) const {
    return samples == loader->options().batch_size ? full_batch : tensors_of(*loader, samples);
  }
};

// One batch, alive as long as Python holds it or one of its arrays.
struct BatchHandle {
  static constexpr const char* kTypeKey = "robocache.Batch";
  std::shared_ptr<const Loader> loader;
  std::shared_ptr<void> memory;
  int64_t samples;
};

// The weights of the sources from a position on.
struct WeightsHandle {
  static constexpr const char* kTypeKey = "robocache.Weights";
  std::shared_ptr<const Loader> loader;
  const WeightChange* change;
};

const Loader& loader_of(const Args& args) { return *args.object<LoaderHandle>(0, "loader").loader; }

const WeightChange* weights_from(const Args& args, int i) {
  return args.is_none(i) ? nullptr : args.object<WeightsHandle>(i, "weights").change;
}

// Reads arguments i and i + 1: the fields' names with commas between them, and a dense float64 [fields, features].
NormStats norm_stats(const Args& args, int i) {
  std::string_view names = args.string(i, "norm_stats");
  const TensorView table = args.tensor(i + 1, "norm_stats");
  const auto* numbers = static_cast<const double*>(table.data);
  NormStats stats;
  for (int64_t row = 0; row < table.shape[0]; ++row, numbers += table.shape[1]) {
    stats.set(names.substr(0, names.find(',')), {numbers, numbers + table.shape[1]});
    names.remove_prefix(std::min(names.size(), names.find(',') + 1));
  }
  return stats;
}

// Returns a function that allocates batches in the framework of the call.
auto allocator(const Loader& loader) {
  return [device = loader.options().device](size_t bytes) -> std::shared_ptr<void> {
    const auto tensor = std::make_shared<const OwnedTensor>(
        OwnedTensor::allocate(DType::kUInt8, device, {static_cast<int64_t>(bytes)}));
    return {tensor, tensor->view().data};
  };
}

template <class T>
std::vector<T> copied(std::span<const T> numbers) {
  return {numbers.begin(), numbers.end()};
}

// Reads the number of sources from argument `i`, then 9 arguments for each source:
//   dataset | int64 episodes or None | ranges to keep or None, whether in rows | ranges to drop or None, whether in rows |
//   where(n, addresses of int64 episodes, int64 times and uint8 flags) or None: clears the flags of anchors to leave out |
//   values(n, addresses of int64 episodes, int64 times and float64 results) or None | whether values are classes, else weights |
//   int64 tasks of all episodes or None
std::vector<SourceRequest> sources_from(const Args& args, int& i) {
  std::vector<SourceRequest> sources(static_cast<size_t>(args.integer(i++, "sources")));
  for (SourceRequest& source : sources) {
    source.dataset = args.object<DatasetHandle>(i++, "dataset").dataset;
    if (!args.is_none(i)) source.episodes = copied(numbers<int64_t>(args, i, "episodes"));
    if (!args.is_none(i + 1)) source.filter.keep = copied(numbers<AnchorRange>(args, i + 1, "anchors.keep"));
    source.filter.keep_rows = args.boolean(i + 2, "anchors.keep");
    source.filter.drop = copied(numbers<AnchorRange>(args, i + 3, "anchors.drop"));
    source.filter.drop_rows = args.boolean(i + 4, "anchors.drop");
    if (!args.is_none(i + 5)) {
      source.filter.where = [where = args.function(i + 5, "anchors.where")](std::span<const int64_t> episodes,
                                                                            std::span<const int64_t> times,
                                                                            std::span<uint8_t> is_kept) {
        where(std::array{std::ssize(times), address(episodes.data()), address(times.data()), address(is_kept.data())});
      };
    }
    if (!args.is_none(i + 6)) {
      source.values = [values = args.function(i + 6, "weight_by")](std::span<const int64_t> episodes,
                                                                   std::span<const int64_t> times,
                                                                   std::span<double> results) {
        values(std::array{std::ssize(times), address(episodes.data()), address(times.data()), address(results.data())});
      };
    }
    source.balance = args.boolean(i + 7, "balance");
    source.tasks = copied(numbers<int64_t>(args, i + 8, "tasks"));
    i += 9;
  }
  return sources;
}

}  // namespace

// () -> JSON of the names and types of the options' fields
ROBOCACHE_FFI(loader_fields, args, result) { result.set(std::string_view(loader_fields_json())); }

// (prefetch, reuse_buffers, JSON of the options, the sources as sources_from reads them; then for each key with given statistics:
// the source or -1 for all, the key, which values they describe, the number of steps or 0 for all steps together, the names of
// the fields, float64 [fields, steps * features]) -> loader
ROBOCACHE_FFI(loader_open, args, result) {
  const FeedOptions feed_options{.prefetch = args.integer(0, "memory.prefetch"),
                                 .reuse = args.boolean(1, "memory.reuse_buffers")};
  int i = 3;
  std::vector<SourceRequest> sources = sources_from(args, i);
  LoaderOptions options = loader_options_from_json(args.string(2, "options"), std::move(sources));
  for (; i < args.count(); i += 6) {
    const int64_t source = args.integer(i, "norm_stats");
    auto& stats_by_key = source < 0 ? options.norm_stats : options.sources[static_cast<size_t>(source)].norm_stats;
    NormStats& given = stats_by_key[std::string(args.string(i + 1, "norm_stats"))];
    given = norm_stats(args, i + 4);
    given.steps = args.integer(i + 3, "norm_stats");
    given.values = args.string(i + 2, "norm_stats");
  }
  auto loader = std::make_shared<const Loader>(std::move(options));
  auto feed = std::make_shared<Feed>(loader, feed_options);
  auto full_batch = tensors_of(*loader, loader->options().batch_size);
  result.set_object(LoaderHandle{std::move(loader), std::move(feed), std::move(full_batch),
                                 std::make_shared<std::atomic<int64_t>>(0)});
}

// (loader) -> JSON: the arrays of its batches, its placements and counts
ROBOCACHE_FFI(loader_describe, args, result) {
  const Loader& loader = loader_of(args);
  auto arrays = nlohmann::json::array();
  for (const BatchArray& array : loader.arrays()) {
    arrays.push_back({{"name", array.name},
                      {"dtype", std::string(dtype_name(array.dtype))},
                      {"shape", array.shape},
                      {"offset", array.offset}});
  }
  auto placements = nlohmann::json::array();
  for (const Placement& placement : loader.placements()) {
    placements.push_back({{"key", placement.key},
                          {"tier", std::string(name_of(placement.tier))},
                          {"bytes", placement.bytes},
                          {"why", placement.why}});
  }
  const nlohmann::json description = {{"placements", placements},
                                      {"anchors", loader.anchors()},
                                      {"anchors_before_filter", loader.anchors_before_filter()},
                                      {"samples", loader.samples()},
                                      {"weighted", loader.is_weighted()},
                                      {"steps_per_epoch", loader.steps_per_epoch()},
                                      {"fingerprint", loader.fingerprint()},
                                      {"anchor", loader.options().anchor},
                                      {"notes", loader.options().notes},
                                      {"arrays", arrays}};
  result.set(std::string_view(description.dump()));
}

// (loader; a tensor of the framework and device to allocate in, or None; seed, epoch, samples; with reuse_buffers the number of
// the calling loop; the sources' weights or None; CUDA stream, or None for the current one; the address of the framework's
// DLPackExchangeAPI, or None; the address of a list) -> a batch; with a list true, and its arrays in the list; with
// reuse_buffers the number of its memory; None at the epoch's end
ROBOCACHE_FFI(loader_next, args, result) {
  const auto& handle = args.object<LoaderHandle>(0, "loader");
  const auto& loader = handle.loader;
  const auto& feed = handle.feed;
  const BatchPosition position{.seed = static_cast<uint64_t>(args.integer(2, "seed")),
                               .epoch = args.integer(3, "epoch"),
                               .samples = args.integer(4, "samples"),
                               .weights = weights_from(args, 6)};
  const CudaStream stream = args.is_none(7) ? current_stream(loader->options().device)
                                            : CudaStream{reinterpret_cast<void*>(args.integer(7, "stream"))};
  auto batch = feed->next(position, allocator(*loader), stream, check_signals, args.integer(5, "loop"));
  if (!batch) return;
  if (feed->reuses()) return result.set(batch->slot);
  if (!args.is_none(8)) {
    TensorSet::fill_list(handle.tensors(batch->samples), batch->memory, args.integer(8, "exchange"),
                         args.integer(9, "list"));
    return result.set(true);
  }
  result.set_object(BatchHandle{loader, std::move(batch->memory), batch->samples});
}

// (loader, the number of a batch's memory, samples) -> the batch in that memory
ROBOCACHE_FFI(loader_slot, args, result) {
  const auto& [loader, feed, full_batch, bad_gathered_frames] = args.object<LoaderHandle>(0, "loader");
  result.set_object(BatchHandle{loader, feed->memory(args.integer(1, "slot")), args.integer(2, "samples")});
}

// (loader, a tensor of the framework and device to allocate in, or None, int64 indices, seed, epoch, int64 numbers that
// seed the random draws, or None) -> a batch of these anchors
ROBOCACHE_FFI(loader_gather, args, result) {
  const auto& [loader, feed, full_batch, bad_gathered_frames] = args.object<LoaderHandle>(0, "loader");
  const auto indices = numbers<int64_t>(args, 2, "indices");
  const std::shared_ptr<void> memory = allocator(*loader)(loader->batch_bytes());
  const BatchPosition position{.seed = static_cast<uint64_t>(args.integer(3, "seed")),
                               .epoch = args.integer(4, "epoch")};
  *bad_gathered_frames += loader->gather(position, indices, numbers<int64_t>(args, 5, "draws"), memory.get(),
                                         current_stream(loader->options().device));
  result.set_object(BatchHandle{loader, memory, std::ssize(indices)});
}

// (loader, the previous weights or None, seed, epoch, samples; then for each source its name and weight) -> the weights of the
// sources at this position and later ones
ROBOCACHE_FFI(loader_change_weights, args, result) {
  const auto& loader = args.object<LoaderHandle>(0, "loader").loader;
  const BatchPosition from{.seed = static_cast<uint64_t>(args.integer(2, "seed")),
                           .epoch = args.integer(3, "epoch"),
                           .samples = args.integer(4, "samples"),
                           .weights = weights_from(args, 1)};
  std::vector<std::pair<std::string, double>> weights;
  for (int i = 5; i < args.count(); i += 2) {
    weights.emplace_back(args.string(i, "weights"), args.real(i + 1, "weights"));
  }
  result.set_object(WeightsHandle{loader, loader->change_weights(from, weights)});
}

// (loader, seed, epoch, samples, the sources' weights or None, int64 indices or None) -> int64 [samples, 4] on the CPU: the source,
// episode, time and number of each sample of the batch at this position, or of these anchors
ROBOCACHE_FFI(loader_anchors, args, result) {
  const Loader& loader = loader_of(args);
  const BatchPosition position{.seed = static_cast<uint64_t>(args.integer(1, "seed")),
                               .epoch = args.integer(2, "epoch"),
                               .samples = args.integer(3, "samples"),
                               .weights = weights_from(args, 4)};
  const auto indices = numbers<int64_t>(args, 5, "indices");
  const bool has_none = !args.is_none(5) && indices.empty();
  const auto anchors = has_none ? std::vector<SampleAnchor>{} : loader.anchors_at(position, indices);
  result.set(new_table(anchors, [](const SampleAnchor& anchor) {
    return std::array{anchor.source, anchor.episode, anchor.time_ns, anchor.number};
  }));
}

// (loader) -> int64 [episodes, 3] on the CPU: the source, index and number of anchors of each episode that has anchors
ROBOCACHE_FFI(loader_episodes, args, result) {
  result.set(new_table(loader_of(args).episodes(), [](const AnchoredEpisode& episode) {
    return std::array{episode.source, episode.episode, episode.anchors};
  }));
}

// (loader, source) -> JSON of the spec of its batches
ROBOCACHE_FFI(loader_spec, args, result) {
  const Loader& loader = loader_of(args);
  result.set(std::string_view(spec_to_json(loader.spec(static_cast<size_t>(args.integer(1, "source"))))));
}

// (loader, source, key of numbers that the source has, whether each step has its own statistics, float64 quantiles, a function
// progress(anchors read, all anchors)) -> float64 [5 + quantiles, features of all such steps]: mean, std, min, max, the
// quantiles, count
ROBOCACHE_FFI(loader_statistics, args, result) {
  const Loader& loader = loader_of(args);
  const LoaderOptions& options = loader.options();
  const auto source = static_cast<size_t>(args.integer(1, "source"));
  const auto request = static_cast<size_t>(
      std::ranges::find(options.streams, args.string(2, "key"), &StreamRequest::stream) - options.streams.begin());
  const WindowStatistics wanted{.per_step = args.boolean(3, "per_step"),
                                .quantiles = copied(numbers<double>(args, 4, "quantiles"))};
  const auto table = window_statistics(options, source, request, options.sources[source].episodes_of_all_ranks(),
                                       wanted, [&, report = args.function(5, "progress")](int64_t done, int64_t all) {
                                         check_signals();
                                         report(std::array{done, all});
                                       });
  const auto fields = static_cast<int64_t>(5 + wanted.quantiles.size());
  result.set(new_array<double>(*table, {fields, std::ssize(*table) / fields}));
}

// (loader, source, key) -> JSON of the values that its statistics describe
ROBOCACHE_FFI(loader_values, args, result) {
  const Loader& loader = loader_of(args);
  const BatchSpec& spec = loader.spec(static_cast<size_t>(args.integer(1, "source")));
  const auto key = std::ranges::find(spec.keys, args.string(2, "key"), &KeySpec::key) - spec.keys.begin();
  result.set(std::string_view(values_to_json(spec, static_cast<size_t>(key))));
}

// (JSON of a spec) -> the same spec as the library writes it
ROBOCACHE_FFI(spec_json, args, result) {
  result.set(std::string_view(spec_to_json(spec_from_json(args.string(0, "spec")))));
}

// (loader) -> the number of frames that did not decode, in the batches given so far
ROBOCACHE_FFI(loader_bad_frames, args, result) {
  const auto& handle = args.object<LoaderHandle>(0, "loader");
  result.set(handle.feed->bad_frames() + *handle.bad_gathered_frames);
}

// (loader): throws if a row is farther away than tolerance_s
ROBOCACHE_FFI(loader_check_tolerance, args, result) { loader_of(args).check_tolerance(); }

// (names of fields, float64 [fields, any], features, dtype of the values, mode, constant, min_spread, a name for errors)
// -> float64 [4, features]: scale, shift, spread, centre. Features after the last affine stay as they are.
ROBOCACHE_FFI(normalisation_affines, args, result) {
  const NormStats stats = norm_stats(args, 0);
  const int64_t features = args.integer(2, "features");
  const Normalize normalize = normalize_from_name(args.string(4, "normalize"), "normalize");
  refuse_infinite(stats, normalize, args.string(7, "name"));
  std::vector<Affine> feature_affines = affines(stats, features, 1, dtype_from_name(args.string(3, "dtype")), normalize,
                                                value_of<Constant>(args.string(5, "constant"), "constant"),
                                                args.real(6, "min_spread"), args.string(7, "name"));
  feature_affines.resize(static_cast<size_t>(features));
  std::vector<double> table;
  for (const auto part : {&Affine::scale, &Affine::shift, &Affine::spread, &Affine::centre}) {
    for (const Affine& affine : feature_affines) table.push_back(affine.*part);
  }
  result.set(new_array<double>(table, {4, features}));
}

// (batch) -> its memory, uint8
ROBOCACHE_FFI(batch_memory, args, result) {
  const auto& batch = args.object<BatchHandle>(0, "batch");
  const auto bytes = static_cast<int64_t>(batch.loader->batch_bytes());
  const TensorView view =
      TensorView::contiguous(batch.memory.get(), DType::kUInt8, {bytes}, batch.loader->options().device);
  result.set(OwnedTensor::share(view, batch.memory));
}

// (batch, a tensor of the framework, index of an array) -> that array, a view of the batch's memory
ROBOCACHE_FFI(batch_array, args, result) {
  const auto& batch = args.object<BatchHandle>(0, "batch");
  const auto& arrays = batch.loader->arrays();
  const auto index = static_cast<size_t>(args.integer(2, "index"));
  if (index >= arrays.size()) throw ArgumentError("index: expected fewer than ", arrays.size());
  result.set(OwnedTensor::share(batch.loader->view(arrays[index], batch.samples, batch.memory.get()), batch.memory));
}

// (loader, batch, addresses of the framework's DLPackExchangeAPI and of a list): puts the arrays into the list
ROBOCACHE_FFI(batch_arrays, args, result) {
  const auto& handle = args.object<LoaderHandle>(0, "loader");
  const auto& batch = args.object<BatchHandle>(1, "batch");
  TensorSet::fill_list(handle.tensors(batch.samples), batch.memory, args.integer(2, "exchange"),
                       args.integer(3, "list"));
}

}  // namespace robocache::ffi
