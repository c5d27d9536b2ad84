// The hash behind all random draws: random numbers without state, the same on every device.
#pragma once

#include <cstdint>

#include "robocache/core/host_device.hpp"

namespace robocache {

// The finalizer of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
ROBOCACHE_HD uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace robocache
