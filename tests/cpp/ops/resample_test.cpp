#include "robocache/ops/resample/resample.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/cpp/device_array.hpp"
#include "tests/cpp/not_finite.hpp"
#include "tests/cpp/ops/resample_problem.hpp"

namespace robocache {
namespace {

using test::all_options;
using test::Answer;
using test::DeviceArray;
using test::Element;
using test::expect_reference;
using test::kMethods;
using test::kNan;
using test::Problem;

// Values [S, 1] by times [S], both float64.
Answer<double> resampled(const std::vector<double>& values, const std::vector<double>& times,
                         const std::vector<double>& targets, const InterpolationOptions& options, Device device) {
  const auto s = static_cast<int64_t>(times.size());
  const auto t = static_cast<int64_t>(targets.size());
  const DeviceArray<double> in(values, DType::kFloat64, {s, 1}, device);
  const DeviceArray<double> clock(times, DType::kFloat64, {s}, device);
  const DeviceArray<double> wanted(targets, DType::kFloat64, {t}, device);
  const DeviceArray<double> out(std::vector<double>(targets.size(), 777), DType::kFloat64, {t, 1}, device);
  const DeviceArray<uint8_t> valid(std::vector<uint8_t>(targets.size(), 7), DType::kBool, {t}, device);
  resample_trajectories({.values = in.view(),
                         .times = clock.view(),
                         .target_times = wanted.view(),
                         .options = options,
                         .out = out.view(),
                         .valid = valid.view()},
                        CudaStream{});
  return {out.read(), valid.read()};
}

class Resample : public test::OnDevice {
 protected:
  static Answer<double> at(const std::vector<double>& values, const std::vector<double>& times,
                           const std::vector<double>& targets, const InterpolationOptions& options) {
    return resampled(values, times, targets, options, device());
  }
};
ROBOCACHE_ON_EACH_DEVICE(Resample);

// ---- The contract, by examples ----

TEST_P(Resample, TheExampleOfTheHeader) {
  const DeviceArray<float> values({0, 10, 20}, DType::kFloat32, {3, 1}, device());
  const DeviceArray<float> times({0, 1, 2}, DType::kFloat32, {3}, device());
  const DeviceArray<float> targets({0.5F, 1.5F}, DType::kFloat32, {2}, device());
  const DeviceArray<float> out({0, 0}, DType::kFloat32, {2, 1}, device());
  resample_trajectories(
      {.values = values.view(), .times = times.view(), .target_times = targets.view(), .out = out.view()},
      CudaStream{});
  EXPECT_EQ(out.read(), (std::vector<float>{5, 15}));
}

TEST_P(Resample, EachMethodPicksItsSample) {
  const std::vector<double> values{0, 10, 30};
  const std::vector<double> times{0, 1, 3};
  const std::vector<double> targets{0, 0.5, 1, 1.5, 2, 2.5, 3};
  const auto with = [&](InterpolationMethod method) { return at(values, times, targets, {.method = method}).values; };
  EXPECT_EQ(with(InterpolationMethod::kLinear), (std::vector<double>{0, 5, 10, 15, 20, 25, 30}));
  EXPECT_EQ(with(InterpolationMethod::kNearest), (std::vector<double>{0, 0, 10, 10, 10, 30, 30}));
  EXPECT_EQ(with(InterpolationMethod::kPrevious), (std::vector<double>{0, 0, 10, 10, 10, 10, 30}));
  EXPECT_EQ(with(InterpolationMethod::kNext), (std::vector<double>{0, 10, 10, 30, 30, 30, 30}));
}

TEST_P(Resample, TargetsInAnyOrderEachGetTheirOwn) {
  const Answer<double> answer = at({0, 10, 20, 30}, {0, 1, 2, 3}, {2.5, 0.5, 3, 0, 1.5, 1.5}, {});
  EXPECT_EQ(answer.values, (std::vector<double>{25, 5, 30, 0, 15, 15}));
}

TEST_P(Resample, OutsideIsInvalidAndHoldsWhatExtrapolateSays) {
  const std::vector<double> values{1, 2};
  const std::vector<double> times{0, 1};
  const std::vector<double> targets{-1, 0, 2};
  for (const InterpolationMethod method : kMethods) {
    const Answer<double> clamped = at(values, times, targets, {.method = method});
    EXPECT_EQ(clamped.values, (std::vector<double>{1, 1, 2}));
    EXPECT_EQ(clamped.valid, (std::vector<uint8_t>{0, 1, 0}));
    const Answer<double> nan = at(values, times, targets, {.method = method, .extrapolate = Extrapolate::kNan});
    EXPECT_TRUE(std::isnan(nan.values[0]) && std::isnan(nan.values[2]));
    EXPECT_EQ(nan.values[1], 1);
    EXPECT_EQ(nan.valid, (std::vector<uint8_t>{0, 1, 0}));
  }
  const Answer<double> linear = at(values, times, targets, {.extrapolate = Extrapolate::kLinear});
  EXPECT_EQ(linear.values, (std::vector<double>{0, 1, 3}));
  EXPECT_EQ(linear.valid, (std::vector<uint8_t>{0, 1, 0}));
}

TEST_P(Resample, OneSampleIsHeldByClampAndLinear) {
  for (const Extrapolate extrapolate : {Extrapolate::kClamp, Extrapolate::kLinear}) {
    const Answer<double> held = at({7}, {1}, {0, 1, 2}, {.extrapolate = extrapolate});
    EXPECT_EQ(held.values, (std::vector<double>{7, 7, 7}));
    EXPECT_EQ(held.valid, (std::vector<uint8_t>{0, 1, 0}));
    // Also where one time only is left of several samples.
    EXPECT_EQ(at({5, 6, 7}, {1, 1, 1}, {0, 1, 2}, {.extrapolate = extrapolate}).values, (std::vector<double>{7, 7, 7}));
  }
  const Answer<double> nan = at({7}, {1}, {0, 1, 2}, {.extrapolate = Extrapolate::kNan});
  EXPECT_TRUE(std::isnan(nan.values[0]) && std::isnan(nan.values[2]));
  EXPECT_EQ(nan.values[1], 7);
}

TEST_P(Resample, OfSamplesWithOneTimeOnlyTheLastExists) {
  EXPECT_EQ(at({0, 5, 10, 20}, {0, 1, 1, 2}, {0.5, 1, 1.5}, {}).values, (std::vector<double>{5, 10, 15}));
  const auto step = [&](InterpolationMethod method) {
    return at({0, 1, 2, 3, 4, 5}, {0, 0, 1, 1, 1, 2}, {0, 0.25, 0.75, 1, 1.5}, {.method = method}).values;
  };
  EXPECT_EQ(step(InterpolationMethod::kNearest), (std::vector<double>{1, 1, 4, 4, 4}));
  EXPECT_EQ(step(InterpolationMethod::kPrevious), (std::vector<double>{1, 1, 1, 4, 4}));
  EXPECT_EQ(step(InterpolationMethod::kNext), (std::vector<double>{1, 4, 4, 4, 5}));
  // At both ends, clamped and straight on.
  EXPECT_EQ(at({9, 1, 9, 2}, {0, 0, 1, 1}, {-1, 2}, {}).values, (std::vector<double>{1, 2}));
  EXPECT_EQ(at({9, 1, 9, 2}, {0, 0, 1, 1}, {-1, 2}, {.extrapolate = Extrapolate::kLinear}).values,
            (std::vector<double>{0, 3}));
}

TEST_P(Resample, AHitReturnsEveryBitWhateverTheNeighboursHold) {
  const std::vector<uint32_t> patterns{0x7fa12345, 0xff800000, 0x80000000, 0x00000001, 0xffc54321, 0x7f7fffff};
  std::vector<float> values;
  for (const uint32_t pattern : patterns) values.push_back(std::bit_cast<float>(pattern));
  for (const InterpolationMethod method : kMethods) {
    for (const int64_t spread : {1, 2}) {  // dense and strided rows take different loops
      const auto n = static_cast<int64_t>(values.size());
      const DeviceArray<float> in(values, DType::kFloat32, {n, 1}, device(), {spread, 1});
      const DeviceArray<double> times({0, 1, 2, 3, 4, 5}, DType::kFloat64, {n}, device());
      const DeviceArray<float> out(std::vector<float>(values.size()), DType::kFloat32, {n, 1}, device(), {spread, 1});
      resample_trajectories({.values = in.view(),
                             .times = times.view(),
                             .target_times = times.view(),
                             .options = {.method = method},
                             .out = out.view()},
                            CudaStream{});
      const std::vector<float> got = out.read();
      for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::bit_cast<uint32_t>(got[i]), patterns[i]);
    }
  }
}

TEST_P(Resample, ABracketLongerThanMaxGapIsInvalidEqualIsValid) {
  const std::vector<double> values{0, 1, 3};
  const std::vector<double> times{0, 1, 3};
  for (const Duration& max_gap : {Duration(1.0), Duration(int64_t{1})}) {
    const Answer<double> held = at(values, times, {0.5, 1, 2, 3}, {.max_gap = max_gap});
    EXPECT_EQ(held.values, (std::vector<double>{0.5, 1, 2, 3}));
    EXPECT_EQ(held.valid, (std::vector<uint8_t>{1, 1, 0, 1}));
    const Answer<double> nan =
        at(values, times, {0.5, 1, 2, 3}, {.extrapolate = Extrapolate::kNan, .max_gap = max_gap});
    EXPECT_TRUE(std::isnan(nan.values[2]));
    EXPECT_EQ(nan.valid, (std::vector<uint8_t>{1, 1, 0, 1}));
  }
  // 0: hits alone.
  EXPECT_EQ(at(values, times, {0, 0.5, 1}, {.max_gap = 0.0}).valid, (std::vector<uint8_t>{1, 0, 1}));
}

TEST_P(Resample, AStepFartherThanToleranceIsInvalidEqualIsValid) {
  const std::vector<double> targets{0.25, 0.5, 0.75};
  const auto with = [&](InterpolationMethod method, Extrapolate extrapolate) {
    return at({1, 2}, {0, 1}, targets, {.method = method, .extrapolate = extrapolate, .tolerance = 0.25});
  };
  EXPECT_EQ(with(InterpolationMethod::kNearest, Extrapolate::kClamp).valid, (std::vector<uint8_t>{1, 0, 1}));
  EXPECT_EQ(with(InterpolationMethod::kNearest, Extrapolate::kClamp).values, (std::vector<double>{1, 1, 2}));
  EXPECT_EQ(with(InterpolationMethod::kPrevious, Extrapolate::kClamp).valid, (std::vector<uint8_t>{1, 0, 0}));
  EXPECT_EQ(with(InterpolationMethod::kNext, Extrapolate::kClamp).valid, (std::vector<uint8_t>{0, 0, 1}));
  EXPECT_TRUE(std::isnan(with(InterpolationMethod::kNext, Extrapolate::kNan).values[0]));
}

TEST_P(Resample, CausalHoldsTheLastAndFindsNothingBeforeTheFirst) {
  for (const InterpolationMethod method :
       {InterpolationMethod::kLinear, InterpolationMethod::kNearest, InterpolationMethod::kPrevious}) {
    const Answer<double> answer = at({5, 6}, {0, 1}, {-0.5, 0.75, 1, 2}, {.method = method, .causal = true});
    EXPECT_TRUE(std::isnan(answer.values[0]));
    EXPECT_EQ(answer.values[1], 5);
    EXPECT_EQ(answer.values[2], 6);
    EXPECT_EQ(answer.values[3], 6);
    EXPECT_EQ(answer.valid, (std::vector<uint8_t>{0, 1, 1, 0}));
  }
  // max_gap compares the age of the sample used, not the bracket.
  EXPECT_EQ(at({5, 6}, {0, 10}, {1, 2, 10}, {.causal = true, .max_gap = 1.0}).valid, (std::vector<uint8_t>{1, 0, 1}));
}

TEST_P(Resample, NothingThere) {
  const Answer<double> no_samples = at({}, {}, {0, 1}, {});
  EXPECT_TRUE(std::isnan(no_samples.values[0]) && std::isnan(no_samples.values[1]));
  EXPECT_EQ(no_samples.valid, (std::vector<uint8_t>{0, 0}));
  const Answer<double> nan_target = at({1, 2}, {0, 1}, {kNan, 1}, {});
  EXPECT_TRUE(std::isnan(nan_target.values[0]));
  EXPECT_EQ(nan_target.values[1], 2);
  EXPECT_EQ(nan_target.valid, (std::vector<uint8_t>{0, 1}));
  EXPECT_TRUE(at({1, 2}, {0, 1}, {}, {}).values.empty());
  const DeviceArray<int32_t> whole({5, 6}, DType::kInt32, {2, 1}, device());
  const DeviceArray<float> times({0, 1}, DType::kFloat32, {2}, device());
  const DeviceArray<float> targets({-1, std::nanf("")}, DType::kFloat32, {2}, device());
  const DeviceArray<int32_t> out({9, 9}, DType::kInt32, {2, 1}, device());
  resample_trajectories({.values = whole.view(),
                         .times = times.view(),
                         .target_times = targets.view(),
                         .options = {.method = InterpolationMethod::kPrevious, .causal = true},
                         .out = out.view()},
                        CudaStream{});
  EXPECT_EQ(out.read(), (std::vector<int32_t>{0, 0}));
}

TEST_P(Resample, NanosecondsOfThisCenturyKeepEveryOne) {
  const int64_t start = 1'700'000'000'000'000'001;
  const DeviceArray<double> values({0, 4, 8}, DType::kFloat64, {3, 1}, device());
  const DeviceArray<int64_t> times({start, start + 4, start + 6}, DType::kInt64, {3}, device());
  const DeviceArray<int64_t> targets({start + 1, start + 3, start + 5, start + 6}, DType::kInt64, {4}, device());
  const DeviceArray<double> out(std::vector<double>(4), DType::kFloat64, {4, 1}, device());
  resample_trajectories(
      {.values = values.view(), .times = times.view(), .target_times = targets.view(), .out = out.view()},
      CudaStream{});
  EXPECT_EQ(out.read(), (std::vector<double>{1, 3, 6, 8}));
}

TEST_P(Resample, Int64TimesReachAcrossTheirWholeRange) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kGreatest = std::numeric_limits<int64_t>::max();
  using V = Element<double, DType::kFloat64>;
  using C = Element<int64_t, DType::kInt64>;
  Problem<V, C> p{.samples = 4, .targets = 9, .batched = false, .times_per_row = false, .targets_per_row = false};
  p.values = {1, 2, 4, 8};
  p.times = {kLeast, -1, 0, kGreatest};
  p.target_times = {kLeast, kLeast + 1, kLeast / 2, -2, -1, 0, 1, kGreatest - 1, kGreatest};
  for (InterpolationOptions options : all_options<int64_t>(true)) {
    expect_reference(p, options, device());
    if (options.max_gap) options.max_gap = std::numeric_limits<int64_t>::max();
    if (options.tolerance) options.tolerance = 0x1p63;
    expect_reference(p, options, device());
    if (options.max_gap) options.max_gap = 0x1p64;
    expect_reference(p, options, device());
  }
  p.samples = 2;
  p.values = {1, 2};
  p.times = {kLeast, kGreatest};
  for (const InterpolationOptions& options : all_options<int64_t>(true)) expect_reference(p, options, device());
}

}  // namespace
}  // namespace robocache
