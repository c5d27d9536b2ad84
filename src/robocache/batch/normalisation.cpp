#include "robocache/batch/normalisation.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "robocache/core/arguments.hpp"

namespace robocache {
namespace {

struct Statistic {
  std::string_view name;
  std::span<const double> FeatureStats::* seen;
  std::vector<double> NormStats::* given;
};

constexpr std::array<Statistic, 10> kStatistics{{
    {"mean", &FeatureStats::mean, &NormStats::mean},
    {"std", &FeatureStats::std, &NormStats::std},
    {"min", &FeatureStats::min, &NormStats::min},
    {"max", &FeatureStats::max, &NormStats::max},
    {"q01", &FeatureStats::q01, &NormStats::q01},
    {"q10", &FeatureStats::q10, &NormStats::q10},
    {"q50", &FeatureStats::q50, &NormStats::q50},
    {"q90", &FeatureStats::q90, &NormStats::q90},
    {"q99", &FeatureStats::q99, &NormStats::q99},
    {"count", &FeatureStats::count, &NormStats::count},
}};

// The two statistics that a mode reads: mean and std, or the two ends.
struct Mode {
  Normalize normalize;
  std::span<const double> FeatureStats::* first;
  std::span<const double> FeatureStats::* second;
};

constexpr std::array<Mode, 4> kModes{{
    {Normalize::kMeanStd, &FeatureStats::mean, &FeatureStats::std},
    {Normalize::kMinMax, &FeatureStats::min, &FeatureStats::max},
    {Normalize::kQ01Q99, &FeatureStats::q01, &FeatureStats::q99},
    {Normalize::kQ10Q90, &FeatureStats::q10, &FeatureStats::q90},
}};

const Mode& mode_of(Normalize normalize) {
  return *std::find_if(kModes.begin(), kModes.end(), [&](const Mode& mode) { return mode.normalize == normalize; });
}

constexpr double kLeRobotEpsilon = 1e-8;
constexpr double kOpenPiEpsilon = 1e-6;

// Returns a line that maps the constant `x`, rounded to the work type, to `y`. Its slope is 1 / spread, or less by a power of
// two if rounding would lose `y`: at x = 1, a slope of 1e8 gives float32 results in steps of 10, which loses LeRobot's -1.
template <class Work>
Affine through(double x, double y, double spread) {
  if (!(std::abs(x) <= std::numeric_limits<Work>::max())) return {};
  const Work constant = static_cast<Work>(x);
  for (double scale = 1 / spread;; scale = std::exp2(std::ceil(std::log2(scale)) - 1)) {
    const double shift = y - scale * static_cast<double>(constant);
    const Work got = std::fma(constant, static_cast<Work>(scale), static_cast<Work>(shift));
    if (std::abs(got - static_cast<Work>(y)) <= std::numeric_limits<Work>::epsilon()) {
      return {scale, shift, 1 / scale, static_cast<double>(constant) - y / scale};
    }
  }
}

// The two statistics that a mode reads of a feature.
struct Ends {
  Ends(const FeatureStats& stats, size_t feature, Normalize normalize, bool wide, Constant constant)
      : first((stats.*mode_of(normalize).first)[feature]), standard(normalize == Normalize::kMeanStd) {
    const double second = (stats.*mode_of(normalize).second)[feature];
    distance = standard ? second : second - first;
    const double unit = (wide ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon()) / 2;
    flat = constant != Constant::kCenter && std::abs(distance) <= unit * std::abs(first);
  }

