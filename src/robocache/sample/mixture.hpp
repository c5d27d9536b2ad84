// Turns a draw into an anchor of a source, for one source or several, by weight or with each anchor once an epoch.
// The anchor is a pure function of (seed, epoch, position), like the order: finding a draw needs no earlier draw.
//
// Without weights, one keyed permutation per epoch orders the anchors of all sources, numbered source after source.
// With weights, draws come in blocks of kMixtureBlock, which continue across epochs. Every block has the same whole
// number of draws of each source. A keyed permutation of the block's slots decides which source a draw belongs to
// (`MixtureTurns`). The draws of a source, in order, run through its own anchors, one permutation after another. When
// weights change at a draw, the blocks stay, and an offset for each source lets it continue with its next anchor.
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

// Gives each draw of a block a slot, so that arithmetic can count the earlier draws with a slot in a range. A slot has
// the bits of the draw's number in reverse order; then each bit is flipped or not, depending on the key and the bits
// below it. So 2^b draws from a multiple of 2^b on have one slot in each 2^b-th part of the block: every source has its
// share of such a batch to within one draw.
class MixtureTurns {
 public:
  ROBOCACHE_HD explicit MixtureTurns(uint64_t key) : key_(key) {}

  // Returns the slot in [0, kMixtureBlock) of a draw in [0, kMixtureBlock).
  ROBOCACHE_HD uint32_t slot(uint32_t draw) const {
    uint32_t x = (draw & 0x5555u) << 1 | (draw >> 1 & 0x5555u);
    x = (x & 0x3333u) << 2 | (x >> 2 & 0x3333u);
    x = (x & 0x0f0fu) << 4 | (x >> 4 & 0x0f0fu);
    x = (x & 0x00ffu) << 8 | x >> 8;
    // Sums and products carry only upwards, so a bit depends on no higher bit. Odd factors are invertible.
    x += static_cast<uint32_t>(key_);
    for (int part = 16; part < 64; part += 16) {
      x *= static_cast<uint32_t>(key_ >> part) | 1u;
      x ^= x * 0x5a3eu;
    }
    return x % kMixtureBlock;
  }

  // Returns the number of earlier draws in the block with a slot in [first, end). `draw_slot` is the slot of `draw`.
  ROBOCACHE_HD static uint32_t before(uint32_t draw, uint32_t draw_slot, uint32_t first, uint32_t end) {
    uint32_t count = 0;
    for (int bit = 0; bit < kBits; ++bit) count += before(draw, draw_slot, first, end, bit);
    return count;
  }

  // The same, counting only draws that agree with `draw` above this bit, and have 0 at the bit where `draw` has 1.
  // There are 2^bit of them; their slots are least + i 2^log2_step.
  ROBOCACHE_HD static uint32_t before(uint32_t draw, uint32_t draw_slot, uint32_t first, uint32_t end, int bit) {
    const int log2_step = kBits - bit;
    const uint32_t mask = (1u << log2_step) - 1;
    const uint32_t least = (draw_slot ^ 1u << (log2_step - 1)) & mask;
    const uint32_t count = ((end + mask - least) >> log2_step) - ((first + mask - least) >> log2_step);
    return (draw >> bit & 1u) * count;
  }

  static constexpr int kBits = 16;
  static_assert(kMixtureBlock == 1 << kBits);

 private:
  uint64_t key_;
};

// An anchor, numbered within its source.
struct Draw {
  int32_t source;
  int64_t anchor;
};

// A source in the tables of a mixture.
struct MixtureSource {
  int64_t first_anchor;  // number among the anchors of all sources
  int64_t first_slot;    // in a block; only with weights
  uint64_t reciprocal;   // (2^64 - 1) / order.n, rounded down; only with weights
  Order order;           // the order of its own anchors, without a key; only with weights
  // The draws of the source under earlier weights, minus those that the present weights would have given; modulo 2^64.
  uint64_t offset = 0;

  // A permutation of the source's anchors, by its number, and an index in it.
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
    // The reciprocal is rounded down, so `number` may be 1 too small.
    const auto n = static_cast<uint64_t>(order.n);
    uint64_t index = draw - number * n;
    if (index >= n) {
      index -= n;
      ++number;
    }
    return {number, static_cast<int64_t>(index)};
  }
};

// A plain struct for a kernel; the table lies on the kernel's device.
struct Mixture {
  int64_t anchors;  // in all sources
  int64_t samples;  // draws per epoch; without weights the number of all anchors
  int32_t sources;
  bool weighted;
  const MixtureSource* table;  // [sources + 1]: the last entry marks the end
  Order order;                 // the order of all anchors; with weights it has no key
  uint64_t seed;
  uint64_t turns_seed;  // a hash of the seed; the hashes of blocks are made from it
  uint64_t first_draw;  // the epoch's first draw; only with weights

