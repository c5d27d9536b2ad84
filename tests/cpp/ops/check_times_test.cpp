#include "robocache/ops/resample/resample.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "robocache/core/error.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/expect_refused.hpp"
#include "tests/cpp/not_finite.hpp"
#include "tests/cpp/random_data.hpp"

namespace robocache {
namespace {

using test::DeviceArray;
using test::Element;
using test::expect_refused;
using test::kInfinity;
using test::kNan;

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
