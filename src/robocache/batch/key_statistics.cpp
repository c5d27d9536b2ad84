#include "robocache/batch/key_statistics.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "robocache/batch/window_statistics.hpp"
#include "robocache/cache/selection_statistics.hpp"
#include "robocache/cache/statistics.hpp"
#include "robocache/core/arguments.hpp"

namespace robocache {
namespace {

bool is_normalised(const LoaderOptions& options, size_t source, size_t request) {
  return options.sources[source].streams[request] && *options.streams[request].normalize != Normalize::kNone;
}

// The values before normalisation: the stream's rows, or the results of conversions.
struct Values {
  int64_t features;
  DType dtype;
};

Values values_of(const LoaderOptions& options, size_t source, size_t request) {
  if (options.streams[request].convert.empty()) {
    const Stream& stream = *options.sources[source].stream_of(request);
    return {stream.features, stream.dtype};
  }
  const KeyConversion conversion = key_conversion(options, request);
  return {conversion.ops.out_features, conversion.work};
}

// Refuses statistics of values that are not the key's.
void check_values(const BatchSpec& spec, size_t request, const NormStats& given, const std::string& name) {
  const KeySpec& key = spec.keys[request];
  if (given.values.empty()) return;
  const bool is_recorded = given.values == kRecorded;
  const std::string expected = values_to_json(spec, request);
  const std::string remedy =
      "; dataset.statistics(loader)['" + key.key + "'] makes them, and a loader without norm_stats does so itself";
  if (key.convert) {
    if (given.values == expected) return;
    refuse(name, ": expected statistics of what this window gives after its conversions, got ",
           is_recorded ? "those of recorded values" : "others: " + differing_values(expected, given.values), remedy);
  }
  if (is_recorded) return;
  const std::string differences = differing_values(expected, given.values);
  if (given.values.find("\"convert\":null") == std::string::npos) {
    refuse(name, ": expected statistics of values that are not converted, got others: ", differences,
           "; dataset.statistics(episodes) makes them");
  }
  if (given.steps == 0 || differences.find("offsets_") == std::string::npos) return;
  refuse(name, ": expected statistics of this window's steps, got others: ", differences, remedy);
}

// Returns the given statistics of a key. If there are none and nothing is converted, returns those of the key whose
// stream fills it: a goal is normalised like the state.
auto find_given(const std::map<std::string, NormStats>& given, const StreamRequest& request) {
  const auto entry = given.find(request.stream);
  return entry == given.end() && request.convert.empty() ? given.find(request.rows_key()) : entry;
}

struct KeyStatistics {
  NormStats stats;
  std::string name;        // in errors
  bool are_given = false;  // by the caller
};

// Returns the fields of computed statistics that a mode reads. The rows of `table` are mean, std, min, max, the quantiles, and
// the count.
NormStats stats_of_table(const std::vector<double>& table, std::span<const double> quantiles, const Normalize& mode) {
  NormStats stats;
  const size_t features = table.size() / (5 + quantiles.size());
  const auto set = [&](std::string_view field, size_t row) {
    const auto begin = table.begin() + static_cast<std::ptrdiff_t>(row * features);
    stats.set(field, {begin, begin + static_cast<std::ptrdiff_t>(features)});
  };
  constexpr std::string_view kFields[] = {"mean", "std", "min", "max"};
  for (size_t row = 0; row < std::size(kFields); ++row) set(kFields[row], row);
  set("count", 4 + quantiles.size());
  for (const std::string_view field : {mode.first(), mode.second()}) {
    const auto quantile = quantile_of(field);
    if (quantile) set(field, 4 + static_cast<size_t>(std::ranges::find(quantiles, *quantile) - quantiles.begin()));
  }
  return stats;
}

KeyStatistics statistics_of(const LoaderOptions& options, size_t source, size_t request, const BatchSpec& spec) {
  const std::string& key = options.streams[request].stream;
  const SourceRequest& source_request = options.sources[source];
  const std::string name = "norm_stats['" + key + "']";
  if (const auto given = find_given(source_request.norm_stats, options.streams[request]);
      given != source_request.norm_stats.end()) {
    check_values(spec, request, given->second, source_name(options, source) + name);
    return {given->second, source_name(options, source) + name, true};
  }
  if (const auto given = find_given(options.norm_stats, options.streams[request]); given != options.norm_stats.end()) {
    check_values(spec, request, given->second, name);
    return {given->second, name, true};
  }
  const Normalize& mode = *options.streams[request].normalize;
  std::vector<double> quantiles(cache::kQuantiles.begin(), cache::kQuantiles.end());
  for (const std::string_view field : {mode.first(), mode.second()}) {
    const auto quantile = quantile_of(field);
    if (quantile && std::ranges::find(quantiles, *quantile) == quantiles.end()) quantiles.push_back(*quantile);
  }
  std::ranges::sort(quantiles);
  if (!options.streams[request].convert.empty()) {
    const auto table = window_statistics(options, source, request, source_request.selection, {.quantiles = quantiles});
    return {stats_of_table(*table, quantiles, mode), "key '" + key + "'"};
  }
  const int64_t stream = *source_request.streams[request];
  const auto table = source_request.selection ? cache::selection_statistics(*source_request.dataset, stream,
                                                                            *source_request.selection, quantiles)
                                              : cache::stream_statistics(*source_request.dataset, stream, quantiles);
  return {stats_of_table(*table, quantiles, mode), "stream '" + key + "'"};
}

// Returns the statistics of a key's values before normalisation: of all recorded rows or, for a converted key, of the
// conversions' results, if they are computed.
NormStats known_statistics(const LoaderOptions& options, size_t source, size_t request, const BatchSpec& spec) {
  if (options.streams[request].convert.empty()) {
    const auto table =
        cache::stream_statistics(*options.sources[source].dataset, *options.sources[source].streams[request]);
    return cache::feature_stats(table->data(), options.sources[source].stream_of(request)->features);
  }
  if (!is_normalised(options, source, request)) return {};
  KeyStatistics statistics = statistics_of(options, source, request, spec);
  return statistics.are_given ? NormStats() : std::move(statistics.stats);
}

std::string short_text(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", number);
  return text;
}

// Returns a feature's name in a note, with `step` if each step has its own statistics.
std::string feature_name(const LoaderOptions& options, size_t source, size_t request, size_t feature,
                         std::optional<size_t> step = {}) {
  const StreamRequest& key_request = options.streams[request];
  const Stream& stream = *options.sources[source].stream_of(request);
  return source_name(options, source) + "'" + key_request.stream + "'" +
         (step ? "[" + std::to_string(*step) + "]" : "") + "[" + std::to_string(feature) + "]" +
         (key_request.convert.empty() && feature < stream.names.size() ? " (" + stream.names[feature] + ")" : "");
}

// Returns the smallest number that rounds to infinity in `dtype`. Returns 0 for integers: nothing is rounded to them.
double least_infinite(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return 0x1.ffep15;
    case DType::kBFloat16:
      return 0x1.ffp127;
    case DType::kFloat32:
      return 0x1.ffffffp127;
    case DType::kFloat64:
      return std::numeric_limits<double>::infinity();
    default:
      return 0;
  }
}

// The features that a note is about: counts all of them, and names the first 8.
struct FeatureList {
  void add(const std::string& name) {
    constexpr int kMostNames = 8;
    if (count++ < kMostNames) {
      names += (names.empty() ? "" : ", ") + name;
    } else {
      ++more;
    }
  }
  std::string text() const {
    return std::to_string(count) + " in all: " + names + (more > 0 ? " and " + std::to_string(more) + " more" : "");
  }

