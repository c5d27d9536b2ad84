#include "robocache/ops/resample/resample.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "robocache/core/error.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/expect_refused.hpp"
#include "tests/cpp/not_finite.hpp"

namespace robocache {
namespace {

using test::DeviceArray;
using test::expect_refused;
using test::kInfinity;
using test::kNan;

// A call that is fine, to be spoiled in one place: values [3, 2, 4], times and targets [2] and [5].
struct Call {
  explicit Call(Device device)
      : values_array(std::vector<float>(24, 1), DType::kFloat32, {3, 2, 4}, device),
        times_array({0, 1}, DType::kFloat64, {2}, device),
        targets_array({0, 0.5, 1, 1, 1}, DType::kFloat64, {5}, device),
        out_array(std::vector<float>(60, -1), DType::kFloat32, {3, 5, 4}, device),
        lengths_array({2, 1, 0}, DType::kInt32, {3}, device),
        valid_array(std::vector<uint8_t>(15, 7), DType::kBool, {3, 5}, device) {}

  void operator()() const {
    resample_trajectories({.values = values,
                           .times = times,
                           .target_times = targets,
                           .options = options,
                           .lengths = lengths,
                           .out = out,
                           .valid = valid},
                          CudaStream{});
  }
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
  InterpolationOptions options;
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
  when<ArgumentError>([](Call& c) { c.options = {.method = InterpolationMethod::kNext, .causal = true}; },
                      "causal: ", "got True with 'next'");
  when<ArgumentError>([](Call& c) { c.options.tolerance = 1.0; }, "tolerance: ", "got 1 with 'linear'");
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
  when<ArgumentError>([](Call& c) { c.options.boundary = Boundary::kNatural; },
                      "bc_type: goes with 'cubic', got 'natural' with 'linear'");
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
  when<ArgumentError>([&](Call& c) { c.options.max_gap = -1e-9; }, "max_gap: expected 0 or more, got -1e-09");
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

}  // namespace
}  // namespace robocache
