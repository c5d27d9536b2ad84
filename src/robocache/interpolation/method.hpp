// Names of how a value at a target time is made of samples.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <variant>

#include "robocache/core/host_device.hpp"

namespace robocache {

//   linear               a straight line between two samples
//   nearest previous next  one sample, unchanged: the steps
//   pchip akima          piecewise cubic, monotone or local: the slopes follow from the neighbours
//   cubic                C2 spline through every sample of the row
//   angle                radians, the shorter way round
//   slerp                4 features: a quaternion, the shortest arc
//   pose                 7 features: a position, linear, then a quaternion, slerp. A name for callers: see blocks.hpp
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

// In the order of the enumerators.
inline constexpr std::pair<std::string_view, InterpolationMethod> kMethodNames[]{
    {"linear", InterpolationMethod::kLinear},     {"nearest", InterpolationMethod::kNearest},
    {"previous", InterpolationMethod::kPrevious}, {"next", InterpolationMethod::kNext},
    {"pchip", InterpolationMethod::kPchip},       {"akima", InterpolationMethod::kAkima},
    {"cubic", InterpolationMethod::kCubic},       {"angle", InterpolationMethod::kAngle},
    {"slerp", InterpolationMethod::kSlerp},       {"pose", InterpolationMethod::kPose}};

// Outside the samples: hold the end one, NaN, or continue the curve in a straight line.
enum class Extrapolate : uint8_t { kClamp, kNan, kLinear };

// The two conditions that a C2 spline still lacks.
enum class Boundary : uint8_t { kNotAKnot, kNatural };

ROBOCACHE_HD constexpr bool is_step(InterpolationMethod method) {
  return method == InterpolationMethod::kNearest || method == InterpolationMethod::kPrevious ||
         method == InterpolationMethod::kNext;
}

// By name: those of kMethodNames; "clamp", "nan", "linear"; "not-a-knot", "natural". Throw ArgumentError that lists them.
InterpolationMethod interpolation_method_from_name(std::string_view name, std::string_view argument = "method");
Extrapolate extrapolate_from_name(std::string_view name, std::string_view argument = "extrapolate");
Boundary boundary_from_name(std::string_view name, std::string_view argument = "bc_type");

std::string_view method_name(InterpolationMethod method);
std::string_view boundary_name(Boundary boundary);

// In the clock's unit: seconds, or for int64 clocks whole nanoseconds.
using Duration = std::variant<int64_t, double>;

}  // namespace robocache
