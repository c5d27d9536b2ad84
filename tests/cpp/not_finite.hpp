// Short names for NaN and infinity.
#pragma once

#include <limits>

namespace robocache::test {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace robocache::test
