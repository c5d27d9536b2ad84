// Maps features to unsigned integers in the order of min and max, for both backends (rule 27 of docs/rules.md). -0 is
// below +0.
//
// NaN wins: its max_key is above all others and its min_key below all others, so the largest max_key of a cell, or its
// least min_key, gives the result. Start from 0 for max_key and ~0 for min_key. An empty cell then looks like a cell
// with the least, or greatest, integer.
#pragma once

#include <bit>
#include <cstdint>

#include "robocache/core/host_device.hpp"

namespace robocache {

ROBOCACHE_HD uint32_t order_key(int32_t x) { return static_cast<uint32_t>(x) ^ 0x80000000u; }
ROBOCACHE_HD uint32_t order_key(uint32_t x) { return x; }
ROBOCACHE_HD uint64_t order_key(uint64_t x) { return x; }
ROBOCACHE_HD uint64_t order_key(int64_t x) { return static_cast<uint64_t>(x) ^ 0x8000000000000000u; }
ROBOCACHE_HD uint32_t order_key(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return bits ^ (bits >> 31 ? ~uint32_t{0} : 0x80000000u);
}
ROBOCACHE_HD uint64_t order_key(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  return bits ^ (bits >> 63 ? ~uint64_t{0} : 0x8000000000000000u);
}

// Takes float, double, or an integer of 32 or 64 bits; convert smaller types to float or int32_t.
template <class T>
ROBOCACHE_HD auto max_key(T x) -> decltype(order_key(x)) {
  return x != x ? ~decltype(order_key(x)){0} : order_key(x);
}
template <class T>
ROBOCACHE_HD auto min_key(T x) -> decltype(order_key(x)) {
  return x != x ? decltype(order_key(x)){0} : order_key(x);
}

// The inverse of order_key, max_key and min_key; 0 and ~0 give NaN if T has one.
ROBOCACHE_HD void from_order_key(uint32_t key, int32_t& x) { x = static_cast<int32_t>(key ^ 0x80000000u); }
ROBOCACHE_HD void from_order_key(uint32_t key, uint32_t& x) { x = key; }
ROBOCACHE_HD void from_order_key(uint64_t key, uint64_t& x) { x = key; }
ROBOCACHE_HD void from_order_key(uint64_t key, int64_t& x) { x = static_cast<int64_t>(key ^ 0x8000000000000000u); }
ROBOCACHE_HD void from_order_key(uint32_t key, float& x) {
  x = std::bit_cast<float>(key ^ (key >> 31 ? 0x80000000u : ~uint32_t{0}));
}
ROBOCACHE_HD void from_order_key(uint64_t key, double& x) {
  x = std::bit_cast<double>(key ^ (key >> 63 ? 0x8000000000000000u : ~uint64_t{0}));
}

}  // namespace robocache
