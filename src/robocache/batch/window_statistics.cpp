#include "robocache/batch/window_statistics.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "robocache/batch/loader.hpp"
#include "robocache/batch/option_checks.hpp"
#include "robocache/batch/spec.hpp"
#include "robocache/cache/device_statistics.hpp"
#include "robocache/cache/selection_statistics.hpp"
#include "robocache/cache/statistics.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/core/error.hpp"
#include "robocache/core/with_type.hpp"

namespace robocache {
namespace {

// The bytes of a batch's values.
constexpr int64_t kBatchBytes = int64_t{2} << 20;          // few enough for a processor's caches
constexpr int64_t kDeviceBatchBytes = int64_t{128} << 20;  // enough to keep a GPU busy

// Returns the options of a loader whose batches hold one key of one source, as it is before normalisation, for every anchor
// once in order. The source's other keys take part in the choice of anchors.
LoaderOptions options_of(const LoaderOptions& options, size_t source, size_t request,
                         const std::optional<std::vector<int64_t>>& episodes) {
  const SourceRequest& source_request = options.sources[source];
  LoaderOptions key_options;
  SourceRequest& key_source = key_options.sources.emplace_back(
      SourceRequest{.dataset = source_request.dataset, .episodes = episodes, .rename = source_request.rename});
  key_source.filter = source_request.filter;
  key_source.tasks = source_request.tasks;
  if (source_request.values && !source_request.balance) {
    // The values are weights here; with `balance` they are classes, which exclude no anchor.
    key_source.values = [weigh = source_request.values](std::span<const int64_t> anchor_episodes,
                                                        std::span<const int64_t> times, std::span<double> weights) {
      weigh(anchor_episodes, times, weights);
      for (double& weight : weights) {
        if (weight > 0) weight = 1;  // a weight of 0 excludes an anchor; others count alike
      }
    };
  }
  if (!options.anchor_hz) key_source.anchor = key_of(source_request, source_request.anchor);
  for (size_t i = 0; i < options.streams.size(); ++i) {
    if (!source_request.streams[i]) continue;
    StreamRequest& key_request = key_options.streams.emplace_back(options.streams[i]);
    key_request.normalize = Normalize::kNone;
    if (i == request) {
      key_options.filled = {key_options.streams.size() - 1};
    } else {
      key_request.convert.clear();
      key_request.base.clear();
      key_request.base_features.clear();
    }
    key_request.residency = Tier::kMapped;
    key_request.mirror_horizontal = key_request.mirror_vertical = {};  // statistics describe recorded values
    if (key_request.images) key_request.images = without_augmentation(*key_request.images);
  }
  key_options.anchor_hz = options.anchor_hz;
  key_options.edges = options.edges;
  key_options.drop_n_last = options.drop_n_last;
  key_options.snap_s = options.snap_s;
  key_options.shuffle = false;
  return key_options;
}

const BatchArray& array_of(const Loader& loader, const std::string& name) {
  return *std::ranges::find(loader.arrays(), name, &BatchArray::name);
}

// Passes the key's values [rows, features] of each batch to `take`, as Real. Padding is NaN.
template <class Real>
void pass_batches(const Loader& loader, const KeySpec& key, int64_t features, const WindowProgress& progress,
                  const std::function<void(const Real*, int64_t)>& take) {
  const BatchArray& values = array_of(loader, key.key);
  const BatchArray& is_pad_array = array_of(loader, key.key + "_is_pad");
  const auto steps = key.steps();
  const DeviceBuffer memory({}, loader.batch_bytes());
  auto* const start = static_cast<char*>(memory.data());
  std::vector<Real> converted;
  BatchPosition position;
  while (const int64_t samples = loader.samples_at(position)) {
    progress(position.samples, loader.samples());
    loader.fill(position, start, {});
    auto* numbers = reinterpret_cast<Real*>(start + values.offset);
    const int64_t rows = samples * steps;
    if (!is_floating(values.dtype)) {
      converted.resize(static_cast<size_t>(rows * features));
      with_type(values.dtype, [&]<class T>(T) {
        const auto* const numbers_in_batch = reinterpret_cast<const T*>(start + values.offset);
        if constexpr (!std::is_same_v<T, Float16> && !std::is_same_v<T, BFloat16>)
          std::copy_n(numbers_in_batch, rows * features, converted.begin());
      });
      numbers = converted.data();
    }
    const auto* const is_pad = reinterpret_cast<const bool*>(start + is_pad_array.offset);
    for (int64_t row = 0; row < rows; ++row) {
      if (is_pad[row]) std::fill_n(numbers + row * features, features, std::numeric_limits<Real>::quiet_NaN());
    }
    take(numbers, rows);
    position = loader.after(position);
  }
}

// Returns the table of window_statistics.hpp for the key's values, computed on the loader's device.
std::vector<double> table_on_device(const Loader& loader, const KeySpec& key, bool per_step, int64_t features,
                                    std::span<const double> quantiles, const WindowProgress& progress) {
  const BatchArray& values = array_of(loader, key.key);
  const BatchArray& is_pad_array = array_of(loader, key.key + "_is_pad");
  const Device device = loader.options().device;
  const int64_t rows_of_sample = per_step ? 1 : key.steps();
  const OwnedCudaStream stream(device);
  const DeviceBuffer memory(device, loader.batch_bytes());
  auto* const start = static_cast<char*>(memory.data());
  const auto make = [&](const std::function<void(const cache::DeviceRows&)>& take) {
    BatchPosition position;
    while (const int64_t samples = loader.samples_at(position)) {
      progress(position.samples, loader.samples());
      loader.fill(position, start, stream.get());
      take({start + values.offset, reinterpret_cast<const bool*>(start + is_pad_array.offset),
            samples * rows_of_sample});
      position = loader.after(position);
    }
  };
  const cache::MadeOnDevice passes{make,
                                   loader.anchors() * rows_of_sample,
                                   loader.options().batch_size * rows_of_sample,
                                   per_step ? key.steps() * features : features,
                                   features,
                                   values.dtype};
  std::vector<double> table = cache::device_statistics(passes, quantiles, device, stream.get());
  stream.wait();
  return table;
}

}  // namespace

std::shared_ptr<const std::vector<double>> window_statistics(const LoaderOptions& options, size_t source,
                                                             size_t request,
                                                             const std::optional<std::vector<int64_t>>& episodes,
                                                             const WindowStatistics& requested,
                                                             const WindowProgress& progress) {
  LoaderOptions key_options = options_of(options, source, request, episodes);
  const size_t index = key_options.filled[0];
  StreamRequest& window = key_options.streams[index];
  const Dataset& dataset = *key_options.sources[0].dataset;
  const Stream& stream = dataset.stream(*options.sources[source].streams[request]);
  std::vector<int64_t> read_streams = {*options.sources[source].streams[request]};
  bool wide = stream.dtype == DType::kFloat64 || !is_floating(stream.dtype);
  bool has_values = true;
  if (!window.convert.empty()) {
    const KeyConversion conversion = key_conversion(options, request);
    wide = conversion.work == DType::kFloat64;
    if (conversion.base) {
      const std::optional<int64_t>& base = options.sources[source].streams[*conversion.base];
      has_values = base.has_value();
      if (base && *base != read_streams[0]) read_streams.push_back(*base);
    }
  }
  // mean, std, min, max, quantiles, count
  const auto rows_of_table = static_cast<int64_t>(5 + requested.quantiles.size());
  const auto steps = std::ssize(window.delta_timestamps);
  if (!has_values) {  // the source lacks the base, so everything is padding
    const int64_t table_width = key_conversion(options, request).ops.out_features * (requested.per_step ? steps : 1);
    std::vector<double> table(static_cast<size_t>(rows_of_table * table_width),
                              std::numeric_limits<double>::quiet_NaN());
    std::fill(table.end() - table_width, table.end(), 0.0);  // the count
    return std::make_shared<const std::vector<double>>(std::move(table));
  }
  if (is_floating(stream.dtype)) window.dtype = wide ? DType::kFloat64 : DType::kFloat32;

  const Loader mapped_loader(key_options);  // completes the options and counts the anchors, and reads almost no rows
  const BatchSpec& spec = mapped_loader.spec();
  const KeySpec& key = spec.keys[index];
  int64_t features = 1;
  for (const int64_t extent : key.shape) features *= extent;
  std::vector<int64_t> shape = key.shape;
  if (requested.per_step) shape.insert(shape.begin(), steps);

  cache::StatisticsHash hash;
  hash.add("window statistics 2");
  hash.add(values_to_json(spec, index));
  hash.add(static_cast<uint64_t>(spec.snap_ns));
  hash.add(static_cast<uint64_t>(wide));
  hash.add(mapped_loader.fingerprint());
  for (const int64_t stream_index : read_streams) {
    const Stream& source_stream = dataset.stream(stream_index);
    hash.add(source_stream.values_checksum);
    hash.add(source_stream.clock_checksum);
  }
  const SourceRequest& drawn = mapped_loader.options().sources[0];
  for (const int64_t episode : *drawn.episodes) hash.add(static_cast<uint64_t>(episode));
  // The fingerprint does not cover the ticks that only goals may have.
  if (!options.anchor_hz) hash.add(dataset.stream(drawn.anchor).clock_checksum);
  if (window.moment && options.anchor_hz) {
    for (size_t i = 0; i < mapped_loader.options().streams.size(); ++i) hash.add(drawn.stream_of(i)->clock_checksum);
  }
  if (window.moment && window.moment->kind == MomentKind::kOther) {
    for (const int64_t task : drawn.tasks) hash.add(static_cast<uint64_t>(task));
  }
  hash.add(static_cast<uint64_t>(requested.per_step));
  for (const double quantile : requested.quantiles) hash.add(std::bit_cast<uint64_t>(quantile));
  return cache::kept_statistics(dataset, hash.text(), rows_of_table, shape, read_streams, [&] {
    // A pass reads the rows of the key and of its base. On a device it reads them from the tier of the loader that asks.
    const auto prepare = [&](Device device, int64_t batch_bytes) {
      key_options.device = device;
      for (size_t i = 0, next = 0; i < options.streams.size(); ++i) {
        if (!options.sources[source].streams[i]) continue;
        StreamRequest& read_request = key_options.streams[next++];
        if (&read_request != &window && read_request.stream != window.base) continue;
        read_request.residency = std::optional<Tier>{};  // chosen by memory_budget
        if (device.is_cuda()) read_request.residency = options.streams[i].residency;
      }
      // A multiple of 8, which device_statistics needs.
      const int64_t batch_size_over_8 = batch_bytes / std::max<int64_t>(1, 8 * steps * features * (wide ? 8 : 4));
      key_options.batch_size = 8 * std::clamp<int64_t>(batch_size_over_8, 1, int64_t{1} << 13);
    };
    const int64_t all_rows = mapped_loader.anchors() * (requested.per_step ? 1 : steps);
    if (options.device.is_cuda() && is_floating(stream.dtype) &&
        cache::fits_device(all_rows, requested.per_step ? steps * features : features)) {
      try {
        prepare(options.device, kDeviceBatchBytes);
        return table_on_device(Loader(key_options), key, requested.per_step, features, requested.quantiles, progress);
      } catch (const OutOfMemory&) {  // the host computes the same bits
      }
    }
    prepare(Device{}, kBatchBytes);
    const Loader loader(key_options);
    const int64_t rows_of_sample = requested.per_step ? 1 : steps;
    const int64_t width = requested.per_step ? steps * features : features;
    const auto table_on_host = [&]<class Real>(Real) {
      const auto pass = [&](const std::function<void(const Real*, int64_t)>& take) {
        pass_batches<Real>(loader, key, features, progress,
                           [&](const Real* numbers, int64_t rows) { take(numbers, rows / steps * rows_of_sample); });
      };
      return cache::made_statistics<Real>(pass, loader.anchors() * rows_of_sample, width, requested.quantiles);
    };
    return wide ? table_on_host(double{}) : table_on_host(float{});
  });
}

}  // namespace robocache
