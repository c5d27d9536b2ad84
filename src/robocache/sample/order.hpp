// The order of samples in an epoch: a keyed permutation of [0, n), evaluated one position at a time, without a table,
// an O(n) shuffle or state. It is a pure function of (seed, epoch, position), the same on every device.
//
// A Feistel network permutes the smallest power of two that holds n (at least 2^8). It is applied again until the image
// is below n: a bijection of a larger set, iterated from inside a subset, is a bijection of the subset (Black and
// Rogaway, "Ciphers with arbitrary finite domains", 2002). It takes fewer than 2 steps on average for n >= 2^7.
//
//   const Order order = Order::of(n).keyed(seed, epoch);
//   for (int64_t position = 0; position < n; ++position) visit(order.at(position));
#pragma once

#include <bit>
#include <cstdint>

#include "robocache/core/host_device.hpp"
#include "robocache/core/mix_bits.hpp"

namespace robocache {

struct Order {
  static constexpr int kRounds = 8;

  // Returns an order of n >= 1 positions. Without `shuffle` it is the identity.
  static Order of(int64_t n, bool shuffle = true) {
    Order order{};
    order.n = n;
    order.shuffle = shuffle;
    const int bits = std::bit_width(static_cast<uint64_t>(n > 256 ? n - 1 : 255));
    order.left_bits = bits / 2;
    order.right_bits = bits - bits / 2;
    return order;
  }

  // Returns the order of the same positions for a seed and an epoch.
  ROBOCACHE_HD Order keyed(uint64_t seed, uint64_t epoch) const {
    Order order = *this;
    for (int round = 0; round < kRounds; ++round) order.keys[round] = key_of(seed, epoch, round);
    return order;
  }

  // Returns the key of one round of that order.
  ROBOCACHE_HD static uint64_t key_of(uint64_t seed, uint64_t epoch, int round) {
    constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;
    return mix_bits((mix_bits(seed + kStep) ^ epoch) + static_cast<uint64_t>(round + 1) * kStep);
  }

  // Returns the sample at a position in [0, n).
  ROBOCACHE_HD int64_t at(int64_t position) const {
    if (!shuffle) return position;
    uint64_t x = static_cast<uint64_t>(position);
    do {
      x = permuted(x);
    } while (x >= static_cast<uint64_t>(n));
    return static_cast<int64_t>(x);
  }

  int64_t n;
  bool shuffle;
  int32_t left_bits;
  int32_t right_bits;
  uint64_t keys[kRounds];

 private:
  ROBOCACHE_HD uint64_t permuted(uint64_t x) const {
    const uint64_t left_mask = (uint64_t{1} << left_bits) - 1;
    const uint64_t right_mask = (uint64_t{1} << right_bits) - 1;
    uint64_t left = x >> right_bits;
    uint64_t right = x & right_mask;
    for (int round = 0; round < kRounds; round += 2) {
      left ^= mix_bits(right + keys[round]) & left_mask;
      right ^= mix_bits(left + keys[round + 1]) & right_mask;
    }
    return left << right_bits | right;
  }
};

}  // namespace robocache
