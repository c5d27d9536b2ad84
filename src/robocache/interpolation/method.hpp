// The names of the methods that compute a value at a target time from samples.
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>

#include "robocache/core/enum_names.hpp"
#include "robocache/core/host_device.hpp"

namespace robocache {

//   linear               a straight line between two samples
//   nearest previous next  one sample, unchanged: the steps
//   pchip akima          piecewise cubic, monotone or local: the slopes follow from the neighbours
//   cubic                C2 spline through every sample of the row
//   angle                radians, the shorter way round
//   slerp                4 features: a quaternion, the shortest arc
//   pose                 7 features: a position, linear, then a quaternion, slerp. Only callers use it; see blocks.hpp
//
// methods.hpp has the arithmetic of each.
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

template <>
inline constexpr std::string_view kNames<InterpolationMethod>[] = {"linear", "nearest", "previous", "next",  "pchip",
                                                                   "akima",  "cubic",   "angle",    "slerp", "pose"};

// The value outside the samples: the end sample, NaN, or the curve continued in a straight line.
enum class Extrapolate : uint8_t { kClamp, kNan, kLinear };
template <>
inline constexpr std::string_view kNames<Extrapolate>[] = {"clamp", "nan", "linear"};

// The boundary conditions of a C2 spline.
enum class Boundary : uint8_t { kNotAKnot, kNatural };
template <>
inline constexpr std::string_view kNames<Boundary>[] = {"not-a-knot", "natural"};

ROBOCACHE_HD constexpr bool is_step(InterpolationMethod method) {
  return method == InterpolationMethod::kNearest || method == InterpolationMethod::kPrevious ||
         method == InterpolationMethod::kNext;
}

// A duration in the unit of the clock: seconds, or whole nanoseconds for int64 clocks.
using Duration = std::variant<int64_t, double>;

}  // namespace robocache
