// Time is int64 nanoseconds everywhere inside; seconds are what people type.
#pragma once

#include <cmath>
#include <cstdint>

#include "robocache/core/host_device.hpp"

namespace robocache {

inline constexpr double kNsPerSecond = 1e9;

// Seconds to the nearest nanosecond, ties to even. The caller has checked that the result fits.
inline int64_t seconds_to_ns(double seconds) { return std::llrint(seconds * kNsPerSecond); }

// a - b for a >= b without overflow, whatever their signs.
ROBOCACHE_HD uint64_t ns_between(int64_t a, int64_t b) { return static_cast<uint64_t>(a) - static_cast<uint64_t>(b); }

}  // namespace robocache
