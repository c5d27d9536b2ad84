// fuse_multimodal: combines sensors with their own clocks into one row of features per target time, in one launch.
//
//   streams       1 to kMaxSegments of them, each with
//     values        [B, S, D] or [S, D]   float64/32/16, bfloat16; integers and bool for the step methods
//     times         [B, S] or [S]         float32 or float64 seconds, or int64 nanoseconds; ascending, repeats allowed
//     lengths       [B] or none           int32/int64: samples of each row that exist, in [0, S]
//     options       as in resample.hpp, durations in the unit of its own clock
//     offset        the sensor's latency in that unit: the sample with stamp t was recorded at t - offset
//     scale, shift  numbers, or dense [D] of the work type on the values' device: the output is x * scale + shift
//   target_times  [B, T] or [T]           float32 or float64 seconds, or int64 nanoseconds; any order
//   target_lengths [B] or none            int32/int64: targets of each row that exist, in [0, T]
//   out           one [B, T, sum of D], the streams side by side in their order, or one [B, T, D] for each stream
//   valid         [B, T, streams], none   bool
//   age           [B, T, streams], none   the dtype of target_times: target minus the sample used, in the targets' unit
//   workspace     for cubic only          the sum of the streams' stream_workspace_bytes, aligned to 16
//
// S, D and dtypes are each stream's own. B is the same for all, and is missing from every shape if values are [S, D].
// [S] and [T] are shared by all rows. Strides are free and may be 0, except those of [D]. All tensors are on one
// device.
//
// Clocks. A target is converted to the type of a stream's clock: between seconds by rounding, from nanoseconds by
// float64(ns) / 1e9, to nanoseconds by rounding float64(s) * 1e9 to the nearest, ties to even. Values beyond int64 are
// clamped to it. Then `offset` is added, in the clock's type, and the rules of resample.hpp apply to the stream's
// stamps.
//
// Values. The work type is float64 for float64 values and for integers of 32 and 64 bits, else float32. A float stream
// can be output in any float type, an integer stream in its own type or in any float type; a scaled stream needs a
// float type. Interpolation works as in resample.hpp. One fma(x, scale, shift) in the work type follows; a missing
// scale is 1, a missing shift 0. The result is rounded once, to the type of out. Without a sample the value is NaN, or
// 0 for an integer stream, scaled or not.
//
// If a stream's features have several methods, `age` and `valid` belong to its first feature. The age of a mixture is
// counted from the earlier of its two samples. The age is negative if the used sample is later than the target. It is
// computed in the type of the stream's clock. Without a sample it is NaN, or the smallest int64; an int64 age beyond
// int64 becomes +-(2^63 - 1).
//
// linear, the steps and angle give the same bits on the CPU and on CUDA. The call queues one kernel on `stream`, and
// two more before it for each run of cubic features, and does not wait. It allocates nothing on the device. A number as
// scale or shift costs no time; an array is read once per target.
//
// Throws ArgumentError or ArgumentTypeError, which name the stream and the argument ("streams['imu'].times: expected
// ..."), or DeviceError.
//
//   std::vector<float> imu{0, 10, 20}, gripper{1, 0}, out(4);
//   std::vector<double> imu_times{0.0, 0.1, 0.2}, targets{0.05, 0.15};
//   std::vector<int64_t> gripper_times{0, 100'000'000};
//   const FuseStream streams[] = {
//       {.name = "imu",
//        .values = TensorView::contiguous(imu.data(), DType::kFloat32, {3, 1}),
//        .times = TensorView::contiguous(imu_times.data(), DType::kFloat64, {3})},
//       {.name = "gripper",
//        .values = TensorView::contiguous(gripper.data(), DType::kFloat32, {2, 1}),
//        .times = TensorView::contiguous(gripper_times.data(), DType::kInt64, {2}),
//        .options = {.method = InterpolationMethod::kPrevious}}};
//   const TensorView fused = TensorView::contiguous(out.data(), DType::kFloat32, {2, 2});
//   fuse_multimodal(streams, TensorView::contiguous(targets.data(), DType::kFloat64, {2}), {&fused, 1}, CudaStream{});
//   // out = {5, 1, 15, 0}
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

#include "robocache/core/tensor_view.hpp"
#include "robocache/interpolation/validate.hpp"

namespace robocache {

// One number for every feature, or one for each: dense [D] of the work type.
using FeatureNumbers = std::variant<double, TensorView>;

struct FuseStream {
  std::string_view name = {};  // for errors; a stream without a name is named by its index
  TensorView values;
  TensorView times;
  std::optional<TensorView> lengths = {};
  InterpolationOptions options = {};
  std::optional<Duration> offset = {};
  std::optional<FeatureNumbers> scale = {};
  std::optional<FeatureNumbers> shift = {};
  std::optional<DType> dtype = {};  // the output's dtype; none: as in fuse_outputs

  static constexpr auto fields() {
    using S = FuseStream;
    return std::tuple(Field{"streams", &S::name}, Field{"values", &S::values}, Field{"times", &S::times},
                      Field{"options", &S::options}, Field{"lengths", &S::lengths}, Field{"offset", &S::offset},
                      Field{"scale", &S::scale}, Field{"shift", &S::shift}, Field{"dtype", &S::dtype});
  }
};

void fuse_multimodal(std::span<const FuseStream> streams, const TensorView& target_times,
                     std::span<const TensorView> out, CudaStream stream,
                     const std::optional<TensorView>& target_lengths = std::nullopt,
                     const std::optional<TensorView>& valid = std::nullopt,
                     const std::optional<TensorView>& age = std::nullopt,
                     const std::optional<TensorView>& workspace = std::nullopt);

// The arrays for the gradient of one stream.
struct FuseGradient {
  std::optional<TensorView> values = {};  // dense [B, S, D], in the stream's work type
  std::optional<TensorView> times = {};   // dense [B, S] float64; only for float clocks
};
// Adds the gradient to each array, from the gradient of `out`, as resample.hpp describes for one stream. A target's
// gradient is in the targets' unit, whatever the streams' clocks are. scale, shift and offset have no gradient.
void fuse_multimodal_backward(std::span<const FuseStream> streams, const TensorView& target_times,
                              std::span<const TensorView> out_gradient, std::span<const FuseGradient> gradients,
                              CudaStream stream, const std::optional<TensorView>& targets_gradient = std::nullopt,
                              const std::optional<TensorView>& target_lengths = std::nullopt,
                              const std::optional<TensorView>& workspace = std::nullopt);

struct FuseOutputs {
  std::vector<TensorView> out;
  TensorView valid;
  TensorView age;
};
// Returns the results that a call needs, without memory. With `separate` there is one `out` for each stream, with its
// `dtype` or the values' dtype. Otherwise there is one, with the first stream's `dtype` or the dtype that all values
// share. Throws as above.
FuseOutputs fuse_outputs(std::span<const FuseStream> streams, const TensorView& target_times, bool separate);

}  // namespace robocache
