#include "robocache/batch/normalisation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "robocache/core/error.hpp"
#include "tests/cpp/batch/loader_reference.hpp"
#include "tests/cpp/expect_refused.hpp"
#include "tests/cpp/trials.hpp"

namespace robocache::test {
namespace {

TEST(NormalizeNames, ComeBackOrAreRefusedWithTheKnownOnes) {
  EXPECT_EQ(normalize_from_name("mean_std"), Normalize::kMeanStd);
  EXPECT_EQ(normalize_from_name("min_max"), Normalize::kMinMax);
  EXPECT_EQ(normalize_from_name("q01_q99"), Normalize::kQ01Q99);
  EXPECT_EQ(normalize_from_name("q10_q90"), Normalize::kQ10Q90);
  EXPECT_EQ(constant_from_name("center"), Constant::kCenter);
  EXPECT_EQ(constant_from_name("lerobot"), Constant::kLeRobot);
  EXPECT_EQ(constant_from_name("openpi"), Constant::kOpenPi);
  expect_refused<ArgumentError>(
      [] { normalize_from_name("zscore"); },
      "normalize: expected 'mean_std', 'min_max', 'q01_q99', 'q10_q90' or 'none', got 'zscore'");
  expect_refused<ArgumentError>([] { constant_from_name("centre"); },
                                "constant: expected 'center', 'lerobot' or 'openpi', got 'centre'");
}

// ---- affine, against what the words mean ----

constexpr std::array kModes{Normalize::kMeanStd, Normalize::kMinMax, Normalize::kQ01Q99, Normalize::kQ10Q90};

// Statistics of one feature; what normalising does not read is NaN.
struct OneFeature {
  double mean, std, min, max, q01 = kNan, q99 = kNan, q10 = kNan, q90 = kNan;