  std::string names;
  int count = 0;
  int more = 0;
};

}  // namespace

std::vector<Affine> affines_of(const LoaderOptions& options, size_t source, size_t request, const BatchSpec& spec) {
  if (!is_normalised(options, source, request)) return {};
  const auto [features, dtype] = values_of(options, source, request);
  const auto [stats, name, are_given] = statistics_of(options, source, request, spec);
  if (are_given) refuse_infinite(stats, *options.streams[request].normalize, name);
  return affines(stats, features, spec.keys[request].steps(), dtype, *options.streams[request].normalize,
                 options.constant, options.min_spread, name);
}

std::string rounding_note(const LoaderOptions& options) {
  constexpr double kLeastShare = 1.0 / 4096;  // a loss of a smaller share of the std does not matter
  constexpr double kUnit = 0x1p-24;           // half the distance of neighbouring float32 numbers, relative to them
  std::string keys;
  for (size_t request = 0; request < options.streams.size(); ++request) {
    const StreamRequest& key_request = options.streams[request];
    if (is_camera(key_request) || key_request.dtype_asked || *key_request.dtype != DType::kFloat32 ||
        !key_request.convert.empty())
      continue;
    for (size_t source = 0; source < options.sources.size(); ++source) {
      if (!options.sources[source].streams[request] || is_normalised(options, source, request)) continue;
      const Stream& stream = *options.sources[source].stream_of(request);
      if (stream.dtype != DType::kFloat64) continue;
      const auto table =
          cache::stream_statistics(*options.sources[source].dataset, *options.sources[source].streams[request]);
      const FeatureStats stats = cache::feature_stats(table->data(), stream.features);
      double worst = kLeastShare;
      std::string text;
      for (size_t f = 0; f < static_cast<size_t>(stream.features); ++f) {
        const double loss = kUnit * std::max(std::abs(stats.min[f]), std::abs(stats.max[f]));
        const double share = loss / stats.std[f];
        if (!std::isfinite(share) || share <= worst) continue;
        worst = share;
        text = feature_name(options, source, request, f) + " by up to " + short_text(loss) + ", " + short_text(share) +
               " of its std";
      }
      if (!text.empty()) keys += (keys.empty() ? "" : ", ") + text;
    }
  }
  if (keys.empty()) return "";
  return "dtype: float64 values are rounded to float32, which loses " + keys + "; Window(dtype=\"float64\") keeps them";
}

