#include "robocache/batch/normalisation.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "robocache/core/arguments.hpp"

namespace robocache {

Normalize normalize_from_name(std::string_view name, std::string_view argument) {
  if (name == "mean_std") return Normalize::kMeanStd;
  if (name == "min_max") return Normalize::kMinMax;
  if (name == "q01_q99") return Normalize::kQ01Q99;
  refuse(argument, ": expected 'mean_std', 'min_max' or 'q01_q99', got '", name, "'");
}

Affine affine(const FeatureStats& stats, size_t feature, Normalize normalize, bool wide) {
  if (stats.count[feature] == 0) return {1, 0};  // nothing but NaN
  const double largest = wide ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
  double centre = stats.mean[feature];
  double spread = stats.std[feature];
  if (normalize != Normalize::kMeanStd) {
    const bool quantiles = normalize == Normalize::kQ01Q99;
    const double low = (quantiles ? stats.q01 : stats.min)[feature];
    const double high = (quantiles ? stats.q99 : stats.max)[feature];
    spread = (high - low) / 2;
    centre = low + (high - low) / 2;
  }
  double scale = 1 / spread;
  // Factors that overflow would make NaN of numbers.
  if (!(scale > 0 && scale <= largest && std::abs(centre * scale) <= largest)) scale = 1;
  const double shift = -centre * scale;
  return {scale, std::abs(shift) <= largest ? shift : 0};
}

AffineTables affine_tables(const Stream& stream, Normalize normalize, DeviceTables& tables) {
  if (normalize == Normalize::kNone) return {};
  const bool wide = stream.dtype == DType::kFloat64;
  std::vector<double> scale;
  std::vector<double> shift;
  for (size_t feature = 0; feature < static_cast<size_t>(stream.features); ++feature) {
    const Affine y = affine(stream.stats, feature, normalize, wide);
    scale.push_back(y.scale);
    shift.push_back(y.shift);
  }
  if (wide) return {tables.put(scale), tables.put(shift)};
  return {tables.put(std::vector<float>(scale.begin(), scale.end())),
          tables.put(std::vector<float>(shift.begin(), shift.end()))};
}

}  // namespace robocache
