// A straight line between two samples.
#pragma once

#include "robocache/core/host_device.hpp"
#include "robocache/interpolation/curve.hpp"
#include "robocache/interpolation/number.hpp"

namespace robocache {

struct Linear {
  static constexpr int kFeatures = 1;
  static constexpr int kReach = 0;
  static constexpr bool kWeighs = false;
  static constexpr bool kSlopes = false;

  template <class Scalar>
  ROBOCACHE_HD static Scalar value(const CurveWeights<Scalar>& c, int /*before*/, int /*after*/, const Scalar (&y)[2]) {
    return lerp(y[0], y[1], c.along);
  }

  // Returns the derivative of the value by the bracket's weight.
  template <class Work>
  ROBOCACHE_HD static double weight_derivative(Work a, Work b) {
    return static_cast<double>(b) - static_cast<double>(a);
  }
};

}  // namespace robocache
