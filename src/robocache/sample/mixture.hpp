// Turns a draw into an anchor of a source: of one source or several, by weight or each anchor once an epoch. It is a pure
// function of (seed, epoch, position), as the order is: any draw is found without the draws before it.
//
// Without weights, one keyed permutation an epoch draws the anchors of all sources, which lie one source after the other.
// With weights, draws come in blocks of kMixtureBlock that run on across epochs. Every block has the same whole number of draws
// of each source. A keyed permutation of the block's slots decides which source a draw belongs to (`MixtureTurns`), and a
// source's draws, in their order, run through its own anchors, one permutation after the other. When weights change at a draw,
// the blocks stay, and the offset of each source lets it continue with its next anchor.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "robocache/core/host_device.hpp"
#include "robocache/sample/order.hpp"

namespace robocache {

inline constexpr int64_t kMixtureBlock = 65536;

// A slot of the block for each of its draws, such that the number of draws before one with a slot in a given range is
// arithmetic. The slots are the draws' numbers with their bits in reverse, and each bit is then flipped or not, by the key and the
// bits below it. So 2^b draws that follow a multiple of 2^b have one slot in each 2^b-th part of the block: every source has its
// share of such a batch to within one draw.
class MixtureTurns {
 public:
  ROBOCACHE_HD explicit MixtureTurns(uint64_t key) : key_(key) {}

  // The slot in [0, kMixtureBlock) of a draw in [0, kMixtureBlock).
  ROBOCACHE_HD uint32_t slot(uint32_t draw) const {
    uint32_t x = (draw & 0x5555u) << 1 | (draw >> 1 & 0x5555u);
    x = (x & 0x3333u) << 2 | (x >> 2 & 0x3333u);
    x = (x & 0x0f0fu) << 4 | (x >> 4 & 0x0f0fu);
    x = (x & 0x00ffu) << 8 | x >> 8;
    // Sums and products carry only upwards, so a bit depends on no bit above it. Odd factors lose nothing.
    x += static_cast<uint32_t>(key_);
    for (int part = 16; part < 64; part += 16) {
      x *= static_cast<uint32_t>(key_ >> part) | 1u;
      x ^= x * 0x5a3eu;
    }
    return x % kMixtureBlock;
  }

  // The number of draws before a draw, whose slot is `own`, that have a slot in [first, end).
  ROBOCACHE_HD static uint32_t before(uint32_t draw, uint32_t own, uint32_t first, uint32_t end) {
    uint32_t count = 0;
    for (int bit = 0; bit < kBits; ++bit) count += before(draw, own, first, end, bit);
    return count;
  }

  // The same among the 2^bit draws that agree with the draw above this bit and have 0 for its 1: every 2^apart-th slot is theirs.
  ROBOCACHE_HD static uint32_t before(uint32_t draw, uint32_t own, uint32_t first, uint32_t end, int bit) {
    const int apart = kBits - bit;
    const uint32_t last = (1u << apart) - 1;
    const uint32_t least = (own ^ 1u << (apart - 1)) & last;
    const uint32_t count = ((end + last - least) >> apart) - ((first + last - least) >> apart);
    return (draw >> bit & 1u) * count;
  }

  static constexpr int kBits = 16;
  static_assert(kMixtureBlock == 1 << kBits);

 private:
  uint64_t key_;
};

// An anchor, counted within its source.
struct Draw {
  int32_t source;
  int64_t anchor;
};

// One source's part.
struct MixtureSource {
  int64_t first_anchor;  // among those of all sources
  int64_t first_slot;    // in a block; with weights
  uint64_t reciprocal;   // (2^64 - 1) / order.n, rounded down; with weights
  Order order;           // the order of its own anchors, without a key; with weights
  uint64_t offset =
      0;  // draws of the source by earlier weights, minus the draws that these weights would give; modulo 2^64

  // The permutation of the source's anchors that a draw belongs to, and its index there.
  struct Round {
    uint64_t number;
    int64_t index;
  };
  ROBOCACHE_HD Round round_of(uint64_t draw) const {
#ifdef __CUDA_ARCH__
    uint64_t number = __umul64hi(draw, reciprocal);
#else
    __extension__ using Whole = unsigned __int128;
    auto number = static_cast<uint64_t>(static_cast<Whole>(draw) * reciprocal >> 64);
#endif
    // The product is less than draw / n, by less than 1.
    const auto n = static_cast<uint64_t>(order.n);
    uint64_t index = draw - number * n;
    if (index >= n) {
      index -= n;
      ++number;
    }
    return {number, static_cast<int64_t>(index)};
  }
};

// Plain, so that it can be handed to a kernel; the table lies on the kernel's device.
struct Mixture {
  int64_t anchors;  // in all sources
  int64_t samples;  // draws an epoch; without weights all anchors
  int32_t sources;
  bool weighted;
  const MixtureSource* table;  // [sources + 1]: the last is the end of the others
  Order order;                 // the order of all anchors; with weights without a key
  uint64_t seed;
  uint64_t turns_seed;  // the seed's hash, which the hashes of blocks are made from
  uint64_t first_draw;  // the epoch's first draw; with weights

