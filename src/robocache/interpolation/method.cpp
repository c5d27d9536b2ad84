#include "robocache/interpolation/method.hpp"

#include <cstddef>
#include <iterator>
#include <string>
#include <utility>

#include "robocache/core/error.hpp"

namespace robocache {
namespace {

template <class Value, size_t kCount>
Value from_name(const std::pair<std::string_view, Value> (&names)[kCount], std::string_view name,
                std::string_view argument) {
  std::string known;
  for (size_t i = 0; i < kCount; ++i) {
    if (names[i].first == name) return names[i].second;
    known += (i == 0 ? "'" : i + 1 < kCount ? ", '" : " or '") + std::string(names[i].first) + "'";
  }
  throw ArgumentError(std::string(argument) + ": expected " + known + ", got '" + std::string(name) + "'");
}

static_assert([] {
  for (size_t i = 0; i < std::size(kMethodNames); ++i) {
    if (static_cast<size_t>(kMethodNames[i].second) != i) return false;
  }
  return true;
}());
constexpr std::pair<std::string_view, Extrapolate> kExtrapolateNames[]{
    {"clamp", Extrapolate::kClamp}, {"nan", Extrapolate::kNan}, {"linear", Extrapolate::kLinear}};
constexpr std::pair<std::string_view, Boundary> kBoundaryNames[]{{"not-a-knot", Boundary::kNotAKnot},
                                                                 {"natural", Boundary::kNatural}};

}  // namespace

InterpolationMethod interpolation_method_from_name(std::string_view name, std::string_view argument) {
  return from_name(kMethodNames, name, argument);
}

std::string_view method_name(InterpolationMethod method) { return kMethodNames[static_cast<size_t>(method)].first; }

Extrapolate extrapolate_from_name(std::string_view name, std::string_view argument) {
  return from_name(kExtrapolateNames, name, argument);
}

Boundary boundary_from_name(std::string_view name, std::string_view argument) {
  return from_name(kBoundaryNames, name, argument);
}

std::string_view boundary_name(Boundary boundary) { return kBoundaryNames[static_cast<size_t>(boundary)].first; }

}  // namespace robocache
