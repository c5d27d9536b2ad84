// Random calls of resample_trajectories, and the reference's results.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "robocache/ops/resample/resample.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/random_data.hpp"
#include "tests/cpp/reference.hpp"

namespace robocache::test {

template <class ValueElement, class ClockElement>
struct Problem {
  using Value = typename ValueElement::Type;
  using Clock = typename ClockElement::Type;

  int64_t batch = 1;  // rows, 0 or more; if not `batched`, values are [S, D]
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
Answer<typename V::Type> reference(const Problem<V, C>& p, const InterpolationOptions& options) {
  using Value = typename V::Type;
  using Clock = typename C::Type;
  using Work = std::conditional_t<std::is_same_v<Value, double>, double, float>;
  Answer<Value> answer;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Clock* const row_times = p.times.data() + (p.times_per_row ? b * p.samples : 0);
    const int64_t length = p.lengths ? (*p.lengths)[static_cast<size_t>(b)] : p.samples;
    for (int64_t t = 0; t < p.targets; ++t) {
      const Clock target = p.target_times[static_cast<size_t>((p.targets_per_row ? b * p.targets : 0) + t)];
      const Choice choice = choose<Work>(std::span(row_times, static_cast<size_t>(length)), target, options);
      answer.valid.push_back(choice.valid);
      for (int64_t d = 0; d < p.features; ++d) {
        const auto value = [&](int64_t row) {
          return p.values[static_cast<size_t>((b * p.samples + row) * p.features + d)];
        };
        if (choice.kind == Choice::kRow) {
          answer.values.push_back(value(choice.left));
        } else if (choice.kind == Choice::kMixture) {
          const double left = widened(value(choice.left));
          const double right = widened(value(choice.right));
          answer.values.push_back(rounded<Value>(mixed<Work>(left, right, choice.weight)));
        } else if constexpr (kIsFloat<Value>) {
          answer.values.push_back(rounded<Value>(std::numeric_limits<double>::quiet_NaN()));
        } else {
          answer.values.push_back(0);
        }
      }
    }
  }
  return answer;
}

// The layout of a problem's arrays in memory. Gaps follow each row of the last dimension; kSwapped exchanges the last
// two dimensions; kSpread uses every second element.
enum class Layout { kContiguous, kGaps, kWideGaps, kSwapped, kReversed, kSpread };

inline std::vector<int64_t> strides_of(Layout layout, const std::vector<int64_t>& shape) {
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
void expect_reference(const Problem<V, C>& p, const InterpolationOptions& options, Device device,
                      Layout layout = Layout::kContiguous) {
  using Value = typename V::Type;
  const auto shape = [&](bool with_batch, std::vector<int64_t> row_shape) {
    if (with_batch) row_shape.insert(row_shape.begin(), p.batch);
    return row_shape;
  };
  const auto array = [&]<class T>(const std::vector<T>& values, DType dtype, const std::vector<int64_t>& extents) {
    return DeviceArray<T>(values, dtype, extents, device, strides_of(layout, extents));
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
  resample_trajectories({.values = values.view(),
                         .times = times.view(),
                         .target_times = targets.view(),
                         .options = options,
                         .lengths = lengths ? std::optional(lengths->view()) : std::nullopt,
                         .out = out.view(),
                         .valid = valid.view()},
                        CudaStream{});

  const Answer<Value> expected = reference(p, options);
  const std::vector<Value> actual = out.read();
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_TRUE(same(actual[i], expected.values[i]))
        << dtype_name(V::kDType) << " by " << dtype_name(C::kDType) << ", method " << static_cast<int>(options.method)
        << ", extrapolate " << static_cast<int>(options.extrapolate) << ", causal " << options.causal << ", layout "
        << static_cast<int>(layout) << ", values " << values.view().describe() << ": element " << i << " of "
        << out.view().describe() << " is " << widened(actual[i]) << ", expected " << widened(expected.values[i]);
  }
  ASSERT_EQ(valid.read(), expected.valid);
  ASSERT_TRUE(out.gaps_are_untouched() && valid.gaps_are_untouched());
}

// Returns all combinations of options that are allowed together. The durations occur exactly in random clocks, which
// step by quarters of a second.
template <class Clock>
std::vector<InterpolationOptions> all_options(bool with_linear) {
  std::vector<InterpolationOptions> all;
  const Duration half = std::is_same_v<Clock, int64_t> ? Duration(int64_t{500'000'000}) : Duration(0.5);
  const Duration quarter = std::is_same_v<Clock, int64_t> ? Duration(250'000'000.0) : Duration(0.25);
  for (const InterpolationMethod method : kMethods) {
    const bool is_linear = method == InterpolationMethod::kLinear;
    if (is_linear && !with_linear) continue;
    for (const Extrapolate extrapolate : {Extrapolate::kClamp, Extrapolate::kNan, Extrapolate::kLinear}) {
      if (extrapolate == Extrapolate::kLinear && !is_linear) continue;
      for (int bits = 0; bits < 8; ++bits) {
        InterpolationOptions options{.method = method, .extrapolate = extrapolate, .causal = (bits & 1) != 0};
        if ((bits & 2) != 0) options.max_gap = half;
        if ((bits & 4) != 0) options.tolerance = quarter;
        if (options.causal && method == InterpolationMethod::kNext) continue;
        if (options.tolerance && is_linear) continue;
        all.push_back(options);
      }
    }
  }
  return all;
}

}  // namespace robocache::test
