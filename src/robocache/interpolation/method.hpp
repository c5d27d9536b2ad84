// How a value at a target time is made of samples, and how that is said.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
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

// The two conditions that a C2 spline still lacks.
enum class Boundary : uint8_t { kNotAKnot, kNatural };

ROBOCACHE_HD bool is_step(InterpolationMethod method) {
  return method == InterpolationMethod::kNearest || method == InterpolationMethod::kPrevious ||
         method == InterpolationMethod::kNext;
}

// By name: "linear", "nearest", "previous", "next", "pchip", "akima", "cubic", "angle", "slerp", "pose";
// "clamp", "nan", "linear"; "not-a-knot", "natural". Throw ArgumentError listing these.
InterpolationMethod interpolation_method_from_name(std::string_view name, std::string_view argument = "method");
Extrapolate extrapolate_from_name(std::string_view name, std::string_view argument = "extrapolate");
Boundary boundary_from_name(std::string_view name, std::string_view argument = "bc_type");

std::string_view method_name(InterpolationMethod method);

// In the clock's unit: seconds, or for int64 clocks whole nanoseconds.
using Duration = std::variant<int64_t, double>;

}  // namespace robocache
