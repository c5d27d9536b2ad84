// Time is int64 nanoseconds inside the library; users give seconds.
#pragma once

#include <cmath>
#include <cstdint>

#include "robocache/core/host_device.hpp"

namespace robocache {

inline constexpr double kNsPerSecond = 1e9;

// Converts seconds to the nearest nanosecond, ties to even. The caller has checked that the result fits.
inline int64_t seconds_to_ns(double seconds) { return std::llrint(seconds * kNsPerSecond); }

// Returns the nanoseconds from a clock's start to its k-th tick.
ROBOCACHE_HD int64_t clock_tick_ns(int64_t k, double period_ns) {
#ifdef __CUDA_ARCH__
  return __double2ll_rn(static_cast<double>(k) * period_ns);
#else
  return std::llrint(static_cast<double>(k) * period_ns);
#endif
}

// Returns a - b for a >= b, without overflow for any signs.
ROBOCACHE_HD uint64_t ns_between(int64_t a, int64_t b) { return static_cast<uint64_t>(a) - static_cast<uint64_t>(b); }

}  // namespace robocache