std::string overflow_note(const LoaderOptions& options, std::span<const BatchSpec> specs) {
  FeatureList infinite;
  std::set<std::string> dtypes;
  for (size_t source = 0; source < options.sources.size(); ++source) {
    for (size_t request = 0; request < options.streams.size(); ++request) {
      const KeySpec& key = specs[source].keys[request];
      const double least = least_infinite(key.dtype);
      if (least == 0 || key.images || !key.rows || key.rows->clip) continue;
      const NormStats values = known_statistics(options, source, request, specs[source]);
      const size_t features = values["min"].size();
      const std::vector<Affine> unchanged(features);
      const std::vector<Affine>& affines = key.rows->affine.empty() ? unchanged : key.rows->affine;
      std::vector<double> largest(features);
      for (size_t i = 0; features > 0 && i < affines.size(); ++i) {
        const size_t f = i % features;
        for (const double extreme : {values["min"][f], values["max"][f]}) {
          const double y = std::abs(std::fma(extreme, affines[i].scale, affines[i].shift));
          largest[f] = std::max(largest[f], std::isnan(y) ? 0 : y);
        }
      }
      for (size_t f = 0; f < features; ++f) {
        if (largest[f] < least) continue;
        infinite.add(feature_name(options, source, request, f) + " up to " + short_text(largest[f]));
        dtypes.emplace(dtype_name(key.dtype));
      }
    }
  }
  if (infinite.count == 0) return "";
  std::string dtype_names;
  for (const std::string& dtype : dtypes) dtype_names += (dtype_names.empty() ? "" : " and ") + dtype;
  return "dtype: numbers become infinite, since they are beyond " + dtype_names + ", " + infinite.text() +
         "; a wider Window(dtype=) holds them";
}

std::vector<std::string> unscaled_notes(const LoaderOptions& options, std::span<const BatchSpec> specs) {
  FeatureList below_min;
  FeatureList without_scale;
  for (size_t source = 0; source < options.sources.size(); ++source) {
    for (size_t request = 0; request < options.streams.size(); ++request) {
      if (!is_normalised(options, source, request)) continue;
      const Stream& stream = *options.sources[source].stream_of(request);
      const auto [stats, _, are_given] = statistics_of(options, source, request, specs[source]);
      const auto [width, dtype] = values_of(options, source, request);
      const Normalize& mode = *options.streams[request].normalize;
      const Scaling scaling{mode, dtype == DType::kFloat64, options.constant, options.min_spread};
      const bool is_recorded = options.streams[request].convert.empty();
      const auto steps = static_cast<size_t>(std::max<int64_t>(stats.steps, 1));
      const size_t stats_width = stats[mode.first()].size() / steps;
      for (size_t i = 0; i < steps * static_cast<size_t>(width); ++i) {
        const size_t step = i / static_cast<size_t>(width);
        const size_t f = i % static_cast<size_t>(width);
        const size_t index = step * stats_width + f;
        const ScaledFeature scaled = scale_feature(stats, index, scaling);
        bool has_numbers = true;
        if (!are_given) {
          has_numbers = stats["count"][index] > 0;
        } else if (is_recorded) {
          has_numbers = stream.stats.count[f] > 0;
        }
        const bool lacks_scale = has_numbers && scaled.lacks_scale;
        if (!scaled.spread_below_min && !lacks_scale) continue;
        const std::string name =
            feature_name(options, source, request, f, stats.steps > 0 ? std::optional(step) : std::nullopt);
        if (lacks_scale) {
          const auto field_text = [&](std::string_view field) {
            return std::string(field) + " " + short_text(stats[field][index]);
          };
          without_scale.add(name + " " + field_text(mode.first()) + " and " + field_text(mode.second()));
        } else {
          below_min.add(name + " " + short_text(*scaled.spread_below_min));
        }
      }
    }
  }
  std::vector<std::string> notes;
  if (without_scale.count > 0) {
    notes.push_back("normalize: features are not scaled, since their statistics give no scale, " +
                    without_scale.text() + "; Normalization(norm_stats=) gives others");
  }
  if (below_min.count > 0) {
    notes.push_back(
        "min_spread: features that vary count as constant and are not scaled, since their spread is below " +
        number_text(options.min_spread) + ", " + below_min.text() + "; min_spread=0 scales them");
  }
  return notes;
}

}  // namespace robocache
