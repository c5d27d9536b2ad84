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

// The bytes of a batch's values: few enough for a processor's caches, and enough to keep a GPU busy.
constexpr int64_t kBatchBytes = int64_t{2} << 20;
constexpr int64_t kDeviceBatchBytes = int64_t{128} << 20;

// Returns the options of a loader whose batches hold only one key of one source, before normalisation, anchor after anchor. The
// source's other keys take part in the choice of anchors.
LoaderOptions options_of(const LoaderOptions& options, size_t source, size_t request,
                         const std::optional<std::vector<int64_t>>& episodes) {
  const SourceRequest& from = options.sources[source];
  LoaderOptions of_key;
  SourceRequest& to =
      of_key.sources.emplace_back(SourceRequest{.dataset = from.dataset, .episodes = episodes, .rename = from.rename});
  to.filter = from.filter;
  to.tasks = from.tasks;
  if (from.values && !from.balance) {
    to.values = [weigh = from.values](std::span<const int64_t> anchor_episodes, std::span<const int64_t> times,
                                      std::span<double> values) {
      weigh(anchor_episodes, times, values);
      for (double& value : values) {
        if (value > 0) value = 1;  // a weight of 0 excludes an anchor; others count alike
      }
    };
  }
  if (!options.anchor_hz) to.anchor = key_of(from, from.anchor);
  for (size_t i = 0; i < options.streams.size(); ++i) {
    if (!from.streams[i]) continue;
    StreamRequest& asked = of_key.streams.emplace_back(options.streams[i]);
    asked.normalize = Normalize::kNone;
    if (i == request) {
      of_key.filled = {of_key.streams.size() - 1};
    } else {
      asked.convert.clear();
      asked.base.clear();
      asked.base_features.clear();
    }
    asked.residency.emplace(Tier::kMapped);
    asked.mirror_horizontal = asked.mirror_vertical = {};  // statistics describe recorded values
    if (asked.images) asked.images = without_augmentation(*asked.images);
  }
  of_key.anchor_hz = options.anchor_hz;
  of_key.edges = options.edges;
  of_key.drop_n_last = options.drop_n_last;
  of_key.snap_s = options.snap_s;
  of_key.shuffle = false;
  return of_key;
}

const BatchArray& array_of(const Loader& loader, const std::string& name) {
  return *std::ranges::find(loader.arrays(), name, &BatchArray::name);
}

// Passes the key's values [rows, features] of each batch to `take`, as Real. Padding is NaN.
template <class Real>
void pass_batches(const Loader& loader, const KeySpec& key, int64_t features, const WindowProgress& progress,
                  const std::function<void(const Real*, int64_t)>& take) {
  const BatchArray& values = array_of(loader, key.key);
  const BatchArray& marks = array_of(loader, key.key + "_is_pad");
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
    const auto* const is_pad = reinterpret_cast<const bool*>(start + marks.offset);
    for (int64_t row = 0; row < rows; ++row) {
      if (is_pad[row]) std::fill_n(numbers + row * features, features, std::numeric_limits<Real>::quiet_NaN());
    }
    take(numbers, rows);
    position = loader.after(position);
  }
}

