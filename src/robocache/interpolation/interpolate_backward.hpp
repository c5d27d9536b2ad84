// The gradient of interpolate: takes the gradient of a loss with respect to every segment's `out`, and computes the
// gradients with respect to the segment's values, its times and the call's targets.
//
//   a mixture of two   (1 - w) g goes to the earlier sample and w g to the later, in the work type; with the slope
//                      s = sum over features of g (b - a) / (t_b - t_a) in float64, s goes to the target, -(1 - w) s to
//                      t_a and -w s to t_b. The same holds beyond the ends. For angles, b - a is the shorter way.
//   one sample         g goes to it. The times get nothing: the value does not move with them.
//   a hit              g goes to the sample. The times get the slope of the bracket after it, or at the last sample the
//                      slope of the one before it. A slope of 0 would keep a target on a sample for ever.
//   absent             nothing.
//   other methods      the derivatives of the exact curve (methods/, spline.hpp), in float64, by every sample and time
//                      that it depends on: for cubic the whole row. A hit gets the slope there. At a corner of a curve
//                      (pchip at a turn, akima between equal weights) it is one of the slopes. For rotations by an
//                      angle below 1e-8 its error is up to 2^-53 / angle.
//
// If several samples have one time, the last one gets the whole gradient, as interpolate uses only that one. A gradient
// of 0 contributes 0 whatever the samples hold, so a NaN that a mask removed from the loss has no effect. int64 clocks
// have no gradient. A target in seconds for an int64 clock gets its gradient as if it had not been rounded to
// nanoseconds.
//
// The CPU gives the same bits with any number of threads. CUDA gives the CPU's bits for the gradient of values, except
// for rotations. On CUDA the gradients of times and targets are float64 sums in any order.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "robocache/core/device.hpp"
#include "robocache/core/tensor_view.hpp"
#include "robocache/interpolation/segment.hpp"
#include "robocache/interpolation/spline_gradient.hpp"

namespace robocache {

// The memory for the gradient of a cubic segment, as dense arrays one after another: the slopes and their gradient,
// [batch, samples, features] each; the gradient of the table and the table, [batch, samples] each.
struct SplineGradientMemory {
  double* slopes;
  double* slopes_gradient;
  SplineRowGradient* table_gradient;
  SplineRow* table;
};

// The arrays to which a segment's gradient is added; null if it is not requested. A plain C struct; strides count
// elements.
struct SegmentGradient {
  void* values;  // [batch, samples, features] of the segment's work type; no two entries share memory
  int64_t values_batch, values_sample, values_feature;
  double* times;                // dense [batch, samples], also for a clock that all rows share
  double* targets;              // dense [batch, targets_count]
  SplineGradientMemory spline;  // filled in by interpolate_backward
};

// Returns the bytes that the gradient of a cubic segment needs, a multiple of 16; 0 for a causal segment, which never
// mixes two samples.
int64_t spline_gradient_bytes(const Segment& s, int64_t batch);

// `gradients` has one entry for each segment of `call`. A segment's `out` holds the incoming gradient and is only read;
// its `valid` and `age` are ignored. `workspace` is contiguous, 16-byte aligned and on `device`. Its size is the sum of
// the cubic segments' spline_gradient_bytes. On CUDA it queues a few kernels per segment on `stream` and does not wait.
// Throws ArgumentError if the workspace is missing or too small, or DeviceError.
void interpolate_backward(const Interpolation& call, std::span<SegmentGradient> gradients,
                          const std::optional<TensorView>& workspace, Device device, CudaStream stream);

// The CPU loop, built once per instruction set: the batch rows [begin, end) of every segment.
using InterpolateRowsBackward = void(const Interpolation& call, const SegmentGradient* gradients, int64_t begin,
                                     int64_t end);
namespace baseline {
InterpolateRowsBackward interpolate_rows_backward;
}
namespace v3 {
InterpolateRowsBackward interpolate_rows_backward;
}
namespace v4 {
InterpolateRowsBackward interpolate_rows_backward;
}

}  // namespace robocache
