// The methods of interpolation, each a struct in a file of its own, which all engines visit: the CPU loops, the CUDA kernels,
// the gradients and the loader's windows. A method says
//
//   kFeatures   how many neighbouring features belong together: 1, or the 4 of a quaternion
//   kReach      how many samples beyond the bracket it looks at on each side: 0, 1 or 2
//   kWeighs     whether it makes weights of the times around the target; else the bracket's weight is all that it needs
//   kSlopes     whether it needs the slopes of spline.hpp: cubic alone
//   weights     where kWeighs: Spacing -> CurveWeights, for float64 and for numbers that carry derivatives
//   value       CurveWeights, how many samples exist before and after the bracket, and the samples, from the earliest of
//               its reach to the latest -> the value. For float32, float64 and, where kWeighs, derivatives
//
// The gradient of a method that weighs is that of `weights` and `value` on numbers that carry derivatives
// (curve_gradient.hpp). The others, and cubic, say theirs: `way`, or for rotations rows_gradient and weight_gradient.
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

// Returns body(METHOD{}) for how a segment makes mixtures. The steps go as linear: they take one sample as linear does at a
// hit, and never mix. All code, kernels too, chooses by this function alone, since nvcc's compiler of device code does not
// report an enumerator that a switch has forgotten.
template <class Body>
ROBOCACHE_HD constexpr auto with_method(InterpolationMethod method, const Body& body) {
  using M = InterpolationMethod;
  switch (method) {
    case M::kLinear:
    case M::kNearest:
    case M::kPrevious:
    case M::kNext:
      return body(Linear{});
    case M::kPchip:
      return body(Pchip{});
    case M::kAkima:
      return body(Akima{});
    case M::kCubic:
      return body(Cubic{});
    case M::kAngle:
      return body(Angle{});
    case M::kSlerp:
      return body(Slerp{});
    case M::kPose:  // no segment has it: blocks.hpp
      break;
  }
  __builtin_unreachable();
}

// Whether a method's mixture of two samples is a straight line.
template <class Method>
inline constexpr bool kIsStraight = std::is_same_v<Method, Linear>;

// The samples that `value` takes; of a method with slopes the slopes at a and b follow the samples.
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

// The weights of a method that weighs.
template <class Scalar, class Wide>
ROBOCACHE_HD CurveWeights<Scalar> curve_weights(InterpolationMethod method, const Spacing<Wide>& at) {
  return with_method(method, [&](auto m) -> CurveWeights<Scalar> {
    if constexpr (decltype(m)::kWeighs) return decltype(m)::template weights<Scalar>(at);
    __builtin_unreachable();
  });
}

// The weights of a target that mixes the stencil's bracket by `w`.
template <class Method, class Work, class Times, class Index>
ROBOCACHE_HD CurveWeights<Work> weights_around(const Times& times, Index n, const Stencil<Index>& stencil, Work w) {
  if constexpr (Method::kWeighs) {
    return Method::template weights<Work>(spacing_around(times, n, stencil, Method::kReach, w));
  } else {
    return {.along = w};
  }
}

// Neighbouring features of one target, `count` of them, whole groups of kFeatures. x[i][d] is feature d of sample i.
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
      Scalar turned[4];
      Method::value(c, a, b, turned);
      for (int k = 0; k < 4; ++k) y[d + k] = turned[k];
    }
  }
}

}  // namespace robocache
