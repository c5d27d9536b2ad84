// The methods of interpolation. Each is a struct in its own file. All engines use them: the CPU loops, the CUDA
// kernels, the gradients and the loader's windows. A method defines
//
//   kFeatures   the number of neighbouring features that belong together: 1, or 4 for a quaternion
//   kReach      the number of samples beyond the bracket that it reads on each side: 0, 1 or 2
//   kWeighs     whether it has `weights`; only then its gradient follows from `value`
//   kSlopes     whether it needs the slopes of spline.hpp; only cubic does
//   weights     if kWeighs: Spacing -> CurveWeights, for float64 and for dual numbers
//   value       (CurveWeights, the number of samples before and after the bracket, the samples of its reach in the
//               order of time) -> the value, for float32, float64 and, if kWeighs, dual numbers
//
// The gradient of a method with kWeighs is computed by `weights` and `value` on dual numbers (curve_gradient.hpp). The
// other methods, and cubic, define their gradient themselves: as weight_derivative, or for rotations as rows_gradient
// and weight_gradient.
//
// A new method is a file in methods/, an enumerator and a name in method.hpp, and an include and a case here.
#pragma once

#include <type_traits>

#include "robocache/core/host_device.hpp"
#include "robocache/interpolation/curve.hpp"
#include "robocache/interpolation/method.hpp"
#include "robocache/interpolation/methods/akima.hpp"
#include "robocache/interpolation/methods/angle.hpp"
#include "robocache/interpolation/methods/cubic.hpp"
#include "robocache/interpolation/methods/linear.hpp"
#include "robocache/interpolation/methods/pchip.hpp"
#include "robocache/interpolation/methods/slerp.hpp"

namespace robocache {

// Returns body(METHOD{}). Nearest, previous and next visit Linear: they take one sample, as linear does at a hit, and
// never mix two. All code must choose the method by this function, because nvcc does not warn of a missing enumerator
// in a switch.
template <class Body>
ROBOCACHE_HD constexpr auto with_method(InterpolationMethod method, const Body& body) {
  switch (method) {
    case InterpolationMethod::kLinear:
    case InterpolationMethod::kNearest:
    case InterpolationMethod::kPrevious:
    case InterpolationMethod::kNext:
      return body(Linear{});
    case InterpolationMethod::kPchip:
      return body(Pchip{});
    case InterpolationMethod::kAkima:
      return body(Akima{});
    case InterpolationMethod::kCubic:
      return body(Cubic{});
    case InterpolationMethod::kAngle:
      return body(Angle{});
    case InterpolationMethod::kSlerp:
      return body(Slerp{});
    case InterpolationMethod::kPose:  // never in a segment, because blocks.hpp replaces it
      break;
  }
  __builtin_unreachable();
}

// Whether a method's mixture of two samples is a straight line.
template <class Method>
inline constexpr bool kIsStraight = std::is_same_v<Method, Linear>;

// The number of values that `value` takes: the samples, then with kSlopes the slopes at a and b.
template <class Method>
inline constexpr int kRowsOf = 2 * Method::kReach + 2 + (Method::kSlopes ? 2 : 0);

ROBOCACHE_HD constexpr int reach_of(InterpolationMethod method) {
  return with_method(method, [](auto m) { return decltype(m)::kReach; });
}
ROBOCACHE_HD constexpr int features_together(InterpolationMethod method) {
  return with_method(method, [](auto m) { return decltype(m)::kFeatures; });
}
// Whether a mixture of two samples is more than a straight line between them.
ROBOCACHE_HD constexpr bool is_curved(InterpolationMethod method) {
  return with_method(method, [](auto m) { return !kIsStraight<decltype(m)>; });
}
ROBOCACHE_HD constexpr bool weighs(InterpolationMethod method) {
  return with_method(method, [](auto m) { return decltype(m)::kWeighs; });
}

// Returns the weights of a method with kWeighs.
template <class Scalar, class Wide>
ROBOCACHE_HD CurveWeights<Scalar> curve_weights(InterpolationMethod method, const Spacing<Wide>& spacing) {
  return with_method(method, [&](auto m) -> CurveWeights<Scalar> {
    if constexpr (decltype(m)::kWeighs) return decltype(m)::template weights<Scalar>(spacing);
    __builtin_unreachable();
  });
}

// Returns the weights of a target; w is its weight in the bracket.
template <class Method, class Work, class Times, class Index>
ROBOCACHE_HD CurveWeights<Work> weights_around(const Times& times, Index n, const Stencil<Index>& stencil, Work w) {
  if constexpr (Method::kWeighs) {
    return Method::template weights<Work>(spacing_around(times, n, stencil, Method::kReach, w));
  } else {
    return {.along = w};
  }
}

// Computes `count` neighbouring features of one target, a multiple of kFeatures. x[i][d] is feature d of sample i.
template <class Method, class Scalar, class Rows, int kWidth>
ROBOCACHE_HD void mix_features(const CurveWeights<Scalar>& c, int before, int after, const Rows& x, int count,
                               Scalar (&y)[kWidth]) {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int d = 0; d < count; d += Method::kFeatures) {
    if constexpr (Method::kFeatures == 1) {
      Scalar rows[kRowsOf<Method>];
      for (int i = 0; i < kRowsOf<Method>; ++i) rows[i] = x[i][d];
      y[d] = Method::value(c, before, after, rows);
    } else {
      Scalar a[4] = {x[0][d], x[0][d + 1], x[0][d + 2], x[0][d + 3]};
      Scalar b[4] = {x[1][d], x[1][d + 1], x[1][d + 2], x[1][d + 3]};
      Scalar rotation[4];
      Method::value(c, a, b, rotation);
      for (int k = 0; k < 4; ++k) y[d + k] = rotation[k];
    }
  }
}

}  // namespace robocache
