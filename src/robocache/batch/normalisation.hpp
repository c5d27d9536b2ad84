// Normalises a feature by fma(x, scale, shift), and undoes it by fma(y, spread, centre). The numbers come from the
// statistics of a cache or from given statistics.
//
//   NormStats stats;
//   stats.set("mean", {0.5, 1.0});
//   stats.set("std", {0.1, 0.0});
//   const std::vector<Affine> action_affines = affines(stats, 2, 16, DType::kFloat32, Normalize::kMeanStd,
//                                                 Constant::kLeRobot, kMinSpread, "norm_stats['action']");
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/core/device_tables.hpp"
#include "robocache/core/dtype.hpp"
#include "robocache/core/enum_names.hpp"

namespace robocache {

// y = (x - centre) / spread. With mean and std, these are centre and spread. With min and max, or two quantiles such as q02 and
// q98, the first becomes -1 and the second 1. The names are stored in place, so that constant expressions can use this.
struct Normalize {
  using Name = std::array<char, 12>;
  Name first_name = {};  // empty: values stay as they are
  Name second_name = {};

  std::string_view first() const { return first_name.data(); }
  std::string_view second() const { return second_name.data(); }
  bool has_ends() const { return !first().empty() && first() != "mean"; }
  bool operator==(const Normalize&) const = default;

  static const Normalize kNone, kMeanStd, kMinMax, kQ01Q99, kQ10Q90;
};

constexpr Normalize normalize_by(std::string_view first, std::string_view second) {
  Normalize normalize;
  std::ranges::copy(first, normalize.first_name.begin());
  std::ranges::copy(second, normalize.second_name.begin());
  return normalize;
}
inline constexpr Normalize Normalize::kNone{};
inline constexpr Normalize Normalize::kMeanStd = normalize_by("mean", "std");
inline constexpr Normalize Normalize::kMinMax = normalize_by("min", "max");
inline constexpr Normalize Normalize::kQ01Q99 = normalize_by("q01", "q99");
inline constexpr Normalize Normalize::kQ10Q90 = normalize_by("q10", "q90");

// Reads "none", "mean_std", "min_max" or quantiles such as "q02_q98". Throws ArgumentError that names the argument.
Normalize normalize_from_name(std::string_view name, std::string_view argument);
std::string normalize_name(const Normalize& normalize);

// Returns 0.02 for "q02", 0.995 for "q99.5", and nothing for a field of statistics that is no quantile.
std::optional<double> quantile_of(std::string_view field);

// The treatment of a feature without spread: its std, or the distance of its two ends, is 0. With kLeRobot and kOpenPi, a
// spread of at most 2^-24 (float64 2^-53) of the mean or the lower end also counts as none: rounding the statistics of a constant
// can leave that much.
enum class Constant : uint8_t {
  kCenter,   // x - centre
  kLeRobot,  // like LeRobot: 1e-8 is added to every std, and replaces the distance of two equal ends
  kOpenPi,   // like openpi: 1e-6 is added to every std and to every distance of two ends
};

template <>
inline constexpr std::string_view kNames<Constant>[] = {"center", "lerobot", "openpi"};

// A spread below this counts as none, unless the caller gives another limit.
inline constexpr double kMinSpread = 1e-4;

// y = fma(x, scale, shift) and x = fma(y, spread, centre), in float64. Each number is rounded to the work type later.
struct Affine {
  double scale = 1;
  double shift = 0;
  double spread = 1;
  double centre = 0;
};

// The text of NormStats::values if the statistics are of the rows as recorded.
inline constexpr std::string_view kRecorded = "recorded values";

// Statistics of one key. Each field has a number for each feature, row-major. Fields are mean, std, min, max, count and
// quantiles.
struct NormStats {
  std::vector<std::pair<std::string, std::vector<double>>> fields;
  int64_t steps = 0;  // above 0: each step of a window has its own numbers, [steps, features]

  // Says of which values these are the statistics: values_to_json() of a key, kRecorded, or "" if unknown.
  std::string values = {};

  NormStats() = default;
  NormStats(const FeatureStats& stats);  // NOLINT(google-explicit-constructor): of a cache

  // Throws ArgumentError for another field.
  void set(std::string_view field, std::vector<double> numbers);

  std::span<const double> operator[](std::string_view field) const;  // empty if it is not there
};

// How the features of a key are normalised. The work type is float64 (`wide`) or float32.
struct Scaling {
  Normalize normalize;  // not kNone
  bool wide;
  Constant constant = Constant::kCenter;
  double min_spread = kMinSpread;
};

// The affine of one feature, and how it departs from the statistics.
struct ScaledFeature {
  Affine affine = {};

  // The scale is 1 because the work type cannot hold the statistics' scale, or because they give none (NaN, or a spread
  // below 0). False if `spread_below_min` is set.
  bool lacks_scale = false;

  // The spread of the feature (a std, or half the distance of two ends) if it is above 0 but below `min_spread`, so that
  // it counts as none.
  std::optional<double> spread_below_min = {};
};

// Scales one feature by statistics that have what the mode needs. If the work type cannot hold scale, shift and spread, or if the
// spread is below 0, the result is x - centre; if the centre is not finite, it is x. Both lack a scale.
//
// With kLeRobot and kOpenPi, a feature without spread is scaled as LeRobot or openpi scale it: the constant becomes 0
// (kMeanStd) or -1. If that scale is so large that rounding the shift changes this result, the scale is the largest
// power of two below it that keeps the result. The constant, rounded to the work type, then becomes the result within
// 2^-23 (float64 2^-52).
//
// A feature with a spread below `min_spread` has the scale 1. With kCenter its centre becomes 0; else the mean becomes
// 0, or the lower end -1.
ScaledFeature scale_feature(const NormStats& stats, size_t feature, const Scaling& scaling);

// Throws ArgumentError that begins with `name` if statistics that the mode needs are infinite.
void refuse_infinite(const NormStats& stats, const Normalize& normalize, std::string_view name);

// Returns the affine of every feature of a key with values of `dtype`, or of every step and feature if the statistics have
// steps; none for kNone. `steps` is the window's number of steps. Statistics may have more numbers than features if the rest is 0 in
// every field but count: openpi pads them to the width of its model. Throws ArgumentError that begins with `name` if a field
// that the mode needs is missing or has another width.
std::vector<Affine> affines(const NormStats& stats, int64_t features, int64_t steps, DType dtype,
                            const Normalize& normalize, Constant constant, double min_spread, std::string_view name);

struct AffineTables {
  const void* scale = nullptr;
  const void* shift = nullptr;
};
// Returns the scale and shift of every feature of a stream of `dtype`, in its work type, in memory that a kernel reads;
// null if there are no affines.
AffineTables affine_tables(std::span<const Affine> affines, DType dtype, DeviceTables& tables);

}  // namespace robocache
