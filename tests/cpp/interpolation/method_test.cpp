#include "robocache/interpolation/method.hpp"

#include <gtest/gtest.h>

#include <string>

#include "robocache/core/error.hpp"

namespace robocache {
namespace {

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Names, ComeBackOrAreRefusedWithTheKnownOnes) {
  for (const char* name :
       {"linear", "nearest", "previous", "next", "pchip", "akima", "cubic", "angle", "slerp", "pose"}) {
    EXPECT_EQ(method_name(interpolation_method_from_name(name)), name);
  }
  EXPECT_EQ(interpolation_method_from_name("cubic"), InterpolationMethod::kCubic);
  EXPECT_EQ(interpolation_method_from_name("pose"), InterpolationMethod::kPose);
  EXPECT_EQ(extrapolate_from_name("clamp"), Extrapolate::kClamp);
  EXPECT_EQ(extrapolate_from_name("nan"), Extrapolate::kNan);
  EXPECT_EQ(extrapolate_from_name("linear"), Extrapolate::kLinear);
  EXPECT_EQ(boundary_from_name("natural"), Boundary::kNatural);
  EXPECT_EQ(boundary_from_name("not-a-knot"), Boundary::kNotAKnot);
  for (const char* name : {"not-a-knot", "natural"}) EXPECT_EQ(name_of(boundary_from_name(name)), name);
  const std::string refused = refusal([] { interpolation_method_from_name("spline"); });
  EXPECT_TRUE(refused.starts_with("method: expected 'linear', 'nearest', ")) << refused;
  EXPECT_TRUE(refused.ends_with(" or 'pose', got 'spline'")) << refused;
  EXPECT_TRUE(refusal([] { interpolation_method_from_name("", "methods['a']"); }).starts_with("methods['a']: "));
  EXPECT_EQ(refusal([] { extrapolate_from_name("hold"); }),
            "extrapolate: expected 'clamp', 'nan' or 'linear', got 'hold'");
  EXPECT_EQ(refusal([] { boundary_from_name("clamped"); }),
            "bc_type: expected 'not-a-knot' or 'natural', got 'clamped'");
}

}  // namespace
}  // namespace robocache
