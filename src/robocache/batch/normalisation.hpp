// What normalising does to a feature: fma(x, scale, shift) there, fma(y, spread, centre) back, from the statistics of a
// cache or from given ones.
//
//   NormStats stats;
//   stats.set("mean", {0.5, 1.0});
//   stats.set("std", {0.1, 0.0});
//   const std::vector<Affine> of_action = affines(stats.view(), 2, DType::kFloat32, Normalize::kMeanStd,
//                                                 Constant::kLeRobot, kMinSpread, "norm_stats['action']");
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/core/device_tables.hpp"
#include "robocache/core/dtype.hpp"
#include "robocache/core/enum_names.hpp"

namespace robocache {

// y = (x - centre) / spread.
enum class Normalize : uint8_t {
  kNone,
  kMeanStd,  // centre mean, spread std
  kMinMax,   // min to -1, max to 1
  kQ01Q99,   // q01 to -1, q99 to 1
  kQ10Q90,   // q10 to -1, q90 to 1
};

template <>
struct EnumNames<Normalize> {
  static constexpr std::string_view names[] = {"none", "mean_std", "min_max", "q01_q99", "q10_q90"};
};

// What becomes of a feature without spread: a std, or a distance of the two ends, of 0, but by kCenter of at most 2^-24
// (float64 2^-53) of the mean or the lower end: what rounded statistics leave of a constant.
enum class Constant : uint8_t {
  kCenter,   // x - centre
  kLeRobot,  // LeRobot's numbers: 1e-8 is added to every std, and is the distance of two ends in one place
  kOpenPi,   // openpi's: 1e-6 is added to every std and to the distance of every two ends
};

template <>
struct EnumNames<Constant> {
  static constexpr std::string_view names[] = {"center", "lerobot", "openpi"};
};

// A spread below it counts as none, unless another is asked for.
inline constexpr double kMinSpread = 1e-4;

// y = fma(x, scale, shift), x = fma(y, spread, centre): in float64, each to be rounded to the work type.
struct Affine {
  double scale = 1;
  double shift = 0;
  double spread = 1;
  double centre = 0;
};

// Of one feature of values whose work type is float64 (`wide`) or float32; `normalize` is not kNone, and the statistics
// that it needs are there. Where the work type cannot hold scale and shift, x - centre; where the centre is not finite, x.
//
// A feature without spread that is not only centred has the slope 1/spread of the peer, but one that is less by a power of
// two where the fma would lose the peer's own number for the constant (0 by kMeanStd, else -1) in the rounding of the
// shift: at the constant, rounded to the work type, that number comes out within 2^-23 (float64 2^-52).
//
// A feature that has a spread, but less than `min_spread`, has the slope 1: by kCenter its centre becomes 0, else the mean 0 or
// the lower end -1.
Affine affine(const FeatureStats& stats, size_t feature, Normalize normalize, bool wide,
              Constant constant = Constant::kCenter, double min_spread = kMinSpread);

// The spread of a feature that counts as none though it is not 0: a std, or half the distance of two ends.
std::optional<double> lesser_spread(const FeatureStats& stats, size_t feature, Normalize normalize, bool wide,
                                    Constant constant, double min_spread);

// Statistics of one key that come from elsewhere than its cache: a number a feature of each field, row-major. A field that
// nobody gave is empty.
inline constexpr std::string_view kRecorded = "recorded values";

struct NormStats {
  std::vector<double> mean, std, min, max, q01, q10, q50, q90, q99, count;

  // What they are of: values_to_json() of a key, kRecorded, or "" where nobody said so.
  std::string of = {};

  // By the field's name. Throws ArgumentError that names the fields there are.
  void set(std::string_view field, std::vector<double> numbers);

  FeatureStats view() const;  // lives as long as this, unchanged
};

// Of every feature of a key whose values are of `dtype`; none for kNone. More numbers than features are taken where those
// behind are 0 in every field but count, as openpi's are that it padded to the width of its model.
// Throws ArgumentError that begins with `name` where a field that the mode needs is missing or of another width.
std::vector<Affine> affines(const FeatureStats& stats, int64_t features, DType dtype, Normalize normalize,
                            Constant constant, double min_spread, std::string_view name);

// Scale and shift of every feature of a stream of `dtype`, of its work type, where a kernel reads them; null for none.
struct AffineTables {
  const void* scale = nullptr;
  const void* shift = nullptr;
};
AffineTables affine_tables(std::span<const Affine> affines, DType dtype, DeviceTables& tables);

}  // namespace robocache
