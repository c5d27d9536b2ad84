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
#include "tests/cpp/batch/every_type.hpp"
#include "tests/cpp/expect_refused.hpp"
#include "tests/cpp/not_finite.hpp"
#include "tests/cpp/trials.hpp"

namespace robocache::test {
namespace {

constexpr std::array kModes{Normalize::kMeanStd, Normalize::kMinMax, Normalize::kQ01Q99, Normalize::kQ10Q90};

// Statistics of one feature; members that a normalisation must not read are NaN.
struct OneFeature {
  double mean, std, min, max, q01 = kNan, q99 = kNan, q10 = kNan, q90 = kNan;

  Affine affine(Normalize normalize, bool wide, Constant constant = Constant::kCenter) const {
    static const double unread = kNan;
    const auto span = [](const double& value) { return std::span<const double>(&value, 1); };
    const FeatureStats stats{span(mean), span(std),    span(min), span(max), span(q01),
                             span(q10),  span(unread), span(q90), span(q99), span(unread)};
    return scale_feature(stats, 0, {normalize, wide, constant, 0}).affine;
  }
};

// Returns a feature with mean `low` and std `distance`; every range begins at `low` and ends at low + distance.
OneFeature feature(double low, double distance) {
  const double high = low + distance;
  return {.mean = low, .std = high - low, .min = low, .max = high, .q01 = low, .q99 = high, .q10 = low, .q90 = high};
}

template <class Work>
void expect_the_constant_is_kept(double low, double distance = 0) {
  const bool wide = std::is_same_v<Work, double>;
  const Work x = static_cast<Work>(low);
  for (const Normalize normalize : kModes) {
    for (const Constant constant : {Constant::kLeRobot, Constant::kOpenPi}) {
      const double y = normalize == Normalize::kMeanStd ? 0 : -1;
      const auto error_of = [&](double scale, double shift) {
        return std::abs(std::fma(x, static_cast<Work>(scale), static_cast<Work>(shift)) - static_cast<Work>(y));
      };
      const Affine affine = feature(low, distance).affine(normalize, wide, constant);
      ASSERT_LE(error_of(affine.scale, affine.shift), std::numeric_limits<Work>::epsilon()) << low;
      // The scale equals the peer's, or is the greatest power of two below it that keeps the constant.
      const double peer_scale =
          (normalize == Normalize::kMeanStd ? 1 : 2) / (constant == Constant::kLeRobot ? 1e-8 : 1e-6);
      if (std::abs(affine.scale / peer_scale - 1) < 1e-12) continue;
      ASSERT_EQ(std::exp2(std::round(std::log2(affine.scale))), affine.scale);
      std::vector<double> greater_scales{peer_scale};
      for (double power = affine.scale * 2; power < peer_scale; power *= 2) greater_scales.push_back(power);
      for (const double scale : greater_scales) {
        ASSERT_GT(error_of(scale, y - scale * static_cast<double>(x)), std::numeric_limits<Work>::epsilon()) << low;
      }
    }
  }
}

TEST(PeersConstants, AFeatureWithoutSpreadEqualsThePeers) {
  expect_the_constant_is_kept<float>(0);
  expect_the_constant_is_kept<double>(0);
  Random random(73);
  for (int i = 0; i < trials(20'000); ++i) {
    const double low = std::ldexp(random.between(-1, 1), static_cast<int>(random.below(60)) - 20);
    expect_the_constant_is_kept<float>(low);
    expect_the_constant_is_kept<float>(low, std::abs(low) * 0x1p-25);  // the spread that a rounded mean leaves
    expect_the_constant_is_kept<double>(low);
  }
}

template <class Work>
void expect_inverse(const Affine& affine, double value) {
  const Work x = static_cast<Work>(value);
  const Work y = std::fma(x, static_cast<Work>(affine.scale), static_cast<Work>(affine.shift));
  const Work back = std::fma(y, static_cast<Work>(affine.spread), static_cast<Work>(affine.centre));
  const long double rounding_unit = std::numeric_limits<Work>::epsilon() / 2;
  const long double bound = 4 * rounding_unit * (1 + 8 * rounding_unit) * (std::abs(x) + std::abs(affine.centre));
  ASSERT_LE(std::abs(static_cast<long double>(back) - x), bound)
      << value << " by " << affine.spread << " at " << affine.centre;
}

TEST(Affine, TheInverseGivesTheValueWithinRule38) {
  Random random(74);
  for (int i = 0; i < trials(20'000); ++i) {
    const double low = std::ldexp(random.between(-1, 1), static_cast<int>(random.below(40)) - 20);
    const double distance = random.below(5) == 0 ? 0 : std::ldexp(1, static_cast<int>(random.below(40)) - 20);
    const double x = low + random.between(-3, 3) * (random.below(3) == 0 ? 0 : std::max(distance, 1e-9));
    for (const Normalize normalize : kModes) {
      for (const Constant constant : {Constant::kCenter, Constant::kLeRobot, Constant::kOpenPi}) {
        expect_inverse<float>(feature(low, distance).affine(normalize, false, constant), x);
        expect_inverse<double>(feature(low, distance).affine(normalize, true, constant), x);
      }
    }
  }
}

class Normalisation : public OnDeviceOfLoader {};
ROBOCACHE_ON_EACH_DEVICE(Normalisation);

// Factors that overflow and statistics with infinities must not turn numbers into NaN.
TEST_P(Normalisation, NoNormalizationTurnsNumbersIntoNan) {
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
    LoaderOptions loader_options = options();
    loader_options.shuffle = false;
    loader_options.batch_size = 3;
    loader_options.dtype = DType::kFloat64;
    for (const auto& [name, features] : {std::pair<std::string, size_t>{"float32", 4}, {"float64", 3}}) {
      loader_options.streams = {{.stream = name, .delta_timestamps = {0.0}, .normalize = normalize}};
      const Loader loader(dataset, loader_options);
      std::vector<double> values(3 * features);
      std::memcpy(values.data(), filled(loader, {}).data() + loader.arrays()[0].offset, values.size() * sizeof(double));
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_FALSE(std::isnan(values[i])) << name << " element " << i << " by " << normalize_name(normalize);
      }
    }
  }
}

}  // namespace
}  // namespace robocache::test