  double first;         // the mean, or the lower end
  double distance = 0;  // the std, or the distance between the two ends, which is twice the spread
  bool standard;        // mean and std
  bool flat = false;    // without spread
};

std::string names_of_fields(const FeatureStats& stats) {
  std::string names;
  for (const Statistic& field : kStatistics) {
    if ((stats.*field.seen).empty()) continue;
    names.append(names.empty() ? "" : ", ").append(field.name);
  }
  return names.empty() ? "none" : names;
}

std::string_view name_of(std::span<const double> FeatureStats::* seen) {
  return std::find_if(kStatistics.begin(), kStatistics.end(), [&](const Statistic& one) { return one.seen == seen; })
      ->name;
}

void check(const FeatureStats& stats, size_t features, const Mode& mode, std::string_view name) {
  for (const auto seen : {mode.first, mode.second}) {
    if ((stats.*seen).empty() && features > 0) {
      refuse(name, ": '", robocache::name_of(mode.normalize), "' expects ", name_of(mode.first), " and ",
             name_of(mode.second), ", got ", names_of_fields(stats));
    }
    if ((stats.*seen).size() < features) {
      refuse(name, ".", name_of(seen), ": expected ", std::to_string(features), " numbers, one a feature, got ",
             std::to_string((stats.*seen).size()));
    }
  }
  for (const Statistic& field : kStatistics) {
    const std::span<const double> numbers = stats.*field.seen;
    if (field.seen == &FeatureStats::count || numbers.size() <= features) continue;
    const std::span<const double> behind = numbers.subspan(features);
    if (std::all_of(behind.begin(), behind.end(), [](double number) { return number == 0; })) continue;
    refuse(name, ".", field.name, ": expected ", std::to_string(features),
           " numbers, one a feature, and zeros alone behind them, got ", std::to_string(numbers.size()));
  }
}

}  // namespace

std::optional<double> lesser_spread(const FeatureStats& stats, size_t feature, Normalize normalize, bool wide,
                                    Constant constant, double min_spread) {
  const Ends ends(stats, feature, normalize, wide, constant);
  const double spread = std::abs(ends.standard ? ends.distance : ends.distance / 2);
  if (ends.flat || !(spread > 0 && spread < min_spread)) return {};
  return spread;
}

Affine affine(const FeatureStats& stats, size_t feature, Normalize normalize, bool wide, Constant constant,
              double min_spread) {
  auto [first, distance, standard, flat] = Ends(stats, feature, normalize, wide, constant);
  if (lesser_spread(stats, feature, normalize, wide, constant, min_spread)) {
    double zero = first;  // the value that becomes 0
    if (!standard) zero += constant == Constant::kCenter ? distance / 2 : 1;
    const double most = wide ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
    return std::abs(zero) <= most ? Affine{1, -zero, 1, zero} : Affine{};
  }
  if (flat) distance = 0;  // only the rounding error of the statistics is left
  if (constant == Constant::kOpenPi) distance += kOpenPiEpsilon;
  if (constant == Constant::kLeRobot && (standard || flat)) distance += kLeRobotEpsilon;
  double spread = standard ? distance : distance / 2;
  if (flat) {
    const double y = standard ? 0 : -1;
    return wide ? through<double>(first, y, spread) : through<float>(first, y, spread);
  }
  const double centre = standard ? first : first + spread;
  const double largest = wide ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
  double scale = 1 / spread;
  // Factors that overflow would turn numbers into NaN.
  if (!(scale > 0 && scale <= largest && std::abs(centre * scale) <= largest)) scale = spread = 1;
  const double shift = -centre * scale;
  if (!(std::abs(shift) <= largest)) return {scale, 0, spread, 0};
  return {scale, shift, spread, centre};
}

void NormStats::set(std::string_view field, std::vector<double> numbers) {
  for (const Statistic& known : kStatistics) {
    if (field == known.name) {
      this->*known.given = std::move(numbers);
      return;
    }
  }
  refuse("norm_stats: expected mean, std, min, max, q01, q10, q50, q90, q99 and count, got '", field, "'");
}

FeatureStats NormStats::view() const {
  FeatureStats stats;
  for (const Statistic& field : kStatistics) stats.*field.seen = this->*field.given;
  return stats;
}

std::vector<Affine> affines(const FeatureStats& stats, int64_t features, DType dtype, Normalize normalize,
                            Constant constant, double min_spread, std::string_view name) {
  std::vector<Affine> of_features;
  if (normalize == Normalize::kNone) return of_features;
  check(stats, static_cast<size_t>(features), mode_of(normalize), name);
  for (size_t feature = 0; feature < static_cast<size_t>(features); ++feature) {
    of_features.push_back(affine(stats, feature, normalize, dtype == DType::kFloat64, constant, min_spread));
  }
  return of_features;
}

AffineTables affine_tables(std::span<const Affine> affines, DType dtype, DeviceTables& tables) {
  if (affines.empty()) return {};
  const auto put = [&]<class Work>(Work, double Affine::* part) -> const void* {
    std::vector<Work> numbers;
    for (const Affine& y : affines) numbers.push_back(static_cast<Work>(y.*part));
    return tables.put(numbers);
  };
  if (dtype == DType::kFloat64) return {put(double{}, &Affine::scale), put(double{}, &Affine::shift)};
  return {put(float{}, &Affine::scale), put(float{}, &Affine::shift)};
}

}  // namespace robocache