  // The same mixture at an epoch.
  Mixture at_epoch(uint64_t of_seed, int64_t epoch) const {
    Mixture mixture = *this;
    mixture.seed = of_seed;
    mixture.turns_seed = mix_bits(of_seed);
    mixture.first_draw = static_cast<uint64_t>(epoch) * static_cast<uint64_t>(samples);
    if (!weighted) mixture.order = order.keyed(of_seed, static_cast<uint64_t>(epoch));
    return mixture;
  }

  // An anchor that is counted over all sources.
  ROBOCACHE_HD Draw of(int64_t anchor) const {
    if (sources == 1) return {0, anchor};
    const int32_t source = last_from(&MixtureSource::first_anchor, anchor);
    return {source, anchor - table[source].first_anchor};
  }

  // The number of an anchor over all sources, of which `of` makes the draw again.
  ROBOCACHE_HD int64_t number_of(const Draw& draw) const { return table[draw.source].first_anchor + draw.anchor; }

  // The draw at a position of the epoch, in [0, samples). The window kernel has the same rule for lanes that work together.
  ROBOCACHE_HD Draw at(int64_t position) const {
    if (!weighted) return of(order.at(position));
    const uint64_t draw = first_draw + static_cast<uint64_t>(position);
    const uint32_t slot = slot_of(draw);
    const int32_t source = last_from(&MixtureSource::first_slot, slot);
    const MixtureSource& own = table[source];
    const MixtureSource::Round round = own.round_of(drawn(source, draw, slot));
    return {source, own.order.keyed(seed_of(source), round.number).at(round.index)};
  }

  // Returns how many draws of a source come before `draw`, plus the source's offset. For weighted mixtures.
  uint64_t drawn(int32_t source, uint64_t draw) const { return drawn(source, draw, slot_of(draw)); }

  // The seed of a source's own permutations.
  ROBOCACHE_HD uint64_t seed_of(int32_t source) const {
    return mix_bits(seed ^ mix_bits(static_cast<uint64_t>(source) + 1));
  }

 private:
  // The slot of a draw in its block.
  ROBOCACHE_HD uint32_t slot_of(uint64_t draw) const {
    const auto in_block = static_cast<uint32_t>(draw % kMixtureBlock);
    if (!order.shuffle) return in_block;
    return MixtureTurns(mix_bits(turns_seed ^ draw / kMixtureBlock)).slot(in_block);
  }

  ROBOCACHE_HD uint64_t drawn(int32_t source, uint64_t draw, uint32_t slot) const {
    const auto first = static_cast<uint32_t>(table[source].first_slot);
    const auto end = static_cast<uint32_t>(table[source + 1].first_slot);
    const auto in_block = static_cast<uint32_t>(draw % kMixtureBlock);
    uint32_t before = 0;  // in the block
    if (order.shuffle) {
      before = MixtureTurns::before(in_block, slot, first, end);
    } else if (slot > first) {
      before = (slot < end ? slot : end) - first;
    }
    return table[source].offset + draw / kMixtureBlock * (end - first) + before;
  }

  // The last source that begins at or before `at`.
  ROBOCACHE_HD int32_t last_from(int64_t MixtureSource::* first, int64_t at) const {
    int32_t low = 0;
    int32_t high = sources;
    while (high - low > 1) {
      const int32_t middle = (low + high) / 2;
      if (table[middle].*first <= at) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

// The options of a mixture.
struct MixtureOptions {
  std::vector<std::optional<double>> weights;   // one for each source: all have one or none has
  std::vector<std::vector<double>> parts = {};  // of each source, the weights of its parts; empty: it has one
  std::optional<double> temperature;            // weights proportional to anchors^(1 / temperature)
  std::optional<int64_t> samples_per_epoch;     // with weights; else all anchors' number
  bool shuffle = true;
  std::vector<std::string> changed =
      {};  // for weights that change later: their names in errors; such a weight may be 0
};

// The tables of a Mixture in host memory; mixture() points into this object.
class MixtureTables {
 public:
  // For sources, or where they have parts for these, with so many anchors, at least one each. A part is drawn as a source is; the
  // share of its source is divided among them, at least one draw of a block each. Where a source has parts and none has a weight,
  // sources weigh as their anchors. Throws ArgumentError for weights that are not finite and above 0, that only some sources have,
  // or that give a source no draw of a block, or fewer than its parts. A changed weight may be 0, but not all of them.
  MixtureTables(std::span<const int64_t> anchors, const MixtureOptions& options);

  // Sets the offsets so that from `draw` on each source continues where the mixture `before` leaves it. Any epoch will do.
  void go_on(const Mixture& before, uint64_t draw);

  Mixture mixture() const;
  std::span<const MixtureSource> table() const { return table_; }

 private:
  std::vector<MixtureSource> table_;
  Mixture mixture_{};
};

}  // namespace robocache
