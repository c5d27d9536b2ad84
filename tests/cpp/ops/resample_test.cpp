#include "robocache/ops/resample/resample.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "robocache/core/error.hpp"
#include "robocache/core/thread_pool.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/random_data.hpp"
#include "tests/cpp/reference.hpp"

namespace robocache {
namespace {

using test::DeviceArray;
using test::Element;
using test::Random;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr InterpolationMethod kMethods[] = {InterpolationMethod::kLinear, InterpolationMethod::kNearest,
                                            InterpolationMethod::kPrevious, InterpolationMethod::kNext};

// ---- Problems, and their answer by the reference ----

template <class ValueElement, class ClockElement>
struct Problem {
  using Value = typename ValueElement::Type;
  using Clock = typename ClockElement::Type;

  int64_t batch = 1;  // 0 or more rows; one row of values [S, D] where not `batched`
  int64_t samples = 0;
  int64_t targets = 0;
  int64_t features = 1;
  bool batched = true;
  bool times_per_row = true;
  bool targets_per_row = true;
  std::vector<Value> values;
  std::vector<Clock> times;
  std::vector<Clock> target_times;
  std::optional<std::vector<int64_t>> lengths;
};

struct Sizes {
  int64_t batch, samples, targets, features;
};

template <class V, class C>
Problem<V, C> random_problem(Random& random, Sizes sizes, bool with_lengths) {
  using Clock = typename C::Type;
  Problem<V, C> p{.batch = sizes.batch, .samples = sizes.samples, .targets = sizes.targets, .features = sizes.features};
  p.batched = p.batch != 1 || random.one_in(2);
  p.times_per_row = p.batched && random.one_in(2);
  p.targets_per_row = p.batched && random.one_in(2);
  p.values = random.values(V{}, p.batch * p.samples * p.features);
  std::vector<Clock> clock;
  for (int64_t b = 0; b < (p.times_per_row ? p.batch : 1); ++b) {
    clock = random.clock<Clock>(p.samples);
    p.times.insert(p.times.end(), clock.begin(), clock.end());
  }
  for (int64_t b = 0; b < (p.targets_per_row ? p.batch : 1); ++b) {
    const std::vector<Clock> row = random.targets(clock, p.targets);
    p.target_times.insert(p.target_times.end(), row.begin(), row.end());
  }
  if (with_lengths) {
    p.lengths.emplace();
    for (int64_t b = 0; b < p.batch; ++b) p.lengths->push_back(random.below(p.samples + 1));
  }
  return p;
}

template <class T>
struct Answer {
  std::vector<T> values;
  std::vector<uint8_t> valid;
};

template <class V, class C>
Answer<typename V::Type> reference(const Problem<V, C>& p, const ResampleOptions& options) {
  using Value = typename V::Type;
  using Clock = typename C::Type;
  using Work = std::conditional_t<std::is_same_v<Value, double>, double, float>;
  Answer<Value> answer;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Clock* const row_times = p.times.data() + (p.times_per_row ? b * p.samples : 0);
    const int64_t length = p.lengths ? (*p.lengths)[static_cast<size_t>(b)] : p.samples;
    for (int64_t t = 0; t < p.targets; ++t) {
      const Clock target = p.target_times[static_cast<size_t>((p.targets_per_row ? b * p.targets : 0) + t)];
      const test::Choice choice =
          test::choose<Work>(std::span(row_times, static_cast<size_t>(length)), target, options);
      answer.valid.push_back(choice.valid);
      for (int64_t d = 0; d < p.features; ++d) {
        const auto value = [&](int64_t row) {
          return p.values[static_cast<size_t>((b * p.samples + row) * p.features + d)];
        };
        if (choice.kind == test::Choice::kRow) {
          answer.values.push_back(value(choice.left));
        } else if (choice.kind == test::Choice::kMixture) {
          const double left = test::widened(value(choice.left));
          const double right = test::widened(value(choice.right));
          answer.values.push_back(test::rounded<Value>(test::mixed<Work>(left, right, choice.weight)));
        } else if constexpr (test::kIsFloat<Value>) {
          answer.values.push_back(test::rounded<Value>(kNan));
        } else {
          answer.values.push_back(0);
        }
      }
    }
  }
  return answer;
}

// How the arrays of a problem lie in memory.
enum class Layout { kContiguous, kGaps, kWideGaps, kSwapped, kReversed, kSpread };

std::vector<int64_t> strides_of(Layout layout, const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  const size_t last = shape.size() - 1;
  int64_t stride = layout == Layout::kSpread ? 2 : 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    size_t d = last - i;
    if (layout == Layout::kSwapped && last > 0 && i < 2) d = last - 1 + i;
    strides[d] = layout == Layout::kReversed ? -stride : stride;
    stride *= shape[d];
    if (layout == Layout::kGaps && i == 0) stride += 3;
    if (layout == Layout::kWideGaps && i == 0) stride += 16;
  }
  return strides;
}

