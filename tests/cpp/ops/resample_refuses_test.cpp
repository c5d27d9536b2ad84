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

TEST_P(ResampleRefuses, ShapesByName) {
  const auto no_shape = [](TensorView Call::* argument, std::initializer_list<std::initializer_list<int64_t>> shapes,
                           const std::string& name) {
    for (const auto& shape : shapes) when<ArgumentError>([&](Call& c) { reshape(c.*argument, shape); }, name);
  };
  no_shape(&Call::values, {{24}, {1, 3, 2, 4}}, "values: ");
  no_shape(&Call::times, {{}, {1, 1, 2}, {1, 2}, {2, 1}, {1}}, "times: ");
  no_shape(&Call::targets, {{1, 5}, {5, 1}}, "target_times: ");
  no_shape(&Call::out, {{3, 4, 5}, {15, 4}}, "out: ");
  for (const auto& shape : {std::initializer_list<int64_t>{1, 3}, {2}}) {
    when<ArgumentError>([&](Call& c) { reshape(c.lengths.value(), shape); }, "lengths: ");
  }
  for (const auto& shape : {std::initializer_list<int64_t>{15}, {3, 4}, {1, 5}}) {
    when<ArgumentError>([&](Call& c) { reshape(c.valid.value(), shape); }, "valid: ");
  }
}

TEST_P(ResampleRefuses, TypesByName) {
  when<ArgumentTypeError>([](Call& c) { c.values.dtype = DType::kInt32; }, "values: ");
  for (const DType type : {DType::kUInt64, DType::kFloat16}) {
    when<ArgumentTypeError>([&](Call& c) { c.times.dtype = type; }, "times: ");
  }
  for (const DType type : {DType::kInt32, DType::kInt64}) {
    when<ArgumentTypeError>([&](Call& c) { c.targets.dtype = type; }, "target_times: ");
  }
  when<ArgumentTypeError>([](Call& c) { c.lengths.value().dtype = DType::kUInt32; }, "lengths: ");
  when<ArgumentTypeError>([](Call& c) { c.out.dtype = DType::kInt32; }, "out: ");
  when<ArgumentError>([](Call& c) { c.valid.value().dtype = DType::kUInt8; }, "valid: ");
}

TEST_P(ResampleRefuses, OptionsByName) {
  using M = InterpolationMethod;
  std::vector<std::pair<std::string, InterpolationOptions>> bad{
      {"causal: ", {.method = M::kNext, .causal = true}},
      {"tolerance: ", {.tolerance = 1.0}},
      {"tolerance: ", {.method = M::kNearest, .methods = {{0, 1, M::kPrevious}}, .tolerance = 1.0}},
      {"bc_type: ", {.boundary = Boundary::kNatural}},
      {"workspace: ", {.method = M::kCubic}},
  };
  for (const M method : {M::kNearest, M::kPrevious, M::kNext}) {
    bad.push_back({"extrapolate: ", {.method = method, .extrapolate = Extrapolate::kLinear}});
  }
  for (const Duration& duration : {Duration(-1.0), Duration(int64_t{-1}), Duration(kNan), Duration(-kInfinity)}) {
    bad.push_back({"max_gap: ", {.max_gap = duration}});
    bad.push_back({"tolerance: ", {.method = M::kNearest, .tolerance = duration}});
  }
  for (const auto& [name, options] : bad) {
    when<ArgumentError>([&](Call& c) { c.options = options; }, name);
  }
  const auto with_nanoseconds = [](Call& c) { c.times.dtype = c.targets.dtype = DType::kInt64; };
  for (const Duration& duration : {Duration(1.5), Duration(int64_t{-5})}) {
    when<ArgumentError>([&](Call& c) { with_nanoseconds(c), c.options.max_gap = duration; }, "max_gap: ");
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