// Returns the table of the same values, computed on the loader's device.
std::vector<double> table_on_device(const Loader& loader, const KeySpec& key, bool per_step, int64_t features,
                                    std::span<const double> quantiles, const WindowProgress& progress) {
  const BatchArray& values = array_of(loader, key.key);
  const BatchArray& marks = array_of(loader, key.key + "_is_pad");
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
      take({start + values.offset, reinterpret_cast<const bool*>(start + marks.offset), samples * rows_of_sample});
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
                                                             const WindowStatistics& asked,
                                                             const WindowProgress& progress) {
  LoaderOptions of_key = options_of(options, source, request, episodes);
  const size_t index = of_key.filled[0];
  StreamRequest& window = of_key.streams[index];
  const Dataset& dataset = *of_key.sources[0].dataset;
  const Stream& stream = dataset.stream(*options.sources[source].streams[request]);
  std::vector<int64_t> read = {*options.sources[source].streams[request]};
  bool wide = stream.dtype == DType::kFloat64 || !is_floating(stream.dtype);
  bool has_values = true;
  if (!window.convert.empty()) {
    const KeyConversion conversion = key_conversion(options, request);
    wide = conversion.work == DType::kFloat64;
    if (conversion.base) {
      const std::optional<int64_t>& base = options.sources[source].streams[*conversion.base];
      has_values = base.has_value();
      if (base && *base != read[0]) read.push_back(*base);
    }
  }
  const auto rows_of_table = static_cast<int64_t>(5 + asked.quantiles.size());
  const auto steps = std::ssize(window.delta_timestamps);
  if (!has_values) {  // the source lacks the base, so everything is padding
    const int64_t numbers = key_conversion(options, request).ops.out_features * (asked.per_step ? steps : 1);
    std::vector<double> table(static_cast<size_t>(rows_of_table * numbers), std::numeric_limits<double>::quiet_NaN());
    std::fill(table.end() - numbers, table.end(), 0.0);
    return std::make_shared<const std::vector<double>>(std::move(table));
  }
  if (is_floating(stream.dtype)) window.dtype = wide ? DType::kFloat64 : DType::kFloat32;

  const Loader in_files(of_key);  // reads next to nothing
  const BatchSpec& spec = in_files.spec();
  const KeySpec& key = spec.keys[index];
  int64_t features = 1;
  for (const int64_t extent : key.shape) features *= extent;
  std::vector<int64_t> shape = key.shape;
  if (asked.per_step) shape.insert(shape.begin(), steps);

  cache::StatisticsHash hash;
  hash.add("window statistics 2");
  hash.add(values_to_json(spec, index));
  hash.add(static_cast<uint64_t>(spec.snap_ns));
  hash.add(static_cast<uint64_t>(wide));
  hash.add(in_files.fingerprint());
  for (const int64_t stream_index : read) {
    const Stream& source_stream = dataset.stream(stream_index);
    hash.add(source_stream.values_checksum);
    hash.add(source_stream.clock_checksum);
  }
  for (const int64_t episode : *in_files.options().sources[0].episodes) hash.add(static_cast<uint64_t>(episode));
  hash.add(static_cast<uint64_t>(asked.per_step));
  for (const double quantile : asked.quantiles) hash.add(std::bit_cast<uint64_t>(quantile));
  return cache::kept_statistics(dataset, hash.text(), rows_of_table, shape, read, [&] {
    // A pass reads the rows of the key and of its base. On a device it reads them from the tier of the loader that asks.
    const auto prepare = [&](Device device, int64_t batch_bytes) {
      of_key.device = device;
      for (size_t i = 0, next = 0; i < options.streams.size(); ++i) {
        if (!options.sources[source].streams[i]) continue;
        StreamRequest& reads = of_key.streams[next++];
        if (&reads != &window && reads.stream != window.base) continue;
        reads.residency.emplace();
        if (device.is_cuda()) reads.residency = options.streams[i].residency;
      }
      const int64_t eights = batch_bytes / std::max<int64_t>(1, 8 * steps * features * (wide ? 8 : 4));
      of_key.batch_size = 8 * std::clamp<int64_t>(eights, 1, int64_t{1} << 13);
    };
    const int64_t all_rows = in_files.anchors() * (asked.per_step ? 1 : steps);
    if (options.device.is_cuda() && is_floating(stream.dtype) &&
        cache::fits_device(all_rows, asked.per_step ? steps * features : features)) {
      try {
        prepare(options.device, kDeviceBatchBytes);
        return table_on_device(Loader(of_key), key, asked.per_step, features, asked.quantiles, progress);
      } catch (const OutOfMemory&) {  // the host gives the same bits
      }
    }
    prepare(Device{}, kBatchBytes);
    const Loader loader(of_key);
    const int64_t rows_of_sample = asked.per_step ? 1 : steps;
    const int64_t width = asked.per_step ? steps * features : features;
    const auto table_on_host = [&]<class Real>(Real) {
      const auto pass = [&](const std::function<void(const Real*, int64_t)>& take) {
        pass_batches<Real>(loader, key, features, progress,
                           [&](const Real* numbers, int64_t rows) { take(numbers, rows / steps * rows_of_sample); });
      };
      return cache::made_statistics<Real>(pass, loader.anchors() * rows_of_sample, width, asked.quantiles);
    };
    return wide ? table_on_host(double{}) : table_on_host(float{});
  });
}

}  // namespace robocache