template <class V, class C>
void expect_reference(const Problem<V, C>& p, const ResampleOptions& options, Device device,
                      Layout layout = Layout::kContiguous) {
  using Value = typename V::Type;
  const auto shape = [&](bool with_batch, std::vector<int64_t> rest) {
    if (with_batch) rest.insert(rest.begin(), p.batch);
    return rest;
  };
  const auto array = [&]<class T>(const std::vector<T>& values, DType dtype, const std::vector<int64_t>& of) {
    return DeviceArray<T>(values, dtype, of, device, strides_of(layout, of));
  };
  const auto values = array(p.values, V::kDType, shape(p.batched, {p.samples, p.features}));
  const auto times = array(p.times, C::kDType, shape(p.times_per_row, {p.samples}));
  const auto targets = array(p.target_times, C::kDType, shape(p.targets_per_row, {p.targets}));
  const auto out = array(std::vector<Value>(static_cast<size_t>(p.batch * p.targets * p.features)), V::kDType,
                         shape(p.batched, {p.targets, p.features}));
  const auto valid = array(std::vector<uint8_t>(static_cast<size_t>(p.batch * p.targets), 7), DType::kBool,
                           shape(p.batched, {p.targets}));
  std::optional<DeviceArray<int64_t>> lengths;
  if (p.lengths) lengths.emplace(array(*p.lengths, DType::kInt64, {p.batch}));
  resample_trajectories(values.view(), times.view(), targets.view(), options, out.view(), CudaStream{},
                        lengths ? std::optional(lengths->view()) : std::nullopt, valid.view());

  const Answer<Value> expected = reference(p, options);
  const std::vector<Value> got = out.read();
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(test::same(got[i], expected.values[i]))
        << dtype_name(V::kDType) << " by " << dtype_name(C::kDType) << ", method " << static_cast<int>(options.method)
        << ", extrapolate " << static_cast<int>(options.extrapolate) << ", causal " << options.causal << ", layout "
        << static_cast<int>(layout) << ", values " << values.view().describe() << ": element " << i << " of "
        << out.view().describe() << " is " << test::widened(got[i]) << ", expected "
        << test::widened(expected.values[i]);
  }
  ASSERT_EQ(valid.read(), expected.valid);
  ASSERT_TRUE(out.gaps_are_untouched() && valid.gaps_are_untouched());
}

// Every set of options that goes together, with durations that the quarters of a second of random clocks meet exactly.
template <class Clock>
std::vector<ResampleOptions> all_options(bool with_linear) {
  std::vector<ResampleOptions> all;
  const Duration half = std::is_same_v<Clock, int64_t> ? Duration(int64_t{500'000'000}) : Duration(0.5);
  const Duration quarter = std::is_same_v<Clock, int64_t> ? Duration(250'000'000.0) : Duration(0.25);
  for (const InterpolationMethod method : kMethods) {
    const bool linear = method == InterpolationMethod::kLinear;
    if (linear && !with_linear) continue;
    for (const Extrapolate extrapolate : {Extrapolate::kClamp, Extrapolate::kNan, Extrapolate::kLinear}) {
      if (extrapolate == Extrapolate::kLinear && !linear) continue;
      for (int bits = 0; bits < 8; ++bits) {
        ResampleOptions options{.method = method, .extrapolate = extrapolate, .causal = (bits & 1) != 0};
        if ((bits & 2) != 0) options.max_gap = half;
        if ((bits & 4) != 0) options.tolerance = quarter;
        if (options.causal && method == InterpolationMethod::kNext) continue;
        if (options.tolerance && linear) continue;
        all.push_back(options);
      }
    }
  }
  return all;
}

// Values [S, 1] by times [S], both float64.
Answer<double> resampled(const std::vector<double>& values, const std::vector<double>& times,
                         const std::vector<double>& targets, const ResampleOptions& options, Device device) {
  const auto s = static_cast<int64_t>(times.size());
  const auto t = static_cast<int64_t>(targets.size());
  const DeviceArray<double> in(values, DType::kFloat64, {s, 1}, device);
  const DeviceArray<double> clock(times, DType::kFloat64, {s}, device);
  const DeviceArray<double> wanted(targets, DType::kFloat64, {t}, device);
  const DeviceArray<double> out(std::vector<double>(targets.size(), 777), DType::kFloat64, {t, 1}, device);
  const DeviceArray<uint8_t> valid(std::vector<uint8_t>(targets.size(), 7), DType::kBool, {t}, device);
  resample_trajectories(in.view(), clock.view(), wanted.view(), options, out.view(), CudaStream{}, std::nullopt,
                        valid.view());
  return {out.read(), valid.read()};
}

