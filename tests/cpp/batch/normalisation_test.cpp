#include "robocache/batch/normalisation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
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

// ---- the same in a batch ----

class Normalisation : public OnDeviceOfLoader {};
ROBOCACHE_ON_EACH_DEVICE(Normalisation);

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

}  // namespace
}  // namespace robocache::test
