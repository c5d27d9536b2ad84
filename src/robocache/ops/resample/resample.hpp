// resample_trajectories: computes values at the target times from samples on their own clock.
//
//   values          [B, S, D] or [S, D]   float64/32/16, bfloat16; integers and bool for the step methods
//   times           [B, S] or [S]         float32 or float64 seconds, or int64 nanoseconds; ascending, repeats allowed
//   target_times    [B, T] or [T]         the dtype of times; any order
//   lengths         [B] or none           int32/int64: samples of each row that exist, in [0, S]
//   target_lengths  [B] or none           int32/int64: targets of each row that exist, in [0, T]
//   out             [B, T, D] or [T, D]   the dtype of values
//   valid           [B, T] or [T], none   bool
//   workspace       [N] or none           for cubic only: stream_workspace_bytes of memory, aligned to 16
//
// [S] and [T] are shared by all rows. Strides are free and may be 0. All tensors are on one device.
//
// Which sample. A target at a sample's time returns that sample bit for bit, whatever its neighbours hold. If several
// samples have one time, only the last one is used. Otherwise, between samples a (before) and b (after):
//   linear    fma(w, b - a, a), w = (t - t_a) / (t_b - t_a): one division in the wider of clock and work type (float64
//             for int64), rounded once to the work type (float64 for float64 values, else float32)
//   nearest   the closer one; the earlier one if both are equally close
//   previous  a          next  b
//   pchip     monotone cubic from one more sample on each side     akima  from two more
//   cubic     C2 spline through all samples of the row; `boundary` gives the conditions at its ends
//   angle     radians: the shorter way from a to b, in [-pi, pi); if nothing wraps, the bits of linear
//   slerp     4 features: a and b are normalised; the shorter way from a to b or -b, at an even rate
//   pose      7 features: linear for 3, slerp for 4
// `methods` names features that do not take `method` (blocks.hpp). The errors of curves, slerp and angle are bounded in
// docs/rules.md, 8.1, 8.2 and 10.1.
//
// Outside [first, last]: `clamp` holds the end sample, and `nan` gives NaN. `linear` continues the straight line of the
// end bracket, a curve by its end slope, slerp and angle at their rate; the step methods refuse it. There valid is
// always false. In a bracket longer than max_gap, and where a step's sample is farther than `tolerance`, the value is
// invalid: NaN with `nan`, else the method's value. With `causal` no sample later than the target is used: every method
// holds the previous sample, and max_gap is compared with its age. Before the first sample there is then no value.
//
// A target has no value if the row has no samples, if the target is NaN or beyond target_lengths, or with `causal`
// before the first sample. The output is then NaN, or 0 for integers and bool, and valid is false. A NaN among the
// samples that a curve reads (for cubic, in the row) makes that feature NaN.
//
// Unsorted or NaN times give unspecified values, but never reads outside their row; check_times finds them. linear, the
// steps and angle give the same bits on the CPU and on CUDA. On CUDA a row has at most 2^30 samples and 2^23 features.
// The call queues its work on `stream` (one kernel, and two more for each cubic run of features), does not wait, and
// allocates nothing.
//
// Throws ArgumentError or ArgumentTypeError, which name the argument, or DeviceError.
//
//   std::vector<float> values{0, 10, 20}, times{0, 1, 2}, targets{0.5f, 1.5f}, out(2);
//   resample_trajectories({.values = TensorView::contiguous(values.data(), DType::kFloat32, {3, 1}),
//                          .times = TensorView::contiguous(times.data(), DType::kFloat32, {3}),
//                          .target_times = TensorView::contiguous(targets.data(), DType::kFloat32, {2}),
//                          .out = TensorView::contiguous(out.data(), DType::kFloat32, {2, 1})}, CudaStream{});
//   // out = {5, 15}
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>

#include "robocache/core/fields.hpp"
#include "robocache/core/tensor_view.hpp"
#include "robocache/interpolation/validate.hpp"

namespace robocache {

struct ResampleCall {
  TensorView values;
  TensorView times;
  TensorView target_times;
  InterpolationOptions options = {};
  std::optional<TensorView> lengths = {};
  std::optional<TensorView> target_lengths = {};

  TensorView out = {};
  std::optional<TensorView> valid = {};
  std::optional<TensorView> workspace = {};

  static constexpr auto fields() {  // without the results and the workspace
    return std::tuple(Field{"values", &ResampleCall::values}, Field{"times", &ResampleCall::times},
                      Field{"target_times", &ResampleCall::target_times}, Field{"options", &ResampleCall::options},
                      Field{"lengths", &ResampleCall::lengths}, Field{"target_lengths", &ResampleCall::target_lengths});
  }
};

void resample_trajectories(const ResampleCall& call, CudaStream stream);

struct ResampleOutputs {
  TensorView out;
  TensorView valid;
};
// Returns the `out` and `valid` that a call needs, without memory. Throws as above.
ResampleOutputs resample_outputs(const ResampleCall& call);

// Adds the gradient to each array, from the gradient of `out`. interpolation/interpolate_backward.hpp defines the
// gradient at every edge.
//
//   out_gradient      [B, T, D] or [T, D]   the dtype of values, strides free
//   values_gradient   [B, S, D]             float64 for float64 values, else float32; the caller rounds it
//   times_gradient    [B, S]                float64, with a row for each row of the batch; float clocks only
//   targets_gradient  [B, T]                float64, likewise
//
// The last three are dense, with B = 1 for values [S, D]; none if not requested. The call's `out` and `valid` are
// ignored. Its workspace has stream_gradient_workspace_bytes. The work is queued like the call's own, and allocates
// nothing. On the CPU all bits are the same on every run; on CUDA only the bits of values_gradient.
struct ResampleGradients {
  TensorView out_gradient;
  std::optional<TensorView> values_gradient = {};
  std::optional<TensorView> times_gradient = {};
  std::optional<TensorView> targets_gradient = {};
};
void resample_trajectories_backward(const ResampleCall& call, const ResampleGradients& gradients, CudaStream stream);

// Throws ArgumentError with the row and the index of the first time that is NaN or earlier than the previous one. Waits
// for the device. `times` is as above, `lengths` [B] or none.
void check_times(const TensorView& times, CudaStream stream, const std::optional<TensorView>& lengths = std::nullopt);

}  // namespace robocache
