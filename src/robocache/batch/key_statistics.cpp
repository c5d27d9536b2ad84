#include "robocache/batch/key_statistics.hpp"

#include <cstdio>
#include <string>

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

// What is normalised: the stream's rows, or what conversions make of them.
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
  if (recorded || given.of.find("\"convert\":null") != std::string::npos) return;
  refuse(name,
         ": expected statistics of values that are not converted, got others: ", differing_values(expected, given.of),
         "; dataset.statistics(episodes) makes them");
}

// Calls by(statistics, their name for errors).
template <class By>
auto by_statistics(const LoaderOptions& options, size_t source, size_t request, const BatchSpec& spec, const By& by) {
  const std::string& key = options.streams[request].stream;
  const SourceRequest& from = options.sources[source];
  const std::string name = "norm_stats['" + key + "']";
  if (const auto given = from.norm_stats.find(key); given != from.norm_stats.end()) {
    check_values(spec, request, given->second, source_name(options, source) + name);
    return by(given->second.view(), source_name(options, source) + name);
  }
  if (const auto given = options.norm_stats.find(key); given != options.norm_stats.end()) {
    check_values(spec, request, given->second, name);
    return by(given->second.view(), name);
  }
  if (!options.streams[request].convert.empty()) {
    const auto table = window_statistics(options, source, request, from.selection, {});
    return by(cache::feature_stats(table->data(), spec.keys[request].shape[0]), "key '" + key + "'");
  }
  const Stream& stream = stream_of(options, source, request);
  if (!from.selection) return by(stream.stats, "stream '" + key + "'");
  const auto table = cache::selection_statistics(*from.dataset, *from.streams[request], *from.selection);
  return by(cache::feature_stats(table->data(), stream.features), "stream '" + key + "'");
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
  return by_statistics(options, source, request, spec, [&](const FeatureStats& stats, const std::string& name) {
    return affines(stats, features, dtype, *options.streams[request].normalize, options.constant, options.min_spread,
                   name);
  });
}

std::string lesser_spread_note(const LoaderOptions& options, std::span<const BatchSpec> specs) {
  constexpr int kMost = 8;  // features that the note names
  std::string features;
  int count = 0;
  for (size_t source = 0; source < options.sources.size(); ++source) {
    for (size_t request = 0; request < options.streams.size(); ++request) {
      if (!is_normalised(options, source, request)) continue;
      const Stream& stream = stream_of(options, source, request);
      by_statistics(options, source, request, specs[source], [&](const FeatureStats& stats, const std::string&) {
        const auto [width, dtype] = values_of(options, source, request);
        const bool recorded = options.streams[request].convert.empty();
        for (size_t f = 0; f < static_cast<size_t>(width); ++f) {
          const auto spread = lesser_spread(stats, f, *options.streams[request].normalize, dtype == DType::kFloat64,
                                            options.constant, options.min_spread);
          if (!spread || count++ >= kMost) continue;
          features += (features.empty() ? "" : ", ") + source_name(options, source) + "'" +
                      options.streams[request].stream + "'[" + std::to_string(f) + "]" +
                      (recorded && f < stream.names.size() ? " (" + stream.names[f] + ")" : "") + " " +
                      short_text(*spread);
        }
      });
    }
  }
  if (count == 0) return "";
  if (count > kMost) features += " and " + std::to_string(count - kMost) + " more";
  return "min_spread: features that are not constant count as such and are not scaled, since their spread is below " +
         number_text(options.min_spread) + ", " + std::to_string(count) + " in all: " + features +
         "; min_spread=0 scales them";
}

}  // namespace robocache