  // Returns the same mixture at an epoch.
  Mixture at_epoch(uint64_t new_seed, int64_t epoch) const {
    Mixture mixture = *this;
    mixture.seed = new_seed;
    mixture.turns_seed = mix_bits(new_seed);
    mixture.first_draw = static_cast<uint64_t>(epoch) * static_cast<uint64_t>(samples);
    if (!weighted) mixture.order = order.keyed(new_seed, static_cast<uint64_t>(epoch));
    return mixture;
  }

  // Returns the draw of an anchor that is numbered over all sources.
  ROBOCACHE_HD Draw draw_of(int64_t anchor) const {
    if (sources == 1) return {0, anchor};
    const int32_t source = last_from(&MixtureSource::first_anchor, anchor);
    return {source, anchor - table[source].first_anchor};
  }

  // Returns the number over all sources of a draw's anchor: the inverse of draw_of().
  ROBOCACHE_HD int64_t number_of(const Draw& draw) const { return table[draw.source].first_anchor + draw.anchor; }

  // Returns the draw at a position of the epoch, in [0, samples). The window kernel repeats this rule for lanes that
  // work together.
  ROBOCACHE_HD Draw at(int64_t position) const {
    if (!weighted) return draw_of(order.at(position));
    const uint64_t draw = first_draw + static_cast<uint64_t>(position);
    const uint32_t slot = slot_of(draw);
    const int32_t source = last_from(&MixtureSource::first_slot, slot);
    const MixtureSource& drawn_source = table[source];
    const MixtureSource::Round round = drawn_source.round_of(drawn(source, draw, slot));
    return {source, drawn_source.order.keyed(seed_of(source), round.number).at(round.index)};
  }

  // Returns how many draws of a source come before `draw`, plus the source's offset. For weighted mixtures.
  uint64_t drawn(int32_t source, uint64_t draw) const { return drawn(source, draw, slot_of(draw)); }

  // Returns the seed of a source's own permutations.
  ROBOCACHE_HD uint64_t seed_of(int32_t source) const {
    return mix_bits(seed ^ mix_bits(static_cast<uint64_t>(source) + 1));
  }

 private:
  // Returns the slot of a draw in its block.
  ROBOCACHE_HD uint32_t slot_of(uint64_t draw) const {
    const auto index_in_block = static_cast<uint32_t>(draw % kMixtureBlock);
    if (!order.shuffle) return index_in_block;
    return MixtureTurns(mix_bits(turns_seed ^ draw / kMixtureBlock)).slot(index_in_block);
  }

  ROBOCACHE_HD uint64_t drawn(int32_t source, uint64_t draw, uint32_t slot) const {
    const auto first = static_cast<uint32_t>(table[source].first_slot);
    const auto end = static_cast<uint32_t>(table[source + 1].first_slot);
    const auto index_in_block = static_cast<uint32_t>(draw % kMixtureBlock);
    uint32_t before = 0;  // earlier draws in the block
    if (order.shuffle) {
      before = MixtureTurns::before(index_in_block, slot, first, end);
    } else if (slot > first) {
      before = (slot < end ? slot : end) - first;
    }
    return table[source].offset + draw / kMixtureBlock * (end - first) + before;
  }

  // Returns the last source whose `first` is at or before `position`.
  ROBOCACHE_HD int32_t last_from(int64_t MixtureSource::* first, int64_t position) const {
    int32_t low = 0;
    int32_t high = sources;
    while (high - low > 1) {
      const int32_t middle = (low + high) / 2;
      if (table[middle].*first <= position) {
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
  std::vector<std::optional<double>> weights;   // one for each source: all have a value, or none has
  std::vector<std::vector<double>> parts = {};  // for each source the weights of its parts; empty: one part
  std::optional<double> temperature;            // weights proportional to anchors^(1 / temperature)
  std::optional<int64_t> samples_per_epoch;     // only with weights; default: the number of all anchors
  bool shuffle = true;
  // For weights that change later: their names in errors. Such a weight may be 0.
  std::vector<std::string> changed = {};
};

// The tables of a Mixture in host memory; mixture() points into this object.
class MixtureTables {
 public:
  // `anchors` has the number of anchors of each source, or of each part of the sources that have parts; at least 1
  // each. A part is drawn like a source. The share of its source is divided among the parts, with at least one draw of
  // a block each. If sources have parts but no weights, the weight of a source is its number of anchors. Throws
  // ArgumentError for weights that are not finite and above 0, that only some sources have, or that give a source no
  // draw of a block, or fewer draws than its parts. A weight in `changed` may be 0, but not all of them.
  MixtureTables(std::span<const int64_t> anchors, const MixtureOptions& options);

  // Sets the offsets so that from `draw` on each source continues where the mixture `before` leaves it. `before` may be
  // at any epoch.
  void continue_from(const Mixture& before, uint64_t draw);

  Mixture mixture() const;
  std::span<const MixtureSource> table() const { return table_; }

 private:
  std::vector<MixtureSource> table_;
  Mixture mixture_{};
};

}  // namespace robocache