  Affine by(Normalize normalize, bool wide, Constant constant = Constant::kCenter) const {
    static const double unread = kNan;
    const auto one = [](const double& value) { return std::span<const double>(&value, 1); };
    return affine(
        {one(mean), one(std), one(min), one(max), one(q01), one(q10), one(unread), one(q90), one(q99), one(unread)}, 0,
        normalize, wide, constant, 0);
  }
};

// A feature of which mean and std are these, and the two ends of every range mean and mean + std.
OneFeature from(double low, double distance) {
  const double high = low + distance;
  return {.mean = low, .std = high - low, .min = low, .max = high, .q01 = low, .q99 = high, .q10 = low, .q90 = high};
}

void expect_affine(const Affine& got, double scale, double shift) {
  EXPECT_EQ(got.scale, scale);
  EXPECT_EQ(got.shift, shift);
}

TEST(AffineOf, NumbersWorkedOutByHand) {
  const OneFeature x{.mean = 3, .std = 0.5, .min = -2, .max = 6, .q01 = 1, .q99 = 1.25, .q10 = -0.5, .q90 = 0.5};
  for (const bool wide : {false, true}) {
    expect_affine(x.by(Normalize::kMeanStd, wide), 2, -6);
    expect_affine(x.by(Normalize::kMinMax, wide), 0.25, -0.5);
    expect_affine(x.by(Normalize::kQ01Q99, wide), 8, -9);
    expect_affine(x.by(Normalize::kQ10Q90, wide), 2, 0);
    EXPECT_EQ(x.by(Normalize::kMinMax, wide).spread, 4);
    EXPECT_EQ(x.by(Normalize::kMinMax, wide).centre, 2);
  }
}

// Whatever the numbers: the two ends come to -1 and 1, and mean and mean + std to 0 and 1. In long double, whose rounding
// is nothing here; scale and shift are each off by half a unit or two of float64.
TEST(AffineOf, BringsTheEndsToTheEndsAndTheMeanTo0) {
  Random random(71);
  for (int i = 0; i < trials(20'000); ++i) {
    const double size = std::ldexp(1, static_cast<int>(random.below(60)) - 30);
    const double low = size * random.between(-3, 3);
    const OneFeature x = from(low, size * random.between(0.01, 3));
    const double high = x.max;
    const auto at = [](const Affine& y, double value) {
      return static_cast<double>(static_cast<long double>(y.scale) * value + y.shift);
    };
    const double bound = 4 * 0x1p-53 * (1 + (std::abs(low) + std::abs(high)) / (high - low)) * 2;
    for (const Normalize normalize : {Normalize::kMinMax, Normalize::kQ01Q99, Normalize::kQ10Q90}) {
      ASSERT_NEAR(at(x.by(normalize, true), low), -1, bound);
      ASSERT_NEAR(at(x.by(normalize, true), high), 1, bound);
    }
    ASSERT_NEAR(at(x.by(Normalize::kMeanStd, true), low), 0, bound);
    ASSERT_NEAR(at(x.by(Normalize::kMeanStd, true), high), 1, bound);
  }
}

TEST(AffineOf, OnlyCentresWhatHasNoSpreadThatTheTypeCanDivideBy) {
  expect_affine(OneFeature{.mean = 7, .std = 0, .min = 7, .max = 7}.by(Normalize::kMeanStd, true), 1, -7);
  expect_affine(OneFeature{.mean = 7, .std = 0, .min = 7, .max = 7}.by(Normalize::kMinMax, true), 1, -7);
  const OneFeature tiny{.mean = 2, .std = 0x1p-130, .min = 0, .max = 0};  // 2^130 is no float32
  expect_affine(tiny.by(Normalize::kMeanStd, false), 1, -2);
  expect_affine(tiny.by(Normalize::kMeanStd, true), 0x1p130, -0x1p131);
  const OneFeature far{.mean = 0x1p100, .std = 0x1p-100, .min = 0, .max = 0};  // the shift is none, the scale is
  expect_affine(far.by(Normalize::kMeanStd, false), 1, -0x1p100);
}

TEST(AffineOf, DoesNotScaleASpreadBelowTheLeast) {
  const double low = 2, distance = 1e-5;
  const std::array ends{low, low + distance};
  const std::array deviation{distance};
  FeatureStats stats;
  stats.mean = stats.min = {ends.data(), 1};
  stats.max = {ends.data() + 1, 1};
  stats.std = deviation;
  for (const Constant constant : {Constant::kCenter, Constant::kLeRobot, Constant::kOpenPi}) {
    expect_affine(affine(stats, 0, Normalize::kMeanStd, true, constant), 1, -low);
    const double zero = constant == Constant::kCenter ? low + (low + distance - low) / 2 : low + 1;
    expect_affine(affine(stats, 0, Normalize::kMinMax, true, constant), 1, -zero);
    EXPECT_EQ(lesser_spread(stats, 0, Normalize::kMeanStd, true, constant, 1e-4), distance);
    EXPECT_FALSE(lesser_spread(stats, 0, Normalize::kMeanStd, true, constant, distance));  // no less than itself
    EXPECT_FALSE(lesser_spread(stats, 0, Normalize::kMinMax, true, constant, 0));
  }
}

TEST(AffineOf, LeavesAloneWhatIsNothingButNanOrHasNoCentre) {
  const OneFeature nothing = from(kNan, kNan);
  for (const Normalize normalize : kModes) {
    for (const Constant constant : {Constant::kCenter, Constant::kLeRobot, Constant::kOpenPi}) {
      expect_affine(nothing.by(normalize, true, constant), 1, 0);
      expect_affine(from(1e300, 0).by(normalize, false, constant), 1, 0);  // which no float32 is
    }
  }
  expect_affine(OneFeature{.mean = HUGE_VAL, .std = kNan, .min = 0, .max = 0}.by(Normalize::kMeanStd, true), 1, 0);
  expect_affine(OneFeature{.mean = 0, .std = 0, .min = 1, .max = HUGE_VAL}.by(Normalize::kMinMax, true), 1, 0);
}

// ---- as LeRobot and openpi have it ----

// Their formulas, in long double.
long double peers_number(Normalize normalize, Constant constant, long double x, long double low, long double distance) {
  if (constant == Constant::kLeRobot) {
    if (normalize == Normalize::kMeanStd) return (x - low) / (distance + 1e-8L);
    return 2 * (x - low) / (distance == 0 ? 1e-8L : distance) - 1;
  }
  if (normalize == Normalize::kMeanStd) return (x - low) / (distance + 1e-6L);
  return (x - low) / (distance + 1e-6L) * 2 - 1;
}

TEST(PeersConstants, AFeatureWithSpreadHasTheirNumbers) {
  Random random(72);
  for (int i = 0; i < trials(20'000); ++i) {
    const double low = random.between(-3, 3);
    const OneFeature feature = from(low, std::ldexp(random.between(0.5, 1), -static_cast<int>(random.below(30))));
    const double x = low + random.between(-2, 2) * feature.std;
    for (const Normalize normalize : kModes) {
      for (const Constant constant : {Constant::kLeRobot, Constant::kOpenPi}) {
        const Affine y = feature.by(normalize, true, constant);
        const auto got = static_cast<double>(static_cast<long double>(y.scale) * x + y.shift);
        const auto expected = static_cast<double>(peers_number(normalize, constant, x, low, feature.std));
        ASSERT_NEAR(got, expected, 8 * 0x1p-53 * (1 + (std::abs(x) + std::abs(low)) * y.scale));
      }
    }
  }
}

template <class Work>
void expect_the_constant_is_kept(double low, double distance = 0) {
  const bool wide = std::is_same_v<Work, double>;
  const Work x = static_cast<Work>(low);
  for (const Normalize normalize : kModes) {
    for (const Constant constant : {Constant::kLeRobot, Constant::kOpenPi}) {
      const double y = normalize == Normalize::kMeanStd ? 0 : -1;
      const auto off = [&](double scale, double shift) {
        return std::abs(std::fma(x, static_cast<Work>(scale), static_cast<Work>(shift)) - static_cast<Work>(y));
      };
      const Affine got = from(low, distance).by(normalize, wide, constant);
      ASSERT_LE(off(got.scale, got.shift), std::numeric_limits<Work>::epsilon()) << low;
      // The slope is theirs, or the steepest below it that keeps the constant.
      const double theirs = (normalize == Normalize::kMeanStd ? 1 : 2) / (constant == Constant::kLeRobot ? 1e-8 : 1e-6);
      if (std::abs(got.scale / theirs - 1) < 1e-12) continue;
      ASSERT_EQ(std::exp2(std::round(std::log2(got.scale))), got.scale);
      std::vector<double> steeper{theirs};
      for (double power = got.scale * 2; power < theirs; power *= 2) steeper.push_back(power);
      for (const double scale : steeper) {
        ASSERT_GT(off(scale, y - scale * static_cast<double>(x)), std::numeric_limits<Work>::epsilon()) << low;
      }
    }
  }
}

TEST(PeersConstants, AFeatureWithoutSpreadComesOutAsTheirsWhereItIs) {
  expect_the_constant_is_kept<float>(0);
  expect_the_constant_is_kept<double>(0);
  Random random(73);
  for (int i = 0; i < trials(20'000); ++i) {
    const double low = std::ldexp(random.between(-1, 1), static_cast<int>(random.below(60)) - 20);
    expect_the_constant_is_kept<float>(low);
    expect_the_constant_is_kept<float>(low, std::abs(low) * 0x1p-25);  // as a mean that was rounded leaves behind
    expect_the_constant_is_kept<double>(low);
  }
}

TEST(PeersConstants, WhereTheSlopeFitsItIsTheirs) {
  const OneFeature feature = from(0, 0);
  for (const bool wide : {false, true}) {
    EXPECT_DOUBLE_EQ(feature.by(Normalize::kMeanStd, wide, Constant::kLeRobot).scale, 1e8);
    EXPECT_DOUBLE_EQ(feature.by(Normalize::kMinMax, wide, Constant::kLeRobot).scale, 2e8);
    EXPECT_DOUBLE_EQ(feature.by(Normalize::kMeanStd, wide, Constant::kOpenPi).scale, 1e6);
    EXPECT_DOUBLE_EQ(feature.by(Normalize::kQ10Q90, wide, Constant::kOpenPi).scale, 2e6);
  }
}

// ---- and back ----

template <class Work>
void expect_back(const Affine& affine, double value) {
  const Work x = static_cast<Work>(value);
  const Work y = std::fma(x, static_cast<Work>(affine.scale), static_cast<Work>(affine.shift));
  const Work back = std::fma(y, static_cast<Work>(affine.spread), static_cast<Work>(affine.centre));
  const long double u = std::numeric_limits<Work>::epsilon() / 2;
  const long double bound = 4 * u * (1 + 8 * u) * (std::abs(x) + std::abs(affine.centre));
  ASSERT_LE(std::abs(static_cast<long double>(back) - x), bound)
      << value << " by " << affine.spread << " at " << affine.centre;
}

TEST(AffineOf, ItsInverseGivesTheValueBackWithinRule38) {
  Random random(74);
  for (int i = 0; i < trials(20'000); ++i) {
    const double low = std::ldexp(random.between(-1, 1), static_cast<int>(random.below(40)) - 20);
    const double distance = random.below(5) == 0 ? 0 : std::ldexp(1, static_cast<int>(random.below(40)) - 20);
    const double x = low + random.between(-3, 3) * (random.below(3) == 0 ? 0 : std::max(distance, 1e-9));
    for (const Normalize normalize : kModes) {
      for (const Constant constant : {Constant::kCenter, Constant::kLeRobot, Constant::kOpenPi}) {
        expect_back<float>(from(low, distance).by(normalize, false, constant), x);
        expect_back<double>(from(low, distance).by(normalize, true, constant), x);
      }
    }
  }
}

// ---- given statistics ----

std::vector<Affine> of_given(const NormStats& stats, int64_t features, Normalize normalize) {
  return affines(stats.view(), features, DType::kFloat32, normalize, Constant::kCenter, 0, "norm_stats['action']");
}

TEST(GivenStatistics, NeedOnlyWhatTheModeReads) {
  NormStats stats;
  stats.set("mean", {1, 2});
  stats.set("std", {0.5, 4});
  const std::vector<Affine> got = of_given(stats, 2, Normalize::kMeanStd);
  ASSERT_EQ(got.size(), 2);
  expect_affine(got[0], 2, -2);
  expect_affine(got[1], 0.25, -0.5);
  EXPECT_TRUE(of_given({}, 2, Normalize::kNone).empty());
  EXPECT_TRUE(of_given({}, 0, Normalize::kMeanStd).empty());
}

TEST(GivenStatistics, AreRefusedByNameWhereAFieldIsMissingOrOfAnotherWidth) {
  NormStats stats;
  expect_refused<ArgumentError>([&] { of_given(stats, 1, Normalize::kMeanStd); },
                                "norm_stats['action']: 'mean_std' expects mean and std, got none");
  stats.set("mean", {1, 2});
  stats.set("std", {0.5, 4});
  stats.set("q01", {0, 0});
  expect_refused<ArgumentError>([&] { of_given(stats, 2, Normalize::kQ01Q99); },
                                "norm_stats['action']: 'q01_q99' expects q01 and q99, got mean, std, q01");
  expect_refused<ArgumentError>([&] { of_given(stats, 3, Normalize::kMeanStd); },
                                "norm_stats['action'].mean: expected 3 numbers, one a feature, got 2");
  expect_refused<ArgumentError>([&] { of_given(stats, 1, Normalize::kMeanStd); },
                                "norm_stats['action'].mean: expected 1 numbers, one a feature, and zeros alone",
                                "got 2");
  expect_refused<ArgumentError>([&] { stats.set("variance", {1}); }, "norm_stats: expected mean, std", "'variance'");
}

TEST(GivenStatistics, MayBePaddedWithZeros) {
  NormStats stats;
  stats.set("mean", {1, 0, 0});
  stats.set("std", {0.5, 0, 0});
  stats.set("count", {9, 9, 9});
  const std::vector<Affine> got = of_given(stats, 1, Normalize::kMeanStd);
  ASSERT_EQ(got.size(), 1);
  expect_affine(got[0], 2, -2);
}

// ---- the same in a batch ----

class Normalisation : public OnDeviceOfLoader {};
ROBOCACHE_ON_EACH_DEVICE(Normalisation);

TEST_P(Normalisation, AConstantFeatureIsCentredNotScaled) {
  for (const Normalize normalize : kModes) {
    for (const double value : {0.0, 3.0, 0.1, -1e30, 1e-30}) {
      LoaderOptions asked = options();
      asked.dtype = DType::kFloat64;
      // Through window_at's second episode there is also a 0: here only rows of one value.
      CacheWriter writer;
      writer.begin_episode();
      writer.append("x", F64{}, {0, 1, 2, 3, 4, 5, 6}, std::vector<double>(7, value));
      writer.end_episode();
      const auto dataset = writer.dataset();
      asked.streams = {{.stream = "x", .delta_timestamps = {0.0}, .normalize = normalize}};
      const Loader loader(dataset, asked);
      double got = kNan;
      std::memcpy(&got, filled(loader, {}).data() + loader.arrays()[0].offset, sizeof(got));
      EXPECT_EQ(got, 0) << value << " by " << static_cast<int>(normalize);
    }
  }
}

TEST_P(Normalisation, AFeatureOfNothingButNanStaysAndHarmsNoOther) {
  CacheWriter writer;
  writer.begin_episode();
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  writer.append("x", F32{}, {0, 1000, 2000}, {nan, 1, 0, nan, 2, nan, nan, 3, 4}, {3});
  writer.end_episode();
  const auto dataset = writer.dataset();
  for (const Normalize normalize : kModes) {
    LoaderOptions asked = options();
    asked.shuffle = false;
    asked.batch_size = 3;
    asked.streams = {{.stream = "x", .delta_timestamps = {0.0}, .normalize = normalize}};
    const Loader loader(dataset, asked);
    expect_every_batch(*dataset, loader);
    std::vector<float> got(9);
    std::memcpy(got.data(), filled(loader, {}).data() + loader.arrays()[0].offset, 36);
    for (const size_t i : {0, 3, 5, 6}) EXPECT_TRUE(std::isnan(got[i])) << i;
    for (const size_t i : {1, 2, 4, 7, 8}) EXPECT_FALSE(std::isnan(got[i])) << i;
  }
}

// Factors that overflow, or statistics that hold Inf, may not make NaN of numbers.
TEST_P(Normalisation, NoNormalizationMakesNanOfNumbers) {
  const auto infinity = std::numeric_limits<float>::infinity();
  constexpr auto kGreatest = std::numeric_limits<float>::max();
  CacheWriter writer;
  writer.begin_episode();
  writer.append("float32", F32{}, {0, 1000, 2000},
                {1e-44F, infinity, -infinity, kGreatest, 0, 1, 2, -kGreatest, 1e-44F, 2, 3, kGreatest}, {4});
  writer.append("float64", F64{}, {0, 1000, 2000}, {1e-310, HUGE_VAL, 5, 0, 1, 1e308, 1e-310, 2, -1e308}, {3});
  writer.end_episode();
  const auto dataset = writer.dataset();
  for (const Normalize normalize : kModes) {
    LoaderOptions asked = options();
    asked.shuffle = false;
    asked.batch_size = 3;
    asked.dtype = DType::kFloat64;
    for (const auto& [name, features] : {std::pair<std::string, size_t>{"float32", 4}, {"float64", 3}}) {
      asked.streams = {{.stream = name, .delta_timestamps = {0.0}, .normalize = normalize}};
      const Loader loader(dataset, asked);
      std::vector<double> got(3 * features);
      std::memcpy(got.data(), filled(loader, {}).data() + loader.arrays()[0].offset, got.size() * sizeof(double));
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_FALSE(std::isnan(got[i])) << name << " element " << i << " by " << static_cast<int>(normalize);
      }
    }
  }
}

TEST_P(Normalisation, NormalizationDoesWhatItsNameSays) {
  CacheWriter writer;
  writer.begin_episode();
  std::vector<int64_t> times;
  std::vector<double> values;
  for (int64_t i = 0; i <= 200; ++i) {
    times.push_back(i * kMillisecond);
    values.push_back(static_cast<double>(10 + i % 101));  // 10 to 110
  }
  writer.append("x", F64{}, times, values);
  writer.end_episode();
  const auto dataset = writer.dataset();
  const auto normalized = [&](Normalize normalize) {
    LoaderOptions asked = options();
    asked.shuffle = false;
    asked.dtype = DType::kFloat64;
    asked.batch_size = 201;
    asked.streams = {{.stream = "x", .delta_timestamps = {0.0}, .normalize = normalize}};
    const Loader loader(dataset, asked);
    std::vector<double> got(201);
    std::memcpy(got.data(), filled(loader, {}).data() + loader.arrays()[0].offset, 201 * 8);
    return got;
  };
  const std::vector<double> min_max = normalized(Normalize::kMinMax);
  EXPECT_NEAR(min_max[0], -1, 1e-12);
  EXPECT_NEAR(min_max[50], 0, 1e-12);
  EXPECT_NEAR(min_max[100], 1, 1e-12);
  const std::vector<double> quantiles = normalized(Normalize::kQ01Q99);
  EXPECT_NEAR(quantiles[50], 0, 1e-12);
  EXPECT_LT(quantiles[0], -1);
  EXPECT_GT(quantiles[100], 1);
  const std::vector<double> standard = normalized(Normalize::kMeanStd);
  const double sum = std::accumulate(standard.begin(), standard.end(), 0.0);
  const double squares = std::inner_product(standard.begin(), standard.end(), standard.begin(), 0.0);
  EXPECT_NEAR(sum / 201, 0, 1e-12);
  EXPECT_NEAR(squares / 201, 1, 1e-12);
}

}  // namespace
}  // namespace robocache::test
