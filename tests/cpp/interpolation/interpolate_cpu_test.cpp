#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "robocache/core/cpu_isa.hpp"
#include "robocache/core/half.hpp"
#include "robocache/interpolation/interpolate.hpp"
#include "tests/cpp/random_data.hpp"
#include "tests/cpp/reference.hpp"

namespace robocache {
namespace {

using test::Element;
using test::Random;

struct Build {
  std::string name;
  InterpolateEntries* kernel;
};

// The builds of the kernel for this processor besides the baseline, to be compared with the baseline.
std::vector<Build> vector_builds() {
  std::vector<Build> all;
#if ROBOCACHE_ISA_COUNT >= 2
  if (__builtin_cpu_supports("x86-64-v3")) all.push_back({"v3", v3::interpolate_entries});
#endif
#if ROBOCACHE_ISA_COUNT >= 3
  if (__builtin_cpu_supports("x86-64-v4")) all.push_back({"v4", v4::interpolate_entries});
#endif
  return all;
}

std::vector<Build> every_build() {
  std::vector<Build> all = vector_builds();
  all.push_back({"baseline", baseline::interpolate_entries});
  return all;
}

// One row: values [samples, features] at float64 times. It is C-contiguous, except for a step between features.
struct OneRow {
  Segment segment{};
  Interpolation call{};
};

template <class E>
OneRow one_row(const std::vector<typename E::Type>& values, const std::vector<double>& times,
               const std::vector<double>& targets, int64_t features, int64_t feature_stride = 1) {
  OneRow row;
  Segment& s = row.segment;
  s.values = values.data();
  s.values_sample = features * feature_stride;
  s.values_feature = feature_stride;
  s.times = times.data();
  s.times_sample = 1;
  s.out_target = features * feature_stride;
  s.out_feature = feature_stride;
  s.samples = static_cast<int64_t>(times.size());
  s.features = features;
  s.value_dtype = E::kDType;
  s.out_dtype = E::kDType;
  s.clock_dtype = DType::kFloat64;
  Interpolation& call = row.call;
  call.targets = targets.data();
  call.targets_target = 1;
  call.target_dtype = DType::kFloat64;
  call.batch = 1;
  call.targets_count = static_cast<int64_t>(targets.size());
  call.segment_count = 1;
  return row;
}

// Returns the output after a kernel has filled the entries [begin, end); all other bytes are 0x5a.
template <class T>
std::vector<T> filled(InterpolateEntries* kernel, OneRow row, int64_t begin, int64_t end) {
  std::vector<T> out(static_cast<size_t>(row.call.targets_count * row.segment.out_target));
  std::memset(static_cast<void*>(out.data()), 0x5a, out.size() * sizeof(T));
  row.segment.out = out.data();
  row.call.segments = &row.segment;
  kernel(row.call, begin, end);
  return out;
}

template <class T>
void expect_same(const std::vector<T>& actual, const std::vector<T>& expected, const std::string& what) {
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_TRUE(test::same(actual[i], expected[i])) << what << ": element " << i << " is " << test::widened(actual[i])
                                                    << ", expected " << test::widened(expected[i]);
  }
}

// Mixes every 16-bit float with another, given by a permutation, in several proportions.
template <class E>
void expect_every_half_mixes_as_the_reference() {
  using Half = typename E::Type;
  constexpr int64_t kPatterns = 1 << 16;
  std::vector<Half> values;
  for (uint32_t i = 0; i < kPatterns; ++i) values.push_back({static_cast<uint16_t>(i)});
  for (uint32_t i = 0; i < kPatterns; ++i) values.push_back({static_cast<uint16_t>(i * 40503U + 977U)});
  const std::vector<double> times{0, 1};
  const std::vector<double> targets{0, 1.0 / 3, 0.5, 0.999, 1};
  const OneRow row = one_row<E>(values, times, targets, kPatterns);
  std::vector<Half> expected(static_cast<size_t>(5 * kPatterns));
  for (size_t i = 0; i < kPatterns; ++i) {
    const double a = test::widened(values[i]);
    const double b = test::widened(values[kPatterns + i]);
    expected[i] = values[i];
    for (size_t t = 1; t < 4; ++t) {
      const auto weight = static_cast<double>(static_cast<float>(targets[t]));
      expected[t * kPatterns + i] = test::rounded<Half>(test::mixed<float>(a, b, weight));
    }
    expected[4 * kPatterns + i] = values[kPatterns + i];
  }
  for (const Build& build : every_build()) expect_same(filled<Half>(build.kernel, row, 0, 5), expected, build.name);
}

TEST(InterpolateEntries, EveryFloat16MixesAsTheReferenceInEveryBuild) {
  expect_every_half_mixes_as_the_reference<Element<Float16, DType::kFloat16>>();
}

TEST(InterpolateEntries, EveryBFloat16MixesAsTheReferenceInEveryBuild) {
  expect_every_half_mixes_as_the_reference<Element<BFloat16, DType::kBFloat16>>();
}

TEST(InterpolateEntries, BuildsGiveTheSameBitsForEveryTypeAndWidth) {
  if (vector_builds().empty()) GTEST_SKIP() << "this processor runs the baseline alone";
  Random random(21);
  const auto check = [&](auto element) {
    using E = decltype(element);
    using T = typename E::Type;
    for (int64_t features = 1; features <= 40; ++features) {
      for (const int64_t feature_stride : {1, 2}) {
        const std::vector<T> values = random.values(element, 6 * features * feature_stride);
        const std::vector<double> times = random.clock<double>(6);
        const std::vector<double> targets = random.targets(times, 20);
        OneRow row = one_row<E>(values, times, targets, features, feature_stride);
        row.segment.method = test::kIsFloat<T> ? InterpolationMethod::kLinear : InterpolationMethod::kNearest;
        row.segment.extrapolate = random.one_in(2) && test::kIsFloat<T> ? Extrapolate::kLinear : Extrapolate::kNan;
        const std::vector<T> expected = filled<T>(baseline::interpolate_entries, row, 0, 20);
        for (const Build& build : vector_builds()) {
          expect_same(
              filled<T>(build.kernel, row, 0, 20), expected,
              build.name + ", " + std::string(dtype_name(E::kDType)) + ", features " + std::to_string(features));
        }
      }
    }
  };
  test::for_each_float(check);
  test::for_each_integer(check);
}

TEST(InterpolateEntries, BuildsGiveTheSameBitsForCurvesAnglesAndRotations) {
  if (vector_builds().empty()) GTEST_SKIP() << "this processor runs the baseline alone";
  Random random(23);
  test::for_each_float([&](auto element) {
    using E = decltype(element);
    using T = typename E::Type;
    for (const InterpolationMethod method : {InterpolationMethod::kPchip, InterpolationMethod::kAkima,
                                             InterpolationMethod::kAngle, InterpolationMethod::kSlerp}) {
      for (const int64_t features : {4, 12, 64, 68, 132}) {
        for (const int64_t feature_stride : {1, 2}) {
          const std::vector<T> values = random.values(element, 9 * features * feature_stride);
          const std::vector<double> times = random.clock<double>(9);
          const std::vector<double> targets = random.targets(times, 30);
          OneRow row = one_row<E>(values, times, targets, features, feature_stride);
          row.segment.method = method;
          row.segment.extrapolate = random.one_in(2) ? Extrapolate::kLinear : Extrapolate::kNan;
          const std::vector<T> expected = filled<T>(baseline::interpolate_entries, row, 0, 30);
          for (const Build& build : vector_builds()) {
            expect_same(filled<T>(build.kernel, row, 0, 30), expected,
                        build.name + ", " + std::string(dtype_name(E::kDType)) + ", " + std::string(name_of(method)) +
                            ", features " + std::to_string(features));
          }
        }
      }
    }
  });
}

TEST(InterpolateEntries, FillsOnlyItsEntries) {
  Random random(22);
  using E = Element<float, DType::kFloat32>;
  const std::vector<float> values = random.values(E{}, 6 * 3);
  const std::vector<double> times = random.clock<double>(6);
  const std::vector<double> targets = random.targets(times, 30);
  const OneRow row = one_row<E>(values, times, targets, 3);
  const std::vector<float> whole = filled<float>(baseline::interpolate_entries, row, 0, 30);
  const std::vector<float> none = filled<float>(baseline::interpolate_entries, row, 0, 0);
  for (const Build& build : every_build()) {
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 1}, {7, 19}, {29, 30}, {12, 12}}) {
      std::vector<float> expected = none;
      std::copy(whole.begin() + 3 * begin, whole.begin() + 3 * end, expected.begin() + 3 * begin);
      expect_same(filled<float>(build.kernel, row, begin, end), expected, build.name);
    }
  }
}

}  // namespace
}  // namespace robocache
