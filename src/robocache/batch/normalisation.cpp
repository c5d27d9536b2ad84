#include "robocache/batch/normalisation.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "robocache/core/arguments.hpp"

namespace robocache {
namespace {

constexpr double kLeRobotEpsilon = 1e-8;
constexpr double kOpenPiEpsilon = 1e-6;

// Returns a line that maps the constant `x`, rounded to the work type, to `y`. Its slope is 1 / spread; if rounding
// would lose `y`, it is the largest power of two below that which keeps `y`. At x = 1, a slope of 1e8 gives float32
// results in steps of 8, which loses LeRobot's -1.
template <class Work>
Affine line_through(double x, double y, double spread) {
  const Work constant = static_cast<Work>(x);
  for (double scale = 1 / spread;; scale = std::exp2(std::ceil(std::log2(scale)) - 1)) {
    const double shift = y - scale * static_cast<double>(constant);
    const Work result = std::fma(constant, static_cast<Work>(scale), static_cast<Work>(shift));
    if (std::abs(result - static_cast<Work>(y)) <= std::numeric_limits<Work>::epsilon()) {
      return {scale, shift, 1 / scale, static_cast<double>(constant) - y / scale};
    }
  }
}

std::string names_of_fields(const NormStats& stats) {
  std::string names;
  for (const auto& [field, numbers] : stats.fields) names.append(names.empty() ? "" : ", ").append(field);
  return names.empty() ? "none" : names;
}

// Checks the fields. Returns how many numbers a field has for each step.
int64_t checked_width(const NormStats& stats, size_t features, int64_t steps, const Normalize& mode,
                      std::string_view name) {
  if (stats.steps > 0 && stats.steps != steps) {
    refuse(name, ": expected statistics for each of the window's ", steps,
           " steps, or for all steps together, got them for ", stats.steps);
  }
  const auto stats_steps = static_cast<size_t>(std::max<int64_t>(stats.steps, 1));
  for (const std::string_view field : {mode.first(), mode.second()}) {
    if (stats[field].empty() && features > 0) {
      refuse(name, ": '", normalize_name(mode), "' expects ", mode.first(), " and ", mode.second(), ", got ",
             names_of_fields(stats));
    }
    if (stats[field].size() < features * stats_steps) {
      refuse(name, ".", field, ": expected ", features, " numbers, one a feature, got ",
             stats[field].size() / stats_steps);
    }
  }
  const size_t width = stats[mode.first()].size() / stats_steps;
  for (const auto& [field, numbers] : stats.fields) {
    if (field == "count" || numbers.size() <= features * stats_steps) continue;
    bool rest_is_zero = true;
    for (size_t i = 0; i < numbers.size(); ++i)
      rest_is_zero = rest_is_zero && (i % width < features || numbers[i] == 0);
    if (rest_is_zero) continue;
    refuse(name, ".", field, ": expected ", features, " numbers, one a feature, and only zeros after them, got ",
           numbers.size() / stats_steps);
  }
  return static_cast<int64_t>(width);
}

}  // namespace

ScaledFeature scale_feature(const NormStats& stats, size_t feature, const Scaling& scaling) {
  const auto& [normalize, wide, constant_rule, min_spread] = scaling;
  const double first = stats[normalize.first()][feature];  // the mean, or the lower end
  const double second = stats[normalize.second()][feature];
  const bool uses_std = !normalize.has_ends();
  double distance = uses_std ? second : second - first;  // the std, or the distance of the two ends: twice the spread
  const double rounding_unit =
      (wide ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon()) / 2;
  const bool is_flat =
      constant_rule != Constant::kCenter && std::abs(distance) <= rounding_unit * std::abs(first);  // without spread
  const double largest = wide ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
  const double recorded_spread = std::abs(uses_std ? distance : distance / 2);
  if (!is_flat && recorded_spread > 0 && recorded_spread < min_spread) {
    double zero = first;  // the value that becomes 0
    if (!uses_std) zero += constant_rule == Constant::kCenter ? distance / 2 : 1;
    if (!(std::abs(zero) <= largest)) return {.lacks_scale = true, .spread_below_min = recorded_spread};
    return {.affine = {1, -zero, 1, zero}, .spread_below_min = recorded_spread};
  }
  if (is_flat) distance = 0;  // only the rounding error of the statistics is left
  if (constant_rule == Constant::kOpenPi) distance += kOpenPiEpsilon;
  if (constant_rule == Constant::kLeRobot && (uses_std || is_flat)) distance += kLeRobotEpsilon;
  double spread = uses_std ? distance : distance / 2;
  if (is_flat) {
    if (!(std::abs(first) <= largest)) return {.lacks_scale = true};
    const double y = uses_std ? 0 : -1;
    return {.affine = wide ? line_through<double>(first, y, spread) : line_through<float>(first, y, spread)};
  }
  const double centre = uses_std ? first : first + spread;
  double scale = 1 / spread;
  bool lacks_scale = false;
  // Factors that overflow would turn numbers into NaN.
  if (!(scale > 0 && scale <= largest && spread <= largest && std::abs(centre * scale) <= largest)) {
    lacks_scale = distance != 0;  // a constant is only centred
    scale = spread = 1;
  }
  const double shift = -centre * scale;
  if (!(std::abs(shift) <= largest)) return {.affine = {scale, 0, spread, 0}, .lacks_scale = true};
  return {.affine = {scale, shift, spread, centre}, .lacks_scale = lacks_scale};
}

void refuse_infinite(const NormStats& stats, const Normalize& normalize, std::string_view name) {
  for (const std::string_view field : {normalize.first(), normalize.second()}) {
    const std::span<const double> numbers = stats[field];
    const auto infinite = std::ranges::find_if(numbers, [](double x) { return std::isinf(x); });
    if (infinite == numbers.end()) continue;
    const size_t features = numbers.size() / static_cast<size_t>(std::max<int64_t>(stats.steps, 1));
    refuse(name, ".", field, ": expected finite numbers, got ", *infinite > 0 ? "inf" : "-inf", " for feature ",
           static_cast<size_t>(infinite - numbers.begin()) % features,
           "; compute the statistics without infinities, as Dataset.statistics does");
  }
}

NormStats::NormStats(const FeatureStats& stats) {
  const std::pair<std::string_view, std::span<const double>> known_fields[] = {
      {"mean", stats.mean}, {"std", stats.std}, {"min", stats.min}, {"max", stats.max}, {"q01", stats.q01},
      {"q10", stats.q10},   {"q50", stats.q50}, {"q90", stats.q90}, {"q99", stats.q99}, {"count", stats.count}};
  for (const auto& [field, numbers] : known_fields) {
    if (!numbers.empty()) fields.emplace_back(field, std::vector<double>(numbers.begin(), numbers.end()));
  }
}

void NormStats::set(std::string_view field, std::vector<double> numbers) {
  constexpr std::string_view kPlainFields[] = {"mean", "std", "min", "max", "count"};
  if (std::ranges::find(kPlainFields, field) == std::end(kPlainFields) && !quantile_of(field)) {
    refuse("norm_stats: expected mean, std, min, max, count and quantiles such as q01, got '", field, "'");
  }
  fields.emplace_back(field, std::move(numbers));
}

std::span<const double> NormStats::operator[](std::string_view field) const {
  for (const auto& [name, numbers] : fields) {
    if (name == field) return numbers;
  }
  return {};
}

std::optional<double> quantile_of(std::string_view field) {
  if (field.size() < 3 || field.size() > 9 || field[0] != 'q') return {};
  const std::string_view percent = field.substr(1);
  const size_t point = std::min(percent.find('.'), percent.size());
  const auto is_digit = [](char c) { return '0' <= c && c <= '9'; };
  const auto digits = [&](std::string_view text) { return !text.empty() && std::ranges::all_of(text, is_digit); };
  if ((point != 2 && percent != "100") || !digits(percent.substr(0, point))) return {};
  if (point < percent.size() && !digits(percent.substr(point + 1))) return {};
  // Reads the digits as a decimal fraction, so that "q07" is 0.07: 7 / 100 may round to another number.
  const std::string integer_digits(percent.substr(0, point));
  const std::string fraction =
      percent == "100" ? "1" : "0." + integer_digits + std::string(percent.substr(std::min(point + 1, percent.size())));
  return std::strtod(fraction.c_str(), nullptr);
}

Normalize normalize_from_name(std::string_view name, std::string_view argument) {
  for (const Normalize& known : {Normalize::kNone, Normalize::kMeanStd, Normalize::kMinMax}) {
    if (name == normalize_name(known)) return known;
  }
  const size_t separator = std::min(name.find('_'), name.size());
  const std::string_view low = name.substr(0, separator);
  const std::string_view high = name.substr(std::min(separator + 1, name.size()));
  const auto from = quantile_of(low);
  const auto to = quantile_of(high);
  if (from && to && *from < *to) return normalize_by(low, high);
  refuse(argument, ": expected 'none', 'mean_std', 'min_max' or two quantiles, such as 'q01_q99', got '", name, "'");
}

std::string normalize_name(const Normalize& normalize) {
  if (normalize == Normalize::kNone) return "none";
  return std::string(normalize.first()) + "_" + std::string(normalize.second());
}

std::vector<Affine> affines(const NormStats& stats, int64_t features, int64_t steps, DType dtype,
                            const Normalize& normalize, Constant constant, double min_spread, std::string_view name) {
  std::vector<Affine> result;
  if (normalize == Normalize::kNone) return result;
  const Scaling scaling{normalize, dtype == DType::kFloat64, constant, min_spread};
  const int64_t width = checked_width(stats, static_cast<size_t>(features), steps, normalize, name);
  for (int64_t step = 0; step < std::max<int64_t>(stats.steps, 1); ++step) {
    for (int64_t feature = 0; feature < features; ++feature) {
      result.push_back(scale_feature(stats, static_cast<size_t>(step * width + feature), scaling).affine);
    }
  }
  return result;
}

AffineTables affine_tables(std::span<const Affine> affines, DType dtype, DeviceTables& tables) {
  if (affines.empty()) return {};
  const auto put = [&]<class Work>(Work, double Affine::* part) -> const void* {
    std::vector<Work> numbers;
    for (const Affine& affine : affines) numbers.push_back(static_cast<Work>(affine.*part));
    return tables.put(numbers);
  };
  if (dtype == DType::kFloat64) return {put(double{}, &Affine::scale), put(double{}, &Affine::shift)};
  return {put(float{}, &Affine::scale), put(float{}, &Affine::shift)};
}

}  // namespace robocache
