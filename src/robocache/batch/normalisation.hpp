// What normalising does to a feature: fma(x, scale, shift), from the cache's statistics.
#pragma once

#include <cstdint>
#include <string_view>

#include "robocache/cache/dataset.hpp"
#include "robocache/core/device_tables.hpp"
#include "robocache/core/dtype.hpp"

namespace robocache {

// y = (x - centre) / spread, computed as fma(x, scale, -centre * scale), scale = 1 / spread, from the cache's statistics
// in float64, both then rounded to the work type. Where that type cannot hold them (the spread is 0), x - centre; where
// the centre is infinite, x.
enum class Normalize : uint8_t {
  kNone,
  kMeanStd,  // centre mean, spread std
  kMinMax,   // min to -1, max to 1
  kQ01Q99,   // q01 to -1, q99 to 1
};

// "mean_std", "min_max", "q01_q99". Throws ArgumentError.
Normalize normalize_from_name(std::string_view name, std::string_view argument = "normalize");

// In float64.
struct Affine {
  double scale;
  double shift;
};

// Of one feature of values whose work type is float64 (`wide`) or float32. `normalize` is not kNone.
Affine affine(const FeatureStats& stats, size_t feature, Normalize normalize, bool wide);

// Scale and shift of every feature of a stream, of its work type, where a kernel reads them; null for kNone.
struct AffineTables {
  const void* scale = nullptr;
  const void* shift = nullptr;
};
AffineTables affine_tables(const Stream& stream, Normalize normalize, DeviceTables& tables);

}  // namespace robocache
