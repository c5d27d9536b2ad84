// Angles between two samples: radians, the shorter way round. Shared by the CPU loop, the CUDA kernels and the loader's
// windows; of operations that round once alone, so that all of them give the same bits.
#pragma once

#include <type_traits>

#include "robocache/core/host_device.hpp"
#include "robocache/interpolation/number.hpp"

namespace robocache {

// Half a turn as the type has it, and a whole one as the sum of two numbers.
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

// The turns nearest to an angle; half a turn is none.
template <class Work>
ROBOCACHE_HD Work turns_in(Work angle) {
  return nearest_whole(angle * Turn<Work>::kInverse);
}

// An angle less so many turns. The first step is exact where that is half a turn or less; the second rounds.
template <class Work>
ROBOCACHE_HD Work less_turns(Work angle, Work turns) {
  return multiply_add(-turns, Turn<Work>::kRest, multiply_add(-turns, Turn<Work>::kWhole, angle));
}

template <class Work>
ROBOCACHE_HD Work less_turns(Work angle) {
  return less_turns(angle, turns_in(angle));
}

// The share `w` of the shorter way from a to b, beyond them too: in [-pi, pi), pi being that of the type. Only the place of
// a and b on the circle counts. Where nothing wraps it is fma(w, b - a, a), bit for bit. NaN where one of them is not finite.
template <class Work>
ROBOCACHE_HD Work angle_at(Work a, Work b, Work w) {
  const Work y = less_turns(multiply_add(w, less_turns(b - a), less_turns(a)));
  return absolute(y) >= Turn<Work>::kHalf ? -Turn<Work>::kHalf : y;
}

// The slope of angle_at over w: the way it takes from a to b, in float64.
template <class Work>
ROBOCACHE_HD double shorter_way(Work a, Work b) {
  return less_turns(static_cast<double>(b) - static_cast<double>(a), static_cast<double>(turns_in(b - a)));
}

}  // namespace robocache
