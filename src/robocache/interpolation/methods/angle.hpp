// Angles between two samples: radians, the shorter way round. Every operation rounds once, so all engines give the same
// bits.
#pragma once

#include <type_traits>

#include "robocache/core/host_device.hpp"
#include "robocache/interpolation/curve.hpp"
#include "robocache/interpolation/number.hpp"

namespace robocache {

// Half a turn, rounded to the type, and a whole turn as the sum of two numbers.
template <class Work>
struct Turn {
  static constexpr bool kSingle = std::is_same_v<Work, float>;
  static constexpr Work kHalf = kSingle ? Work(0x1.921fb6p+1) : Work(0x1.921fb54442d18p+1);
  static constexpr Work kWhole = 2 * kHalf;
  static constexpr Work kRest = kSingle ? Work(-0x1.777a5cp-23) : Work(0x1.1a62633145c07p-52);
  static constexpr Work kInverse = kSingle ? Work(0x1.45f306p-3) : Work(0x1.45f306dc9c883p-3);
};

ROBOCACHE_HD float nearest_whole(float x) { return __builtin_rintf(x); }
ROBOCACHE_HD double nearest_whole(double x) { return __builtin_rint(x); }

// Returns the number of whole turns nearest to an angle; half a turn counts as 0.
template <class Work>
ROBOCACHE_HD Work turns_in(Work angle) {
  return nearest_whole(angle * Turn<Work>::kInverse);
}

// Returns an angle minus a number of turns. The first step is exact if the result is half a turn or less; the second
// rounds.
template <class Work>
ROBOCACHE_HD Work less_turns(Work angle, Work turns) {
  return multiply_add(-turns, Turn<Work>::kRest, multiply_add(-turns, Turn<Work>::kWhole, angle));
}

template <class Work>
ROBOCACHE_HD Work less_turns(Work angle) {
  return less_turns(angle, turns_in(angle));
}

struct Angle {
  static constexpr int kFeatures = 1;
  static constexpr int kReach = 0;
  static constexpr bool kWeighs = false;
  static constexpr bool kSlopes = false;

  // The result is in [-pi, pi), with the pi of the type. Whole turns in a and b change nothing. If nothing wraps, the
  // result is fma(w, b - a, a), bit for bit. The result is NaN if an argument is not finite.
  template <class Scalar>
  ROBOCACHE_HD static Scalar value(const CurveWeights<Scalar>& c, int /*before*/, int /*after*/, const Scalar (&y)[2]) {
    const Scalar angle = less_turns(multiply_add(c.along, less_turns(y[1] - y[0]), less_turns(y[0])));
    return absolute(angle) >= Turn<Scalar>::kHalf ? -Turn<Scalar>::kHalf : angle;
  }

  // Returns the derivative of the value with respect to the bracket's weight: the shorter way from a to b, in float64.
  template <class Work>
  ROBOCACHE_HD static double weight_derivative(Work a, Work b) {
    return less_turns(static_cast<double>(b) - static_cast<double>(a), static_cast<double>(turns_in(b - a)));
  }
};

}  // namespace robocache
