#include "robocache/ops/resample/resample.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "robocache/core/error.hpp"
#include "tests/cpp/device_array.hpp"

namespace robocache {
namespace {

using test::DeviceArray;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class Resample : public test::OnDevice {
 protected:
  // Values [S, 1] and times [S] in float64; the results at `targets` and whether each is valid.
  struct Answer {
    std::vector<double> values;
    std::vector<uint8_t> valid;
  };
  static Answer at(const std::vector<double>& values, const std::vector<double>& times,
                   const std::vector<double>& targets, const ResampleOptions& options) {
    const auto s = static_cast<int64_t>(times.size());
    const auto t = static_cast<int64_t>(targets.size());
    const DeviceArray<double> in(values, DType::kFloat64, {s, 1}, device());
    const DeviceArray<double> clock(times, DType::kFloat64, {s}, device());
    const DeviceArray<double> wanted(targets, DType::kFloat64, {t}, device());
    const DeviceArray<double> out(std::vector<double>(targets.size(), 777), DType::kFloat64, {t, 1}, device());
    const DeviceArray<uint8_t> valid(std::vector<uint8_t>(targets.size(), 7), DType::kBool, {t}, device());
    resample_trajectories(in.view(), clock.view(), wanted.view(), options, out.view(), std::nullopt, valid.view());
    return {out.read(), valid.read()};
  }
};
ROBOCACHE_ON_EACH_DEVICE(Resample);

TEST_P(Resample, EachMethodPicksItsSample) {
  const std::vector<double> values{0, 10, 30};
  const std::vector<double> times{0, 1, 3};
  const std::vector<double> targets{0, 0.5, 1, 1.5, 2, 2.5, 3};
  const auto with = [&](ResampleMethod method) { return at(values, times, targets, {.method = method}).values; };
  EXPECT_EQ(with(ResampleMethod::kLinear), (std::vector<double>{0, 5, 10, 15, 20, 25, 30}));
  EXPECT_EQ(with(ResampleMethod::kNearest), (std::vector<double>{0, 0, 10, 10, 10, 30, 30}));
  EXPECT_EQ(with(ResampleMethod::kPrevious), (std::vector<double>{0, 0, 10, 10, 10, 10, 30}));
  EXPECT_EQ(with(ResampleMethod::kNext), (std::vector<double>{0, 10, 10, 30, 30, 30, 30}));
}

TEST_P(Resample, OutsideIsInvalidAndHoldsWhatExtrapolateSays) {
  const std::vector<double> values{1, 2};
  const std::vector<double> times{0, 1};
  const std::vector<double> targets{-1, 0, 2};
  const Answer clamped = at(values, times, targets, {});
  EXPECT_EQ(clamped.values, (std::vector<double>{1, 1, 2}));
  EXPECT_EQ(clamped.valid, (std::vector<uint8_t>{0, 1, 0}));
  const Answer nan = at(values, times, targets, {.extrapolate = Extrapolate::kNan});
  EXPECT_TRUE(std::isnan(nan.values[0]) && std::isnan(nan.values[2]));
  EXPECT_EQ(nan.values[1], 1);
  const Answer linear = at(values, times, targets, {.extrapolate = Extrapolate::kLinear});
  EXPECT_EQ(linear.values, (std::vector<double>{0, 1, 3}));
  EXPECT_EQ(linear.valid, (std::vector<uint8_t>{0, 1, 0}));
}

TEST_P(Resample, OfSamplesWithOneTimeOnlyTheLastExists) {
  const Answer answer = at({0, 5, 10, 20}, {0, 1, 1, 2}, {0.5, 1, 1.5}, {});
  EXPECT_EQ(answer.values, (std::vector<double>{5, 10, 15}));
}

TEST_P(Resample, AHitReturnsTheSampleWhateverItsNeighboursHold) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Answer answer = at({kNan, 4, infinity}, {0, 1, 2}, {1}, {});
  EXPECT_EQ(answer.values, std::vector<double>{4});
}

TEST_P(Resample, ABracketLongerThanMaxGapIsInvalidEqualIsValid) {
  const Answer answer = at({0, 1, 3}, {0, 1, 3}, {0.5, 1, 2}, {.max_gap = 1.0});
  EXPECT_EQ(answer.valid, (std::vector<uint8_t>{1, 1, 0}));
}

TEST_P(Resample, CausalHoldsTheLastAndFindsNothingBeforeTheFirst) {
  const Answer answer = at({5, 6}, {0, 1}, {-0.5, 0.5, 1}, {.causal = true});
  EXPECT_TRUE(std::isnan(answer.values[0]));
  EXPECT_EQ(answer.values[1], 5);
  EXPECT_EQ(answer.values[2], 6);
  EXPECT_EQ(answer.valid, (std::vector<uint8_t>{0, 1, 1}));
}

TEST_P(Resample, NothingThere) {
  const Answer no_samples = at({}, {}, {0, 1}, {});
  EXPECT_TRUE(std::isnan(no_samples.values[0]) && std::isnan(no_samples.values[1]));
  EXPECT_EQ(no_samples.valid, (std::vector<uint8_t>{0, 0}));
  const Answer nan_target = at({1, 2}, {0, 1}, {kNan}, {});
  EXPECT_TRUE(std::isnan(nan_target.values[0]));
  EXPECT_EQ(nan_target.valid, std::vector<uint8_t>{0});
  EXPECT_TRUE(at({1, 2}, {0, 1}, {}, {}).values.empty());
}

// For the sanitizers: clocks that break the contract, in memory of exactly their size.
TEST_P(Resample, BadClocksNeverReadOutsideTheirRow) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> anywhere(-2, 2);
  for (const int64_t samples : {1, 2, 3, 17, 130}) {
    for (const ResampleMethod method :
         {ResampleMethod::kLinear, ResampleMethod::kNearest, ResampleMethod::kPrevious, ResampleMethod::kNext}) {
      std::vector<double> times(static_cast<size_t>(samples));
      std::vector<double> targets(257);
      for (double& time : times) time = anywhere(random) > 1.5 ? kNan : anywhere(random);
      for (double& target : targets) target = anywhere(random) > 1.8 ? kNan : anywhere(random);
      at(std::vector<double>(times.size(), 1), times, targets, {.method = method});
    }
  }
}

