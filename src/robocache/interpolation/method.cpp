#include "robocache/interpolation/method.hpp"

#include <array>
#include <string>
#include <utility>

#include "robocache/core/error.hpp"

namespace robocache {
namespace {

template <class Value, size_t kCount>
Value from_name(const std::array<std::pair<std::string_view, Value>, kCount>& names, std::string_view name,
                std::string_view argument) {
  std::string known;
  for (size_t i = 0; i < kCount; ++i) {
    if (names[i].first == name) return names[i].second;
    known += (i == 0 ? "'" : i + 1 < kCount ? ", '" : " or '") + std::string(names[i].first) + "'";
  }
  throw ArgumentError(std::string(argument) + ": expected " + known + ", got '" + std::string(name) + "'");
}

using M = InterpolationMethod;
constexpr std::array<std::pair<std::string_view, M>, 10> kMethods{{{"linear", M::kLinear},
                                                                   {"nearest", M::kNearest},
                                                                   {"previous", M::kPrevious},
                                                                   {"next", M::kNext},
                                                                   {"pchip", M::kPchip},
                                                                   {"akima", M::kAkima},
                                                                   {"cubic", M::kCubic},
                                                                   {"angle", M::kAngle},
                                                                   {"slerp", M::kSlerp},
                                                                   {"pose", M::kPose}}};
constexpr std::array<std::pair<std::string_view, Boundary>, 2> kBoundaries{
    {{"not-a-knot", Boundary::kNotAKnot}, {"natural", Boundary::kNatural}}};

}  // namespace

InterpolationMethod interpolation_method_from_name(std::string_view name, std::string_view argument) {
  return from_name(kMethods, name, argument);
}

std::string_view method_name(InterpolationMethod method) { return kMethods[static_cast<size_t>(method)].first; }

Extrapolate extrapolate_from_name(std::string_view name, std::string_view argument) {
  static constexpr std::array<std::pair<std::string_view, Extrapolate>, 3> kNames{
      {{"clamp", Extrapolate::kClamp}, {"nan", Extrapolate::kNan}, {"linear", Extrapolate::kLinear}}};
  return from_name(kNames, name, argument);
}

Boundary boundary_from_name(std::string_view name, std::string_view argument) {
  return from_name(kBoundaries, name, argument);
}

std::string_view boundary_name(Boundary boundary) { return kBoundaries[static_cast<size_t>(boundary)].first; }

}  // namespace robocache
