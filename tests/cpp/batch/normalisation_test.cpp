#include "robocache/batch/normalisation.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "robocache/core/error.hpp"
#include "tests/cpp/batch/loader_reference.hpp"

namespace robocache::test {
namespace {

TEST(NormalizeNames, ComeBackOrAreRefusedWithTheKnownOnes) {
  EXPECT_EQ(normalize_from_name("mean_std"), Normalize::kMeanStd);
  EXPECT_EQ(normalize_from_name("min_max"), Normalize::kMinMax);
  EXPECT_EQ(normalize_from_name("q01_q99"), Normalize::kQ01Q99);
  try {
    normalize_from_name("zscore");
    FAIL();
  } catch (const ArgumentError& error) {
    EXPECT_STREQ(error.what(), "normalize: expected 'mean_std', 'min_max' or 'q01_q99', got 'zscore'");
  }
}

// ---- affine, against what the words mean ----

// Statistics of one feature; the quantiles that normalising does not read are NaN.
struct OneFeature {
  double mean, std, min, max, q01, q99;
  double count = 100;

  Affine by(Normalize normalize, bool wide) const {
    static const double unread = kNan;
    const auto one = [](const double& value) { return std::span<const double>(&value, 1); };
    return affine({one(mean), one(std), one(min), one(max), one(q01), one(unread), one(unread), one(unread), one(q99),
                   one(count)},
                  0, normalize, wide);
  }
};

void expect_affine(const Affine& got, double scale, double shift) {
  EXPECT_EQ(got.scale, scale);
  EXPECT_EQ(got.shift, shift);
}

TEST(AffineOf, NumbersWorkedOutByHand) {
  const OneFeature x{.mean = 3, .std = 0.5, .min = -2, .max = 6, .q01 = 1, .q99 = 1.25};
  for (const bool wide : {false, true}) {
    expect_affine(x.by(Normalize::kMeanStd, wide), 2, -6);
    expect_affine(x.by(Normalize::kMinMax, wide), 0.25, -0.5);
    expect_affine(x.by(Normalize::kQ01Q99, wide), 8, -9);
  }
}

// Whatever the numbers: the two ends come to -1 and 1, and mean and mean + std to 0 and 1. In long double, whose rounding
// is nothing here; scale and shift are each off by half a unit or two of float64.
TEST(AffineOf, BringsTheEndsToTheEndsAndTheMeanTo0) {
  Random random(71);
  for (int i = 0; i < 20'000; ++i) {
    const double size = std::ldexp(1, static_cast<int>(random.below(60)) - 30);
    const double low = size * random.between(-3, 3);
    const double high = low + size * random.between(0.01, 3);
    const OneFeature x{.mean = low, .std = high - low, .min = low, .max = high, .q01 = low, .q99 = high};
    const auto at = [](const Affine& y, double value) {
      return static_cast<double>(static_cast<long double>(y.scale) * value + y.shift);
    };
    const double bound = 4 * 0x1p-53 * (1 + (std::abs(low) + std::abs(high)) / (high - low)) * 2;
    for (const Normalize normalize : {Normalize::kMinMax, Normalize::kQ01Q99}) {
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

TEST(AffineOf, LeavesAloneWhatIsNothingButNanOrHasNoCentre) {
  const OneFeature nothing{.mean = kNan, .std = kNan, .min = kNan, .max = kNan, .q01 = kNan, .q99 = kNan, .count = 0};
  for (const Normalize normalize : {Normalize::kMeanStd, Normalize::kMinMax, Normalize::kQ01Q99}) {
    expect_affine(nothing.by(normalize, true), 1, 0);
  }
  expect_affine(OneFeature{.mean = HUGE_VAL, .std = kNan, .min = 0, .max = 0}.by(Normalize::kMeanStd, true), 1, 0);
  expect_affine(OneFeature{.mean = 0, .std = 0, .min = 1, .max = HUGE_VAL}.by(Normalize::kMinMax, true), 1, 0);
}

// ---- the same in a batch ----

class Normalisation : public OnDeviceOfLoader {};
ROBOCACHE_ON_EACH_DEVICE(Normalisation);

TEST_P(Normalisation, AConstantFeatureIsCentredNotScaled) {
  for (const Normalize normalize : {Normalize::kMeanStd, Normalize::kMinMax, Normalize::kQ01Q99}) {
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
  for (const Normalize normalize : {Normalize::kMeanStd, Normalize::kMinMax, Normalize::kQ01Q99}) {
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
  for (const Normalize normalize : {Normalize::kMeanStd, Normalize::kMinMax, Normalize::kQ01Q99}) {
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