TEST_P(Resample, EveryBatchRowFeatureAndTargetIsWritten) {
  for (const int64_t features : {1, 3, 8, 33, 257}) {
    const int64_t batch = 3;
    const int64_t samples = 5;
    const int64_t targets = 67;
    std::vector<float> values;
    for (int64_t i = 0; i < batch * samples; ++i) {
      for (int64_t d = 0; d < features; ++d)
        values.push_back(static_cast<float>(100 * (i / samples) + i % samples + d));
    }
    std::vector<int64_t> clock;
    for (int64_t s = 0; s < samples; ++s) clock.push_back(s * 16);
    std::vector<int64_t> wanted;
    for (int64_t t = 0; t < targets; ++t) wanted.push_back(t < 65 ? t : 64);
    const DeviceArray<float> in(values, DType::kFloat32, {batch, samples, features}, device());
    const DeviceArray<int64_t> times(clock, DType::kInt64, {samples}, device());
    const DeviceArray<int64_t> at(wanted, DType::kInt64, {targets}, device());
    const DeviceArray<float> out(std::vector<float>(static_cast<size_t>(batch * targets * features), -1),
                                 DType::kFloat32, {batch, targets, features}, device());
    resample_trajectories(in.view(), times.view(), at.view(), {}, out.view());
    const std::vector<float> got = out.read();
    for (int64_t b = 0, i = 0; b < batch; ++b) {
      for (const int64_t t : wanted) {
        for (int64_t d = 0; d < features; ++d, ++i) {
          const float expected = static_cast<float>(100 * b + d) + static_cast<float>(t) / 16;
          ASSERT_EQ(got[static_cast<size_t>(i)], expected) << "row " << b << " target " << t << " feature " << d;
        }
      }
    }
  }
}

TEST_P(Resample, LengthsCutARow) {
  const DeviceArray<float> values({1, 2, 9, 9, 9, 9}, DType::kFloat32, {2, 3, 1}, device());
  const DeviceArray<float> times({0, 1, 2, 0, 1, 2}, DType::kFloat32, {2, 3}, device());
  const DeviceArray<float> targets({2}, DType::kFloat32, {1}, device());
  const DeviceArray<int64_t> lengths({2, 0}, DType::kInt64, {2}, device());
  const DeviceArray<float> out({-1, -1}, DType::kFloat32, {2, 1, 1}, device());
  const DeviceArray<uint8_t> valid({7, 7}, DType::kBool, {2, 1}, device());
  resample_trajectories(values.view(), times.view(), targets.view(), {}, out.view(), lengths.view(), valid.view());
  EXPECT_EQ(out.read()[0], 2);
  EXPECT_TRUE(std::isnan(out.read()[1]));
  EXPECT_EQ(valid.read(), (std::vector<uint8_t>{0, 0}));
}

TEST_P(Resample, CheckTimesNamesTheFirstBadRowAndIndex) {
  const DeviceArray<double> good({0, 1, 1, 5, 6, 7}, DType::kFloat64, {2, 3}, device());
  EXPECT_NO_THROW(check_times(good.view()));
  const DeviceArray<double> bad({0, 1, 2, 5, 4, 3}, DType::kFloat64, {2, 3}, device());
  try {
    check_times(bad.view());
    FAIL();
  } catch (const ArgumentError& error) {
    EXPECT_NE(std::string(error.what()).find("row 1"), std::string::npos) << error.what();
  }
}

TEST_P(Resample, RefusesWhatDoesNotFit) {
  const DeviceArray<float> values({1, 2}, DType::kFloat32, {2, 1}, device());
  const DeviceArray<float> times({0, 1}, DType::kFloat32, {2}, device());
  const DeviceArray<float> three_times({0, 1, 2}, DType::kFloat32, {3}, device());
  const DeviceArray<double> other_clock({0.5}, DType::kFloat64, {1}, device());
  const DeviceArray<float> targets({0.5}, DType::kFloat32, {1}, device());
  const DeviceArray<float> out({0}, DType::kFloat32, {1, 1}, device());
  const DeviceArray<double> wide_out({0}, DType::kFloat64, {1, 1}, device());
  const auto call = [&](const TensorView& clock, const TensorView& at, const TensorView& to) {
    resample_trajectories(values.view(), clock, at, {}, to);
  };
  EXPECT_NO_THROW(call(times.view(), targets.view(), out.view()));
  EXPECT_THROW(call(three_times.view(), targets.view(), out.view()), ArgumentError);
  EXPECT_THROW(call(times.view(), other_clock.view(), out.view()), Error);
  EXPECT_THROW(call(times.view(), targets.view(), wide_out.view()), Error);
  EXPECT_THROW(call(times.view(), targets.view(), values.view()), ArgumentError);
}

}  // namespace
}  // namespace robocache
