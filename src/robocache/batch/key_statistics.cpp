#include "robocache/batch/key_statistics.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <numeric>
#include <string>
#include <string_view>

#include "robocache/batch/window_statistics.hpp"
#include "robocache/cache/selection_statistics.hpp"
#include "robocache/cache/statistics.hpp"
#include "robocache/core/arguments.hpp"

namespace robocache {
namespace {

const Stream& stream_of(const LoaderOptions& options, size_t source, size_t request) {
  const SourceRequest& from = options.sources[source];
  return from.dataset->streams()[static_cast<size_t>(*from.streams[request])];
}

bool is_normalised(const LoaderOptions& options, size_t source, size_t request) {
  return options.sources[source].streams[request] && *options.streams[request].normalize != Normalize::kNone;
}

// The values that are normalised: the stream's rows, or the results of conversions.
struct Values {
  int64_t features;
  DType dtype;
};

Values values_of(const LoaderOptions& options, size_t source, size_t request) {
  if (options.streams[request].convert.empty()) {
    const Stream& stream = stream_of(options, source, request);
    return {stream.features, stream.dtype};
  }
  const KeyConversion conversion = key_conversion(options, request);
  return {conversion.ops.out_features, conversion.work};
}

// Refuses statistics that say that they are of other values.
void check_values(const BatchSpec& spec, size_t request, const NormStats& given, const std::string& name) {
  const KeySpec& key = spec.keys[request];
  if (given.of.empty()) return;
  const bool recorded = given.of == kRecorded;
  const std::string expected = values_to_json(spec, request);
  const std::string way =
      "; dataset.statistics(loader)['" + key.key + "'] makes them, and a loader without norm_stats does so itself";
  if (key.convert) {
    if (given.of == expected) return;
    refuse(name, ": expected statistics of what this window gives after its conversions, got ",
           recorded ? "those of recorded values" : "others: " + differing_values(expected, given.of), way);
  }
  if (recorded) return;
  const std::string differences = differing_values(expected, given.of);
  if (given.of.find("\"convert\":null") == std::string::npos) {
    refuse(name, ": expected statistics of values that are not converted, got others: ", differences,
           "; dataset.statistics(episodes) makes them");
  }
  if (given.steps == 0 || differences.find("offsets_") == std::string::npos) return;
  refuse(name, ": expected statistics of this window's steps, got others: ", differences, way);
}

// Returns the given statistics of a key. If there are none and nothing is converted, returns those of the key whose stream fills
// it: a goal is normalised as the state is.
auto given_of(const std::map<std::string, NormStats>& given, const StreamRequest& request) {
  const auto own = given.find(request.stream);
  return own == given.end() && request.convert.empty() ? given.find(request.rows_key()) : own;
}

// The statistics, and their name for errors.
struct Found {
  NormStats stats;
  std::string name;
};

// Computed statistics of the fields that a mode reads.
NormStats stats_of_table(const std::vector<double>& table, std::span<const double> quantiles, const Normalize& mode) {
  NormStats stats;
  const size_t features = table.size() / (5 + quantiles.size());
  const auto set = [&](std::string_view field, size_t row) {
    const auto from = table.begin() + static_cast<std::ptrdiff_t>(row * features);
    stats.set(field, {from, from + static_cast<std::ptrdiff_t>(features)});
  };
  constexpr std::string_view kFields[] = {"mean", "std", "min", "max"};
  for (size_t row = 0; row < std::size(kFields); ++row) set(kFields[row], row);
  for (const std::string_view field : {mode.first(), mode.second()}) {
    const auto quantile = quantile_of(field);
    if (quantile) set(field, 4 + static_cast<size_t>(std::ranges::find(quantiles, *quantile) - quantiles.begin()));
  }
  return stats;
}

Found statistics_of(const LoaderOptions& options, size_t source, size_t request, const BatchSpec& spec) {
  const std::string& key = options.streams[request].stream;
  const SourceRequest& from = options.sources[source];
  const std::string name = "norm_stats['" + key + "']";
  if (const auto given = given_of(from.norm_stats, options.streams[request]); given != from.norm_stats.end()) {
    check_values(spec, request, given->second, source_name(options, source) + name);
    return {given->second, source_name(options, source) + name};
  }
  if (const auto given = given_of(options.norm_stats, options.streams[request]); given != options.norm_stats.end()) {
    check_values(spec, request, given->second, name);
    return {given->second, name};
  }
  const Normalize& mode = *options.streams[request].normalize;
  std::vector<double> quantiles(cache::kQuantiles.begin(), cache::kQuantiles.end());
  bool others = false;
  for (const std::string_view field : {mode.first(), mode.second()}) {
    const auto quantile = quantile_of(field);
    if (!quantile || std::ranges::find(quantiles, *quantile) != quantiles.end()) continue;
    quantiles.push_back(*quantile);
    others = true;
  }
  std::ranges::sort(quantiles);
  if (!options.streams[request].convert.empty()) {
    const auto table = window_statistics(options, source, request, from.selection, {.quantiles = quantiles});
    return {stats_of_table(*table, quantiles, mode), "key '" + key + "'"};
  }
  const Stream& stream = stream_of(options, source, request);
  const std::string of_stream = "stream '" + key + "'";
  if (!from.selection && !others) return {stream.stats, of_stream};
  std::vector<int64_t> all(static_cast<size_t>(from.dataset->num_episodes()));
  std::iota(all.begin(), all.end(), int64_t{0});
  const auto table = cache::selection_statistics(*from.dataset, *from.streams[request],
                                                 from.selection ? *from.selection : all, quantiles);
  return {stats_of_table(*table, quantiles, mode), of_stream};
}

std::string short_text(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", number);
  return text;
}

}  // namespace

std::vector<Affine> affines_of(const LoaderOptions& options, size_t source, size_t request, const BatchSpec& spec) {
  if (!is_normalised(options, source, request)) return {};
  const auto [features, dtype] = values_of(options, source, request);
  const auto [stats, name] = statistics_of(options, source, request, spec);
  return affines(stats, features, spec.keys[request].steps(), dtype, *options.streams[request].normalize,
                 options.constant, options.min_spread, name);
}

std::string rounding_note(const LoaderOptions& options) {
  constexpr double kMostShare = 1.0 / 4096;
  constexpr double kUnit = 0x1p-24;  // half the distance of neighbouring float32 numbers, relative to them
  std::string keys;
  for (size_t request = 0; request < options.streams.size(); ++request) {
    const StreamRequest& asked = options.streams[request];
    if (is_camera(asked) || asked.dtype_asked || *asked.dtype != DType::kFloat32 || !asked.convert.empty()) continue;
    for (size_t source = 0; source < options.sources.size(); ++source) {
      if (!options.sources[source].streams[request] || is_normalised(options, source, request)) continue;
      const Stream& stream = stream_of(options, source, request);
      if (stream.dtype != DType::kFloat64) continue;
      double worst = kMostShare;
      std::string text;
      for (size_t f = 0; f < static_cast<size_t>(stream.features); ++f) {
        const double loss = kUnit * std::max(std::abs(stream.stats.min[f]), std::abs(stream.stats.max[f]));
        const double share = loss / stream.stats.std[f];
        if (!std::isfinite(share) || share <= worst) continue;
        worst = share;
        text = source_name(options, source) + "'" + asked.stream + "'[" + std::to_string(f) + "]" +
               (f < stream.names.size() ? " (" + stream.names[f] + ")" : "") + " by up to " + short_text(loss) + ", " +
               short_text(share) + " of its std";
      }
      if (!text.empty()) keys += (keys.empty() ? "" : ", ") + text;
    }
  }
  if (keys.empty()) return "";
  return "dtype: float64 values are rounded to float32, which loses " + keys + "; Window(dtype=\"float64\") keeps them";
}

std::string lesser_spread_note(const LoaderOptions& options, std::span<const BatchSpec> specs) {
  constexpr int kMost = 8;  // features that the note names
  std::string features;
  int count = 0;
  for (size_t source = 0; source < options.sources.size(); ++source) {
    for (size_t request = 0; request < options.streams.size(); ++request) {
      if (!is_normalised(options, source, request)) continue;
      const Stream& stream = stream_of(options, source, request);
      const NormStats stats = statistics_of(options, source, request, specs[source]).stats;
      const auto [width, dtype] = values_of(options, source, request);
      const bool recorded = options.streams[request].convert.empty();
      const auto steps = static_cast<size_t>(std::max<int64_t>(stats.steps, 1));
      const size_t given = stats[options.streams[request].normalize->first()].size() / steps;
      for (size_t at = 0; at < steps * static_cast<size_t>(width); ++at) {
        const size_t step = at / static_cast<size_t>(width);
        const size_t f = at % static_cast<size_t>(width);
        const auto spread = lesser_spread(stats, step * given + f, *options.streams[request].normalize,
                                          dtype == DType::kFloat64, options.constant, options.min_spread);
        if (!spread || count++ >= kMost) continue;
        features +=
            (features.empty() ? "" : ", ") + source_name(options, source) + "'" + options.streams[request].stream +
            "'" + (stats.steps > 0 ? "[" + std::to_string(step) + "]" : "") + "[" + std::to_string(f) + "]" +
            (recorded && f < stream.names.size() ? " (" + stream.names[f] + ")" : "") + " " + short_text(*spread);
      }
    }
  }
  if (count == 0) return "";
  if (count > kMost) features += " and " + std::to_string(count - kMost) + " more";
  return "min_spread: features that are not constant count as such and are not scaled, since their spread is below " +
         number_text(options.min_spread) + ", " + std::to_string(count) + " in all: " + features +
         "; min_spread=0 scales them";
}

}  // namespace robocache
