// The gradient of interpolate: what the gradient of a loss with respect to every segment's `out` means for its values, its
// times and the call's targets.
//
//   a mixture of two   (1 - w) g goes to the earlier sample and w g to the later, in the work type; with the slope
//                      s = sum over features of g (b - a) / (t_b - t_a) in float64, s goes to the target, -(1 - w) s to
//                      t_a and -w s to t_b. Straight on beyond the ends likewise. Of angles b - a is the shorter way.
//   one sample         g goes to it; nothing to times: the value does not move with them.
//   a hit              g goes to the sample. Times move as in the bracket after it, at the last sample the one before: of
//                      the slopes on either side one has to be chosen, and 0 would leave a target that starts on a sample
//                      there for good.
//   absent             nothing.
//   curves, rotations  the derivatives of the exact curve (curve.hpp, rotation.hpp, spline.hpp), in float64, to every
//                      sample and time that it depends on: all of the row for cubic. Of a hit likewise its slope there.
//                      Where a curve has a corner (pchip at a turn, akima between equal weights) one of its slopes. Of
//                      rotations by an angle below 1e-8 accurate to 2^-53 over that angle.
//
// Of samples with one time the last takes all, as in interpolate. A gradient of 0 contributes 0, whatever the samples
// hold: what a mask took out of the loss cannot bring a NaN back. int64 clocks have no gradient; a target in seconds for
// an int64 clock takes its gradient as if it had not been rounded to nanoseconds.
//
// Deterministic on the CPU, whatever the number of threads. On CUDA the gradient of values is too, with the CPU's bits but
// for rotations; those of times and targets are sums of float64 in any order.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "robocache/core/device.hpp"
#include "robocache/core/tensor_view.hpp"
#include "robocache/interpolation/segment.hpp"
#include "robocache/interpolation/spline_gradient.hpp"

namespace robocache {

// What the gradient of a cubic segment is made in, dense: [batch, samples], slopes [batch, samples, features]. One behind the
// other.
struct SplineGradientMemory {
  double* slopes;
  double* of_slopes;
  SplineRowGradient* of_table;
  SplineRow* table;
};

// What a segment's gradient is added to. Null: not asked for. Plain C; strides count elements.
struct SegmentGradient {
  void* values;  // of the segment's work type, no two entries in one place
  int64_t values_batch, values_sample, values_feature;
  double* times;                // dense [batch, samples], for a clock that serves every row too
  double* targets;              // dense [batch, targets_count]
  SplineGradientMemory spline;  // filled in by interpolate_backward
};

// Bytes that the gradient of a cubic segment takes while it is made, a multiple of 16; 0 where it never mixes (causal).
int64_t spline_gradient_bytes(const Segment& s, int64_t batch);

// `gradients` has an entry for each segment of `call`. A segment's `out` is the gradient with respect to it and only read;
// its valid and age are not looked at. `workspace` is contiguous, 16-byte aligned, on `device`, of the sum of the cubic
// segments' spline_gradient_bytes. On CUDA queued on `stream` as a few kernels a segment and not waited for. Throws
// ArgumentError where the workspace is missing or too small, DeviceError.
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