class Resample : public test::OnDevice {
 protected:
  static Answer<double> at(const std::vector<double>& values, const std::vector<double>& times,
                           const std::vector<double>& targets, const ResampleOptions& options) {
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
  resample_trajectories(values.view(), times.view(), targets.view(), {}, out.view(), CudaStream{});
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
      resample_trajectories(in.view(), times.view(), times.view(), {.method = method}, out.view(), CudaStream{});
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
  resample_trajectories(whole.view(), times.view(), targets.view(),
                        {.method = InterpolationMethod::kPrevious, .causal = true}, out.view(), CudaStream{});
  EXPECT_EQ(out.read(), (std::vector<int32_t>{0, 0}));
}

TEST_P(Resample, NanosecondsOfThisCenturyKeepEveryOne) {
  const int64_t start = 1'700'000'000'000'000'001;
  const DeviceArray<double> values({0, 4, 8}, DType::kFloat64, {3, 1}, device());
  const DeviceArray<int64_t> times({start, start + 4, start + 6}, DType::kInt64, {3}, device());
  const DeviceArray<int64_t> targets({start + 1, start + 3, start + 5, start + 6}, DType::kInt64, {4}, device());
  const DeviceArray<double> out(std::vector<double>(4), DType::kFloat64, {4, 1}, device());
  resample_trajectories(values.view(), times.view(), targets.view(), {}, out.view(), CudaStream{});
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
  for (ResampleOptions options : all_options<int64_t>(true)) {
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
  for (const ResampleOptions& options : all_options<int64_t>(true)) expect_reference(p, options, device());
}

// ---- Everything against the reference ----

TEST_P(Resample, EveryTypeClockAndOptionGivesTheReferencesBits) {
  // Features that fill 16-byte vectors, pairs, and neither.
  constexpr int64_t kFeatures[] = {1, 2, 3, 4, 6, 8, 16, 17, 32, 48};
  Random random(11);
  size_t turn = 0;
  const auto check = [&](auto value, auto clock) {
    using V = decltype(value);
    using C = decltype(clock);
    const std::vector<ResampleOptions> all = all_options<typename C::Type>(test::kIsFloat<typename V::Type>);
    // Under a GPU's sanitizer each launch is slow: there, one in seven, another one for each pair of types.
    const size_t every = device().is_cuda() ? 7 : 1;
    for (size_t i = turn % every; i < all.size(); i += every) {
      const int64_t features = kFeatures[++turn % std::size(kFeatures)];
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

TEST_P(Resample, EveryLayoutGivesTheReferencesBits) {
  Random random(12);
  const auto check = [&](auto value, auto clock) {
    using V = decltype(value);
    using C = decltype(clock);
    for (const Layout layout :
         {Layout::kGaps, Layout::kWideGaps, Layout::kSwapped, Layout::kReversed, Layout::kSpread}) {
      for (const int64_t features : {1, 3, 16}) {
        for (const int64_t batch : {1, 3}) {
          ResampleOptions options;
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

TEST_P(Resample, RowsFeaturesAndSamplesMayShareMemory) {
  // values [3, 2, 2] whose stride is 0 in one dimension after the other; times and targets expanded to every row.
  const std::vector<float> values{0, 1, 10, 11, 100, 101, 110, 111, 200, 201, 210, 211};
  const DeviceArray<float> times({0, 1, 0, 1, 0, 1}, DType::kFloat32, {3, 2}, device(), {0, 1});
  const DeviceArray<float> targets({0.5F, 0.5F, 0.5F}, DType::kFloat32, {3, 1}, device(), {0, 1});
  for (const std::vector<int64_t>& strides : {std::vector<int64_t>{0, 2, 1}, std::vector<int64_t>{2, 0, 1},
                                              std::vector<int64_t>{2, 1, 0}, std::vector<int64_t>{0, 0, 0}}) {
    const DeviceArray<float> in(values, DType::kFloat32, {3, 2, 2}, device(), strides);
    const DeviceArray<float> out(std::vector<float>(6), DType::kFloat32, {3, 1, 2}, device());
    resample_trajectories(in.view(), times.view(), targets.view(), {}, out.view(), CudaStream{});
    const std::vector<float> seen = in.read();
    std::vector<float> expected;
    for (size_t b = 0; b < 3; ++b) {
      for (size_t d = 0; d < 2; ++d) expected.push_back((seen[4 * b + d] + seen[4 * b + 2 + d]) / 2);
    }
    EXPECT_EQ(out.read(), expected) << strides[0] << ", " << strides[1] << ", " << strides[2];
  }
  // A clock of stride 0 holds one time: the last of its samples.
  const DeviceArray<float> in({1, 2, 3}, DType::kFloat32, {3, 1}, device());
  const DeviceArray<float> stopped({5, 5, 5}, DType::kFloat32, {3}, device(), {0});
  const DeviceArray<float> asked({4, 5, 6}, DType::kFloat32, {3}, device());
  const DeviceArray<float> out({0, 0, 0}, DType::kFloat32, {3, 1}, device());
  resample_trajectories(in.view(), stopped.view(), asked.view(), {}, out.view(), CudaStream{});
  EXPECT_EQ(out.read(), (std::vector<float>{3, 3, 3}));
}

TEST_P(Resample, RowsMayBeginOffAVectorsBoundary) {
  // Eight features inside rows of sixteen, beginning at each of the first elements.
  Random random(13);
  const Element<float, DType::kFloat32> element;
  const std::vector<float> memory = random.values(element, 5 * 16);
  const DeviceArray<float> times({0, 1, 2, 3, 4}, DType::kFloat32, {5}, device());
  const DeviceArray<float> targets({0.25F, 3.75F, 2}, DType::kFloat32, {3}, device());
  for (size_t begin = 0; begin <= 8; ++begin) {
    const DeviceArray<float> in(memory, DType::kFloat32, {5, 16}, device());
    const DeviceArray<float> out(std::vector<float>(3 * 16, -1), DType::kFloat32, {3, 16}, device());
    TensorView from = in.view();
    TensorView to = out.view();
    from.shape[1] = to.shape[1] = 8;
    from.data = static_cast<float*>(from.data) + begin;
    to.data = static_cast<float*>(to.data) + begin;
    resample_trajectories(from, times.view(), targets.view(), {}, to, CudaStream{});
    const std::vector<float> got = out.read();
    for (size_t d = 0; d < 16; ++d) {
      const bool inside = d >= begin && d < begin + 8;
      const auto mix = [&](size_t row, double weight) {
        return test::mixed<float>(memory[row * 16 + d], memory[(row + 1) * 16 + d], weight);
      };
      ASSERT_TRUE(test::same(got[d], inside ? mix(0, 0.25) : -1)) << begin << ", " << d;
      ASSERT_TRUE(test::same(got[16 + d], inside ? mix(3, 0.75) : -1)) << begin << ", " << d;
      ASSERT_TRUE(test::same(got[32 + d], inside ? memory[32 + d] : -1)) << begin << ", " << d;
    }
  }
}

TEST_P(Resample, LongClocksAndWideRows) {
  Random random(14);
  using V = Element<float, DType::kFloat32>;
  for (const int64_t samples : {511, 512, 513, 1024, 1025, 3001}) {
    expect_reference(random_problem<V, Element<double, DType::kFloat64>>(random, {1, samples, 150, 1}, false), {},
                     device());
    expect_reference(random_problem<V, Element<int64_t, DType::kInt64>>(random, {2, samples, 150, 1}, true),
                     {.method = InterpolationMethod::kNearest}, device());
  }
  for (const int64_t features : {127, 128, 129, 260, 1024}) {
    expect_reference(random_problem<V, Element<double, DType::kFloat64>>(random, {2, 7, 11, features}, false), {},
                     device());
  }
}

// Targets and rows enough, and features few and many, that a GPU's tile of targets takes each of its sizes.
TEST_P(Resample, ManyTargetsAndRows) {
  Random random(15);
  using C = Element<int64_t, DType::kInt64>;
  for (const int64_t features : {16, 32, 64, 128, 256}) {
    expect_reference(random_problem<Element<float, DType::kFloat32>, C>(random, {2, 6, 300, features}, false), {},
                     device());
  }
  for (const int64_t batch : {70, 500}) {
    expect_reference(random_problem<Element<BFloat16, DType::kBFloat16>, C>(random, {batch, 6, 260, 2}, false), {},
                     device());
  }
  // Rows so short that a block takes several, with clocks that fill their part of its memory and with some that do not.
  for (const int64_t samples : {5, 16, 64}) {
    expect_reference(random_problem<Element<BFloat16, DType::kBFloat16>, C>(random, {2500, samples, 20, 3}, false), {},
                     device());
  }
}

// All samples are one, in memory: a row may be longer than 32 bits count.
TEST_P(Resample, RowsOfMoreSamplesThan32BitsCount) {
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
        EXPECT_THROW(resample_trajectories(many_values, many_times, targets.view(), {.extrapolate = extrapolate},
                                           out.view(), CudaStream{}, std::nullopt, valid.view()),
                     ArgumentError);
        continue;
      }
      resample_trajectories(many_values, many_times, targets.view(), {.extrapolate = extrapolate}, out.view(),
                            CudaStream{}, std::nullopt, valid.view());
      EXPECT_EQ(out.read()[1], 7) << samples;
      EXPECT_EQ(std::isnan(out.read()[0]), extrapolate == Extrapolate::kNan) << samples;
      EXPECT_EQ(valid.read(), (std::vector<uint8_t>{0, 1, 0})) << samples;
    }
  }
}

TEST_P(Resample, EmptyDimensions) {
  Random random(16);
  using V = Element<float, DType::kFloat32>;
  using C = Element<double, DType::kFloat64>;
  for (const Sizes& sizes : {Sizes{0, 3, 2, 4}, Sizes{2, 0, 3, 4}, Sizes{2, 3, 0, 4}, Sizes{2, 3, 4, 0},
                             Sizes{0, 0, 0, 0}, Sizes{2, 0, 3, 0}}) {
    expect_reference(random_problem<V, C>(random, sizes, false), {}, device());
    expect_reference(random_problem<V, C>(random, sizes, true), {.method = InterpolationMethod::kPrevious}, device());
  }
}

TEST_P(Resample, LengthsOfEitherTypeCutTheirRow) {
  const DeviceArray<float> values({1, 2, 9, 9, 9, 9}, DType::kFloat32, {2, 3, 1}, device());
  const DeviceArray<float> times({0, 1, 2}, DType::kFloat32, {3}, device());
  const DeviceArray<float> targets({2}, DType::kFloat32, {1}, device());
  const auto check = [&](const TensorView& lengths) {
    const DeviceArray<float> out({-1, -1}, DType::kFloat32, {2, 1, 1}, device());
    const DeviceArray<uint8_t> valid({7, 7}, DType::kBool, {2, 1}, device());
    resample_trajectories(values.view(), times.view(), targets.view(), {}, out.view(), CudaStream{}, lengths,
                          valid.view());
    EXPECT_EQ(out.read()[0], 2);
    EXPECT_TRUE(std::isnan(out.read()[1]));
    EXPECT_EQ(valid.read(), (std::vector<uint8_t>{0, 0}));
  };
  check(DeviceArray<int64_t>({2, 0}, DType::kInt64, {2}, device()).view());
  check(DeviceArray<int32_t>({2, 0}, DType::kInt32, {2}, device()).view());
  check(DeviceArray<int32_t>({2, 0}, DType::kInt32, {2}, device(), {3}).view());
}

TEST_P(Resample, LengthsOutsideTheRowAreRefusedOnTheCpuAndCutOnCuda) {
  const DeviceArray<float> values({1, 2, 3, 4}, DType::kFloat32, {2, 2, 1}, device());
  const DeviceArray<float> times({0, 1}, DType::kFloat32, {2}, device());
  const DeviceArray<float> targets({1}, DType::kFloat32, {1}, device());
  const DeviceArray<float> out({-1, -1}, DType::kFloat32, {2, 1, 1}, device());
  for (const auto& [first, second] : {std::pair<int64_t, int64_t>{3, 2}, {2, -1}, {INT64_MAX, INT64_MIN}}) {
    const DeviceArray<int64_t> lengths({first, second}, DType::kInt64, {2}, device());
    const auto call = [&] {
      resample_trajectories(values.view(), times.view(), targets.view(), {}, out.view(), CudaStream{}, lengths.view());
    };
    if (!device().is_cuda()) {
      EXPECT_THROW(call(), ArgumentError);
      EXPECT_EQ(out.read(), (std::vector<float>{-1, -1}));
    } else {
      call();
      EXPECT_EQ(out.read()[0], 2);
      EXPECT_TRUE(second < 0 ? std::isnan(out.read()[1]) : out.read()[1] == 4);
    }
  }
}

// For the sanitizers too: clocks that break the contract, in memory of exactly their size, between rows and behind
// samples that must not be seen.
TEST_P(Resample, BadClocksNeverReadOutsideTheirRow) {
  Random random(17);
  const auto check = [&](auto clock, const ResampleOptions& options, int64_t samples) {
    using Clock = typename decltype(clock)::Type;
    constexpr bool kFloating = std::is_floating_point_v<Clock>;
    const int64_t length = samples - random.below(std::min<int64_t>(samples, 3));
    const auto anything = [&]() -> Clock {
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
      times.push_back(anything());
    }
    for (int64_t t = 0; t < 40; ++t) targets.push_back(anything());
    // The row under test once in the middle of others and once alone, where nothing else is mapped.
    for (const bool alone : {false, true}) {
      const auto begin = static_cast<ptrdiff_t>(alone ? samples : 0);
      const auto end = static_cast<ptrdiff_t>(alone ? samples + length : 3 * samples);
      const int64_t rows = alone ? 1 : 3;
      const int64_t width = alone ? length : samples;
      const DeviceArray<float> in({values.begin() + begin, values.begin() + end}, DType::kFloat32, {rows, width, 1},
                                  device());
      const DeviceArray<Clock> at({times.begin() + begin, times.begin() + end}, decltype(clock)::kDType, {rows, width},
                                  device());
      const DeviceArray<Clock> wanted(targets, decltype(clock)::kDType, {40}, device());
      const DeviceArray<int64_t> lengths(std::vector<int64_t>(static_cast<size_t>(rows), length), DType::kInt64, {rows},
                                         device());
      const DeviceArray<float> out(std::vector<float>(static_cast<size_t>(rows * 40)), DType::kFloat32, {rows, 40, 1},
                                   device());
      resample_trajectories(in.view(), at.view(), wanted.view(), options, out.view(), CudaStream{}, lengths.view());
      const std::vector<float> got = out.read();
      const size_t first = alone ? 0 : 40;
      for (size_t t = first; t < first + 40; ++t) {
        // Any mixture of ones is one, or NaN where a weight is.
        ASSERT_TRUE(got[t] == 1 || std::isnan(got[t])) << got[t];
      }
    }
  };
  for (const int64_t samples : {1, 2, 3, 4, 5, 9, 17}) {
    test::for_each_clock([&](auto clock) {
      const auto all = all_options<typename decltype(clock)::Type>(true);
      const size_t every = device().is_cuda() ? 7 : 1;
      for (size_t i = static_cast<size_t>(samples) % every; i < all.size(); i += every) check(clock, all[i], samples);
    });
  }
  for (const int64_t samples : {513, 1030}) {
    test::for_each_clock([&](auto clock) {
      check(clock, {.extrapolate = Extrapolate::kLinear}, samples);
      check(clock, {.method = InterpolationMethod::kNearest}, samples);
    });
  }
}

// ---- Threads ----

TEST(ResampleThreads, TheirNumberChangesNothing) {
  Random random(18);
  using V = Element<float, DType::kFloat32>;
  const auto p = random_problem<V, Element<double, DType::kFloat64>>(random, {4, 50, 3001, 5}, true);
  const int before = num_threads();
  for (const int threads : {1, 2, 7}) {
    set_num_threads(threads);
    expect_reference(p, {}, {});
  }
  set_num_threads(before);
}

TEST(ResampleThreads, CallersAtTheSameTimeDoNotDisturbEachOther) {
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

// ---- Refusals ----

template <class Refusal, class Call>
void expect_refused(const Call& call, const std::string& start, const std::string& also = "") {
  try {
    call();
    ADD_FAILURE() << "accepted, expected: " << start;
  } catch (const Refusal& refusal) {
    const std::string text = refusal.what();
    EXPECT_TRUE(text.starts_with(start)) << text;
    EXPECT_NE(text.find(also), std::string::npos) << text;
  } catch (const std::exception& other) {
    ADD_FAILURE() << "another type: " << other.what();
  }
}

// A call that is fine, to be spoiled in one place: values [3, 2, 4], times and targets [2] and [5].
struct Call {
  explicit Call(Device device)
      : values_array(std::vector<float>(24, 1), DType::kFloat32, {3, 2, 4}, device),
        times_array({0, 1}, DType::kFloat64, {2}, device),
        targets_array({0, 0.5, 1, 1, 1}, DType::kFloat64, {5}, device),
        out_array(std::vector<float>(60, -1), DType::kFloat32, {3, 5, 4}, device),
        lengths_array({2, 1, 0}, DType::kInt32, {3}, device),
        valid_array(std::vector<uint8_t>(15, 7), DType::kBool, {3, 5}, device) {}

  void operator()() const { resample_trajectories(values, times, targets, options, out, CudaStream{}, lengths, valid); }
  bool wrote_nothing() const {
    return out_array.read() == std::vector<float>(60, -1) && valid_array.read() == std::vector<uint8_t>(15, 7);
  }

  DeviceArray<float> values_array;
  DeviceArray<double> times_array;
  DeviceArray<double> targets_array;
  DeviceArray<float> out_array;
  DeviceArray<int32_t> lengths_array;
  DeviceArray<uint8_t> valid_array;
  TensorView values = values_array.view();
  TensorView times = times_array.view();
  TensorView targets = targets_array.view();
  TensorView out = out_array.view();
  std::optional<TensorView> lengths = lengths_array.view();
  std::optional<TensorView> valid = valid_array.view();
  ResampleOptions options;
};

void reshape(TensorView& view, std::initializer_list<int64_t> shape) {
  view = TensorView::contiguous(view.data, view.dtype, shape, view.device);
}

class ResampleRefuses : public test::OnDevice {
 protected:
  // That `spoil` makes a good call one that is refused, with nothing written.
  template <class Refusal, class Spoil>
  static void when(const Spoil& spoil, const std::string& start, const std::string& also = "") {
    Call call(device());
    spoil(call);
    expect_refused<Refusal>(call, start, also);
    EXPECT_TRUE(call.wrote_nothing()) << start;
  }
};
ROBOCACHE_ON_EACH_DEVICE(ResampleRefuses);

TEST_P(ResampleRefuses, NothingOfAGoodCall) {
  Call call(device());
  EXPECT_NO_THROW(call());
  EXPECT_EQ(call.valid_array.read(), (std::vector<uint8_t>{1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
}

TEST_P(ResampleRefuses, Shapes) {
  when<ArgumentError>([](Call& c) { reshape(c.values, {24}); }, "values: expected [B, S, D] or [S, D], got [24]");
  when<ArgumentError>([](Call& c) { reshape(c.values, {1, 3, 2, 4}); }, "values: ", "got [1, 3, 2, 4]");
  when<ArgumentError>([](Call& c) { reshape(c.times, {}); }, "times: expected [3, S] or [S], got []");
  when<ArgumentError>([](Call& c) { reshape(c.times, {1, 1, 2}); }, "times: expected [3, S] or [S], got [1, 1, 2]");
  when<ArgumentError>([](Call& c) { reshape(c.times, {1, 2}); }, "times: ", "got [1, 2]; pass [S] for one clock");
  when<ArgumentError>([](Call& c) { reshape(c.times, {2, 1}); }, "times: expected [3, S] or [S], got [2, 1]");
  when<ArgumentError>([](Call& c) { reshape(c.times, {1}); }, "times: expected 2 samples like values, got 1");
  when<ArgumentError>([](Call& c) { reshape(c.targets, {1, 5}); }, "target_times: ", "pass [T] for one clock");
  when<ArgumentError>([](Call& c) { reshape(c.targets, {5, 1}); }, "target_times: expected [3, T] or [T], got [5, 1]");
  when<ArgumentError>([](Call& c) { reshape(c.lengths.value(), {1, 3}); }, "lengths: expected [3], got [1, 3]");
  when<ArgumentError>([](Call& c) { reshape(c.lengths.value(), {2}); }, "lengths: expected [3], got [2]");
  when<ArgumentError>([](Call& c) { reshape(c.out, {3, 4, 5}); }, "out: expected [3, 5, 4], got [3, 4, 5]");
  when<ArgumentError>([](Call& c) { reshape(c.out, {15, 4}); }, "out: expected [3, 5, 4], got [15, 4]");
  when<ArgumentError>([](Call& c) { reshape(c.valid.value(), {15}); }, "valid: ", "[15] bool");
  when<ArgumentError>([](Call& c) { reshape(c.valid.value(), {3, 4}); }, "valid: ", "[3, 4] bool");
  when<ArgumentError>([](Call& c) { reshape(c.valid.value(), {1, 5}); }, "valid: ", "[1, 5] bool");
  // Values [S, D] have no rows: their clocks are [S] and [T].
  const auto without_rows = [](Call& c) {
    reshape(c.values, {2, 4});
    reshape(c.out, {5, 4});
    c.lengths.reset();
    c.valid.reset();
  };
  Call good(device());
  without_rows(good);
  EXPECT_NO_THROW(good());
  when<ArgumentError>([&](Call& c) { without_rows(c), reshape(c.times, {1, 2}); }, "times: expected [S], got [1, 2]");
  when<ArgumentError>([&](Call& c) { without_rows(c), reshape(c.targets, {1, 5}); }, "target_times: expected [T]");
  when<ArgumentError>([&](Call& c) { without_rows(c), reshape(c.out, {1, 5, 4}); }, "out: expected [5, 4]");
}

TEST_P(ResampleRefuses, Types) {
  when<ArgumentTypeError>([](Call& c) { c.values.dtype = DType::kInt32; }, "values: method 'linear' expects float64",
                          "got int32; use 'nearest', 'previous' or 'next'");
  when<ArgumentTypeError>([](Call& c) { c.times.dtype = DType::kUInt64; }, "times: expected float32, float64",
                          "uint64");
  when<ArgumentTypeError>([](Call& c) { c.times.dtype = DType::kFloat16; }, "times: ", "got float16");
  when<ArgumentTypeError>([](Call& c) { c.targets.dtype = DType::kInt32; }, "target_times: ", "got int32");
  when<ArgumentTypeError>([](Call& c) { c.targets.dtype = DType::kInt64; },
                          "target_times: expected float64 like times, got int64");
  when<ArgumentTypeError>([](Call& c) { c.lengths.value().dtype = DType::kUInt32; },
                          "lengths: expected int32 or int64, got uint32");
  when<ArgumentTypeError>([](Call& c) { c.out.dtype = DType::kInt32; }, "out: expected float32 like values, got int32");
  when<ArgumentError>([](Call& c) { c.valid.value().dtype = DType::kUInt8; }, "valid: expected bool");
}

TEST_P(ResampleRefuses, OptionsThatDoNotGoTogether) {
  when<ArgumentError>([](Call& c) { c.options = {.method = InterpolationMethod::kNext, .causal = true}; }, "causal: ");
  when<ArgumentError>([](Call& c) { c.options.tolerance = 1.0; }, "tolerance: ", "not with 'linear'");
  for (const InterpolationMethod method :
       {InterpolationMethod::kNearest, InterpolationMethod::kPrevious, InterpolationMethod::kNext}) {
    when<ArgumentError>([&](Call& c) { c.options = {.method = method, .extrapolate = Extrapolate::kLinear}; },
                        "extrapolate: 'linear' goes with no step method, got ");
  }
  when<ArgumentError>(
      [](Call& c) {
        c.options = {.method = InterpolationMethod::kNearest, .methods = {{0, 1, InterpolationMethod::kPrevious}}};
        c.options.tolerance = 1.0;
      },
      "tolerance: expected one method for all features");
  when<ArgumentError>([](Call& c) { c.options.boundary = Boundary::kNatural; }, "bc_type: goes with 'cubic' alone");
  when<ArgumentError>([](Call& c) { c.options.method = InterpolationMethod::kCubic; }, "workspace: expected",
                      "got none");
}

TEST_P(ResampleRefuses, Durations) {
  for (const Duration& bad : {Duration(-1.0), Duration(int64_t{-1}), Duration(kNan), Duration(-kInfinity)}) {
    when<ArgumentError>([&](Call& c) { c.options.max_gap = bad; }, "max_gap: expected 0 or more, got ");
    when<ArgumentError>([&](Call& c) { c.options = {.method = InterpolationMethod::kNearest, .tolerance = bad}; },
                        "tolerance: expected 0 or more, got ");
  }
  const auto with_nanoseconds = [](Call& c) { c.times.dtype = c.targets.dtype = DType::kInt64; };
  when<ArgumentError>([&](Call& c) { with_nanoseconds(c), c.options.max_gap = 1.5; },
                      "max_gap: expected whole nanoseconds for an int64 clock, got 1.5");
  when<ArgumentError>([&](Call& c) { with_nanoseconds(c), c.options.max_gap = int64_t{-5}; }, "max_gap: ", "got -5");
  for (const Duration& good :
       {Duration(0.0), Duration(int64_t{0}), Duration(3.0), Duration(1e300), Duration(kInfinity)}) {
    Call call(device());
    call.options.max_gap = good;
    EXPECT_NO_THROW(call());
    with_nanoseconds(call);
    EXPECT_NO_THROW(call());
  }
}

TEST_P(ResampleRefuses, AnOutThatOverlaps) {
  when<ArgumentError>([](Call& c) { c.out.strides[0] = 0; }, "out: ", "stride 0");
  when<ArgumentError>([](Call& c) { c.out.strides[2] = 0; }, "out: ", "stride 0");
  // `out` and an input in one memory: the last byte of one is the first of the other, then they only touch.
  const DeviceArray<uint8_t> memory(std::vector<uint8_t>(1024), DType::kUInt8, {1024}, device());
  auto* const bytes = static_cast<char*>(memory.view().data);
  const auto place_out = [&](Call& c) { c.out.data = bytes + 256; };  // 240 bytes
  when<ArgumentError>([&](Call& c) { place_out(c), c.values.data = bytes + 256 + 236; }, "out: overlaps values");
  when<ArgumentError>([&](Call& c) { place_out(c), c.times.data = bytes + 248; }, "out: overlaps times");
  when<ArgumentError>([&](Call& c) { place_out(c), c.targets.data = bytes + 488; }, "out: overlaps target_times");
  when<ArgumentError>([&](Call& c) { place_out(c), c.lengths.value().data = bytes + 300; }, "out: overlaps lengths");
  Call good(device());
  place_out(good);
  good.values.data = bytes + 256 + 240;
  good.times.data = bytes + 240;
  EXPECT_NO_THROW(good());
}

TEST_P(ResampleRefuses, AnotherDevice) {
  const Device elsewhere = device().is_cuda() ? Device{} : Device{DeviceType::kCuda, 0};
  const std::string other = device_name(elsewhere);
  const std::string got = "expected on " + device_name(device()) + " like values, got on " + other;
  when<ArgumentError>([&](Call& c) { c.times.device = elsewhere; }, "times: " + got);
  when<ArgumentError>([&](Call& c) { c.targets.device = elsewhere; }, "target_times: " + got);
  when<ArgumentError>([&](Call& c) { c.lengths.value().device = elsewhere; }, "lengths: " + got);
  when<ArgumentError>([&](Call& c) { c.out.device = elsewhere; }, "out: " + got);
  when<ArgumentError>([&](Call& c) { c.valid.value().device = elsewhere; }, "valid: " + got);
}

TEST(ResampleCuda, IsRefusedWithTheReasonWhereThereIsNone) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "there is a CUDA device";
  Call call({});
  for (TensorView* view : {&call.values, &call.times, &call.targets, &call.out, &*call.lengths, &*call.valid}) {
    view->device = {DeviceType::kCuda, 0};
  }
  expect_refused<DeviceError>(call, "CUDA is not available: ", cuda_unavailable_reason());
}

// ---- check_times ----

class CheckTimes : public test::OnDevice {
 protected:
  template <class C>
  static DeviceArray<typename C::Type> clock(C /*element*/, const std::vector<double>& times,
                                             const std::vector<int64_t>& shape,
                                             const std::vector<int64_t>& strides = {}) {
    return {std::vector<typename C::Type>(times.begin(), times.end()), C::kDType, shape, device(), strides};
  }
  static void expect_bad(const TensorView& times, int64_t row, int64_t index,
                         const std::optional<TensorView>& lengths = std::nullopt) {
    expect_refused<ArgumentError>([&] { check_times(times, CudaStream{}, lengths); },
                                  "times: ", "row " + std::to_string(row) + ", index " + std::to_string(index));
  }
};
ROBOCACHE_ON_EACH_DEVICE(CheckTimes);

TEST_P(CheckTimes, AscendingWithRepeatsIsGood) {
  test::for_each_clock([](auto element) {
    EXPECT_NO_THROW(check_times(clock(element, {-2, -2, 0, 5, 5, 5}, {6}).view(), CudaStream{}));
    EXPECT_NO_THROW(check_times(clock(element, {0, 1, 1, -5, 6, 7}, {2, 3}).view(), CudaStream{}));
    EXPECT_NO_THROW(check_times(clock(element, {0, 1, 2}, {3}, {-1}).view(), CudaStream{}));
    EXPECT_NO_THROW(check_times(clock(element, {4}, {1}).view(), CudaStream{}));
    EXPECT_NO_THROW(check_times(clock(element, {}, {0}).view(), CudaStream{}));
    EXPECT_NO_THROW(check_times(clock(element, {}, {3, 0}).view(), CudaStream{}));
    EXPECT_NO_THROW(check_times(clock(element, {}, {0, 3}).view(), CudaStream{}));
  });
}

TEST_P(CheckTimes, TheFirstBadOneIsNamed) {
  test::for_each_clock([](auto element) {
    expect_bad(clock(element, {1, 0}, {2}).view(), 0, 1);
    expect_bad(clock(element, {0, 1, 2, 5, 4, 3}, {2, 3}).view(), 1, 1);
    expect_bad(clock(element, {0, 2, 1, 5, 4, 3}, {2, 3}).view(), 0, 2);
    expect_bad(clock(element, {0, 2, 1, 5, 4, 3}, {2, 3}, {1, 2}).view(), 0, 2);
    std::vector<double> many(3000);
    for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<double>(i % 1000);
    many[2400] = many[1701] = many[1702] = 0;
    expect_bad(clock(element, many, {3, 1000}).view(), 1, 701);
  });
}

TEST_P(CheckTimes, NanIsBadWhereverItStands) {
  const auto check = [](auto element) {
    expect_bad(clock(element, {kNan, 1, 2}, {3}).view(), 0, 0);
    expect_bad(clock(element, {0, kNan, 2}, {3}).view(), 0, 1);
    expect_bad(clock(element, {0, 1, kNan}, {3}).view(), 0, 2);
    expect_bad(clock(element, {kNan}, {1}).view(), 0, 0);
    EXPECT_NO_THROW(check_times(clock(element, {-kInfinity, 0, kInfinity}, {3}).view(), CudaStream{}));
  };
  check(Element<float, DType::kFloat32>{});
  check(Element<double, DType::kFloat64>{});
}

TEST_P(CheckTimes, WhatLiesPastALengthDoesNotCount) {
  const DeviceArray<double> times({0, 1, 0, 0, 1, 2, kNan, 0, 1}, DType::kFloat64, {3, 3}, device());
  const DeviceArray<int32_t> two_three_none({2, 3, 0}, DType::kInt32, {3}, device());
  EXPECT_NO_THROW(check_times(times.view(), CudaStream{}, two_three_none.view()));
  const DeviceArray<int64_t> three_three_one({3, 3, 1}, DType::kInt64, {3}, device());
  expect_bad(times.view(), 0, 2, three_three_one.view());
  const DeviceArray<int64_t> two_three_one({2, 3, 1}, DType::kInt64, {3}, device());
  expect_bad(times.view(), 2, 0, two_three_one.view());
}

TEST_P(CheckTimes, RefusesWhatIsNoClock) {
  const DeviceArray<int32_t> whole({0, 1}, DType::kInt32, {2}, device());
  expect_refused<ArgumentTypeError>([&] { check_times(whole.view(), CudaStream{}); },
                                    "times: expected float32, float64");
  const DeviceArray<float> cube({0, 1}, DType::kFloat32, {1, 2, 1}, device());
  expect_refused<ArgumentError>([&] { check_times(cube.view(), CudaStream{}); }, "times: ", "got [1, 2, 1]");
  const DeviceArray<float> times({0, 1}, DType::kFloat32, {2}, device());
  const DeviceArray<int64_t> lengths({1, 1}, DType::kInt64, {2}, device());
  expect_refused<ArgumentError>([&] { check_times(times.view(), CudaStream{}, lengths.view()); },
                                "lengths: expected [1], got [2]");
}

}  // namespace
}  // namespace robocache
