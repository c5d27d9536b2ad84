#include "robocache/ops/resample/resample.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <thread>
#include <vector>

#include "robocache/core/thread_pool.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/expect_refused.hpp"
#include "tests/cpp/not_finite.hpp"
#include "tests/cpp/ops/resample_problem.hpp"
#include "tests/cpp/trials.hpp"

namespace robocache {
namespace {

using test::all_options;
using test::DeviceArray;
using test::Element;
using test::expect_reference;
using test::kInfinity;
using test::kNan;
using test::Layout;
using test::Random;
using test::random_problem;
using test::Sizes;

class ResampleReference : public test::OnDevice {};
ROBOCACHE_ON_EACH_DEVICE(ResampleReference);

TEST_P(ResampleReference, TheExampleOfTheHeader) {
  const DeviceArray<float> values({0, 10, 20}, DType::kFloat32, {3, 1}, device());
  const DeviceArray<float> times({0, 1, 2}, DType::kFloat32, {3}, device());
  const DeviceArray<float> targets({0.5F, 1.5F}, DType::kFloat32, {2}, device());
  const DeviceArray<float> out({0, 0}, DType::kFloat32, {2, 1}, device());
  resample_trajectories(
      {.values = values.view(), .times = times.view(), .target_times = targets.view(), .out = out.view()},
      CudaStream{});
  EXPECT_EQ(out.read(), (std::vector<float>{5, 15}));
}

TEST_P(ResampleReference, EveryTypeClockAndOptionEqualsTheReference) {
  // Numbers of features that fill 16-byte vectors, pairs, or neither.
  constexpr int64_t kFeatureCounts[] = {1, 2, 3, 4, 6, 8, 16, 17, 32, 48};
  Random random(11);
  size_t turn = 0;
  const auto check = [&](auto value, auto clock) {
    using V = decltype(value);
    using C = decltype(clock);
    const std::vector<InterpolationOptions> all = all_options<typename C::Type>(test::kIsFloat<typename V::Type>);
    // Under a GPU's sanitizer each launch is slow, so only one in seven options runs there, others for each pair of
    // types.
    const size_t option_step = device().is_cuda() ? 7 : 1;
    for (size_t i = turn % option_step; i < all.size(); i += option_step) {
      const int64_t features = kFeatureCounts[++turn % std::size(kFeatureCounts)];
      const Sizes sizes{random.below(3) + 1, random.one_in(6) ? random.below(3) : random.below(40),
                        random.below(70) + 1, features};
      expect_reference(random_problem<V, C>(random, sizes, random.one_in(3)), all[i], device());
      if (testing::Test::HasFatalFailure()) return;
    }
  };
  const auto for_each_pair = [&](auto value) { test::for_each_clock([&](auto clock) { check(value, clock); }); };
  test::for_each_float(for_each_pair);
  test::for_each_integer(for_each_pair);
}

TEST_P(ResampleReference, Int64TimesReachAcrossTheirWholeRange) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kGreatest = std::numeric_limits<int64_t>::max();
  using V = Element<double, DType::kFloat64>;
  using C = Element<int64_t, DType::kInt64>;
  test::Problem<V, C> p{.samples = 4, .targets = 9, .batched = false, .times_per_row = false, .targets_per_row = false};
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

TEST_P(ResampleReference, EveryLayoutEqualsTheReference) {
  Random random(12);
  const auto check = [&](auto value, auto clock) {
    using V = decltype(value);
    using C = decltype(clock);
    for (const Layout layout :
         {Layout::kGaps, Layout::kWideGaps, Layout::kSwapped, Layout::kReversed, Layout::kSpread}) {
      for (const int64_t features : {1, 3, 16}) {
        for (const int64_t batch : {1, 3}) {
          InterpolationOptions options;
          if (!test::kIsFloat<typename V::Type>) options.method = InterpolationMethod::kNearest;
          const auto p = random_problem<V, C>(random, {batch, 9, 21, features}, random.one_in(2));
          expect_reference(p, options, device(), layout);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  };
  check(Element<double, DType::kFloat64>{}, Element<float, DType::kFloat32>{});
  check(Element<float, DType::kFloat32>{}, Element<int64_t, DType::kInt64>{});
  check(Element<Float16, DType::kFloat16>{}, Element<double, DType::kFloat64>{});
  check(Element<BFloat16, DType::kBFloat16>{}, Element<int64_t, DType::kInt64>{});
  check(Element<int16_t, DType::kInt16>{}, Element<double, DType::kFloat64>{});
  check(Element<uint8_t, DType::kUInt8>{}, Element<float, DType::kFloat32>{});
}

// There are enough targets, rows and features for each size of a GPU's tile of targets. Then rows are so short that a
// block takes several; some clocks fill their part of its memory, some do not.
TEST_P(ResampleReference, ManyTargetsAndRows) {
  Random random(15);
  const auto check = [&](auto element, const Sizes& sizes) {
    Sizes run_sizes = sizes;
    if (test::kSanitized) run_sizes.batch = std::max<int64_t>(2, sizes.batch / 10);
    expect_reference(random_problem<decltype(element), Element<int64_t, DType::kInt64>>(random, run_sizes, false), {},
                     device());
  };
  for (const int64_t features : {16, 32, 64, 128, 256}) check(Element<float, DType::kFloat32>{}, {2, 6, 300, features});
  for (const int64_t batch : {70, 500}) check(Element<BFloat16, DType::kBFloat16>{}, {batch, 6, 260, 2});
  for (const int64_t samples : {5, 16, 64, 256}) check(Element<BFloat16, DType::kBFloat16>{}, {2500, samples, 20, 3});
}

// All samples share one element of memory, because a row may have more samples than 32 bits can count.
TEST_P(ResampleReference, RowsOfMoreSamplesThan32BitsCount) {
  const DeviceArray<float> values({7}, DType::kFloat32, {1, 1}, device());
  const DeviceArray<double> times({3}, DType::kFloat64, {1}, device());
  const DeviceArray<double> targets({2, 3, 4}, DType::kFloat64, {3}, device());
  for (const int64_t samples : {int64_t{1} << 30, int64_t{1} << 31, (int64_t{1} << 32) + 1, int64_t{1} << 40}) {
    TensorView many_values = values.view();
    TensorView many_times = times.view();
    many_values.shape[0] = many_times.shape[0] = samples;
    many_values.strides[0] = many_times.strides[0] = 0;
    for (const Extrapolate extrapolate : {Extrapolate::kClamp, Extrapolate::kNan}) {
      const DeviceArray<float> out({0, 0, 0}, DType::kFloat32, {3, 1}, device());
      const DeviceArray<uint8_t> valid({7, 7, 7}, DType::kBool, {3}, device());
      if (device().is_cuda() && samples > int64_t{1} << 30) {
        EXPECT_THROW(resample_trajectories({.values = many_values,
                                            .times = many_times,
                                            .target_times = targets.view(),
                                            .options = {.extrapolate = extrapolate},
                                            .out = out.view(),
                                            .valid = valid.view()},
                                           CudaStream{}),
                     ArgumentError);
        continue;
      }
      resample_trajectories({.values = many_values,
                             .times = many_times,
                             .target_times = targets.view(),
                             .options = {.extrapolate = extrapolate},
                             .out = out.view(),
                             .valid = valid.view()},
                            CudaStream{});
      EXPECT_EQ(out.read()[1], 7) << samples;
      EXPECT_EQ(std::isnan(out.read()[0]), extrapolate == Extrapolate::kNan) << samples;
      EXPECT_EQ(valid.read(), (std::vector<uint8_t>{0, 1, 0})) << samples;
    }
  }
}

// Runs clocks that break the contract, also under sanitizers. Their memory has exactly their size, so a read outside it
// is found.
TEST_P(ResampleReference, BadClocksNeverReadOutsideTheirRow) {
  Random random(17);
  const auto check = [&](auto clock, const InterpolationOptions& options, int64_t samples) {
    using Clock = typename decltype(clock)::Type;
    constexpr bool kFloating = std::is_floating_point_v<Clock>;
    const int64_t length = samples - random.below(std::min<int64_t>(samples, 3));
    const auto any_time = [&]() -> Clock {
      if (random.one_in(12))
        return random.one_in(2) ? std::numeric_limits<Clock>::max() : std::numeric_limits<Clock>::lowest();
      if (kFloating && random.one_in(4))
        return static_cast<Clock>(random.one_in(2) ? kNan : random.one_in(2) ? kInfinity : -kInfinity);
      return static_cast<Clock>(random.below(9) - 4);
    };
    constexpr float kOutside = 1e9F;
    std::vector<float> values;
    std::vector<Clock> times;
    std::vector<Clock> targets;
    for (int64_t i = 0; i < 3 * samples; ++i) {
      values.push_back(i / samples == 1 && i % samples < length ? 1 : kOutside);
      times.push_back(any_time());
    }
    for (int64_t t = 0; t < 40; ++t) targets.push_back(any_time());
    // The row under test lies between other rows, and then alone, with nothing mapped beside it.
    for (const bool is_alone : {false, true}) {
      const auto begin = static_cast<ptrdiff_t>(is_alone ? samples : 0);
      const auto end = static_cast<ptrdiff_t>(is_alone ? samples + length : 3 * samples);
      const int64_t rows = is_alone ? 1 : 3;
      const int64_t width = is_alone ? length : samples;
      const DeviceArray<float> in({values.begin() + begin, values.begin() + end}, DType::kFloat32, {rows, width, 1},
                                  device());
      const DeviceArray<Clock> times_array({times.begin() + begin, times.begin() + end}, decltype(clock)::kDType,
                                           {rows, width}, device());
      const DeviceArray<Clock> targets_array(targets, decltype(clock)::kDType, {40}, device());
      const DeviceArray<int64_t> lengths(std::vector<int64_t>(static_cast<size_t>(rows), length), DType::kInt64, {rows},
                                         device());
      const DeviceArray<float> out(std::vector<float>(static_cast<size_t>(rows * 40)), DType::kFloat32, {rows, 40, 1},
                                   device());
      resample_trajectories({.values = in.view(),
                             .times = times_array.view(),
                             .target_times = targets_array.view(),
                             .options = options,
                             .lengths = lengths.view(),
                             .out = out.view()},
                            CudaStream{});
      const std::vector<float> actual = out.read();
      const size_t first = is_alone ? 0 : 40;
      for (size_t t = first; t < first + 40; ++t) {
        // All samples are 1, so a mixture is 1, or NaN if a weight is NaN.
        ASSERT_TRUE(actual[t] == 1 || std::isnan(actual[t])) << actual[t];
      }
    }
  };
  for (const int64_t samples : {1, 2, 3, 4, 5, 9, 17}) {
    test::for_each_clock([&](auto clock) {
      const auto all = all_options<typename decltype(clock)::Type>(true);
      const size_t option_step = device().is_cuda() ? 7 : 1;
      for (size_t i = static_cast<size_t>(samples) % option_step; i < all.size(); i += option_step)
        check(clock, all[i], samples);
    });
  }
  for (const int64_t samples : {513, 1030}) {
    test::for_each_clock([&](auto clock) {
      check(clock, {.extrapolate = Extrapolate::kLinear}, samples);
      check(clock, {.method = InterpolationMethod::kNearest}, samples);
    });
  }
}

// Calls that Python never makes: it provides the workspace, and has no CUDA tensor without CUDA.
TEST_P(ResampleReference, RefusesACubicWithoutAWorkspaceAndAMissingDevice) {
  const auto call = [](Device on, InterpolationMethod method) {
    const DeviceArray<float> values({0, 10, 20}, DType::kFloat32, {3, 1}, device());
    const DeviceArray<float> out({7, 7, 7}, DType::kFloat32, {3, 1}, device());
    const DeviceArray<float> times({0, 1, 2}, DType::kFloat32, {3}, device());
    ResampleCall arguments{
        .values = values.view(), .times = times.view(), .target_times = times.view(), .out = out.view()};
    arguments.options.method = method;
    for (TensorView* view : {&arguments.values, &arguments.times, &arguments.target_times, &arguments.out})
      view->device = on;
    try {
      resample_trajectories(arguments, CudaStream{});
    } catch (...) {
      EXPECT_EQ(out.read(), std::vector<float>(3, 7));
      throw;
    }
  };
  test::expect_refused<ArgumentError>([&] { call(device(), InterpolationMethod::kCubic); }, "workspace: ");
  if (cuda_device_count() > 0) return;
  test::expect_refused<DeviceError>([&] { call({DeviceType::kCuda, 0}, InterpolationMethod::kLinear); },
                                    "CUDA is not available: ", cuda_unavailable_reason());
}

// ---- Threads ----

TEST(ResampleThreads, CallsAtTheSameTimeDoNotDisturbEachOther) {
  std::vector<std::thread> callers;
  for (uint64_t caller = 0; caller < 4; ++caller) {
    callers.emplace_back([caller] {
      Random random(19 + caller);
      using V = Element<float, DType::kFloat32>;
      for (int round = 0; round < 5; ++round) {
        const auto p = random_problem<V, Element<int64_t, DType::kInt64>>(random, {3, 20, 1500, 8}, false);
        expect_reference(p, {}, {});
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace robocache
