// How a value at a target time is made of samples, and how that is said.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>
#include <variant>

#include "robocache/core/host_device.hpp"

namespace robocache {

//   linear               straight between two samples
//   nearest previous next  one sample as it is: the steps
//   pchip akima          piecewise cubic, monotone or local; slopes from the neighbours
//   cubic                C2 spline through every sample of the row
//   angle                radians, the shorter way round
//   slerp                4 features: a quaternion, the shortest arc
//   pose                 7 features: a position, linear, then a quaternion, slerp. A name for callers: see blocks.hpp
enum class InterpolationMethod : uint8_t {
  kLinear,
  kNearest,
  kPrevious,
  kNext,
  kPchip,
  kAkima,
  kCubic,
  kAngle,
  kSlerp,
  kPose
};

// Outside the samples: hold the end one, NaN, or straight on.
enum class Extrapolate : uint8_t { kClamp, kNan, kLinear };

ROBOCACHE_HD constexpr bool goes_on(Extrapolate extrapolate) {
  switch (extrapolate) {
    case Extrapolate::kLinear:
      return true;
    case Extrapolate::kClamp:
    case Extrapolate::kNan:
      break;
  }
  return false;
}

// The two conditions that a C2 spline still lacks.
enum class Boundary : uint8_t { kNotAKnot, kNatural };

ROBOCACHE_HD constexpr bool is_step(InterpolationMethod method) {
  switch (method) {
    case InterpolationMethod::kNearest:
    case InterpolationMethod::kPrevious:
    case InterpolationMethod::kNext:
      return true;
    case InterpolationMethod::kLinear:
    case InterpolationMethod::kPchip:
    case InterpolationMethod::kAkima:
    case InterpolationMethod::kCubic:
    case InterpolationMethod::kAngle:
    case InterpolationMethod::kSlerp:
    case InterpolationMethod::kPose:
      return false;
  }
  __builtin_unreachable();
}

ROBOCACHE_HD constexpr bool is_curve(InterpolationMethod method) {
  switch (method) {
    case InterpolationMethod::kPchip:
    case InterpolationMethod::kAkima:
    case InterpolationMethod::kCubic:
      return true;
    case InterpolationMethod::kLinear:
    case InterpolationMethod::kNearest:
    case InterpolationMethod::kPrevious:
    case InterpolationMethod::kNext:
    case InterpolationMethod::kAngle:
    case InterpolationMethod::kSlerp:
    case InterpolationMethod::kPose:
      return false;
  }
  __builtin_unreachable();
}

// Returns body(std::integral_constant<InterpolationMethod, METHOD>{}) for how a segment's mixtures are made. The steps go
// as linear: they take what linear takes of one sample, and never mix. Kernels too choose by this function alone, since
// nvcc's compiler of device code does not say which enumerator a switch has forgotten.
template <class Body>
ROBOCACHE_HD auto with_method(InterpolationMethod method, const Body& body) {
  using M = InterpolationMethod;
  switch (method) {
    case M::kLinear:
    case M::kNearest:
    case M::kPrevious:
    case M::kNext:
      return body(std::integral_constant<M, M::kLinear>{});
    case M::kPchip:
      return body(std::integral_constant<M, M::kPchip>{});
    case M::kAkima:
      return body(std::integral_constant<M, M::kAkima>{});
    case M::kCubic:
      return body(std::integral_constant<M, M::kCubic>{});
    case M::kAngle:
      return body(std::integral_constant<M, M::kAngle>{});
    case M::kSlerp:
      return body(std::integral_constant<M, M::kSlerp>{});
    case M::kPose:  // no segment's: blocks.hpp
      break;
  }
  __builtin_unreachable();
}

// By name: "linear", "nearest", "previous", "next", "pchip", "akima", "cubic", "angle", "slerp", "pose";
// "clamp", "nan", "linear"; "not-a-knot", "natural". Throw ArgumentError listing these.
InterpolationMethod interpolation_method_from_name(std::string_view name, std::string_view argument = "method");
Extrapolate extrapolate_from_name(std::string_view name, std::string_view argument = "extrapolate");
Boundary boundary_from_name(std::string_view name, std::string_view argument = "bc_type");

std::string_view method_name(InterpolationMethod method);
std::string_view boundary_name(Boundary boundary);

// In the clock's unit: seconds, or for int64 clocks whole nanoseconds.
using Duration = std::variant<int64_t, double>;

}  // namespace robocache
