// Which anchor of which source a draw is: of one source or several, by weight or each anchor once an epoch. A pure function
// of (seed, epoch, position) like the order it is made of: any draw is found without those before it.
//
// Without weights the anchors of all sources, one source behind the other, are drawn by one keyed permutation an epoch.
// With weights draws come in blocks of kMixtureBlock that run on across epochs. A source has the same whole number of draws
// in every block; a keyed permutation of the block's places says whose turn each is; and the source's draws, counted from
// the very first, run through its own anchors, permutation after permutation.
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

// What is drawn: an anchor, counted within its source.
struct Draw {
  int32_t source;
  int64_t anchor;
};

// One source's part.
struct MixtureSource {
  int64_t first_anchor;  // among those of all sources
  int64_t first_place;   // of a block; with weights
  Order order;           // of its own anchors, not keyed; with weights
};

// Plain, so that it can be handed to a kernel; the table lies on the kernel's device.
struct Mixture {
  int64_t anchors;  // of all sources
  int64_t samples;  // draws an epoch; without weights all anchors
  int32_t sources;
  bool weighted;
  const MixtureSource* table;  // [sources + 1]: the last tells where those before it end
  Order order;                 // of all anchors, or with weights of a block's places
  uint64_t keyed_block;        // the block that `order` is keyed for; with weights
  uint64_t seed;
  uint64_t first_draw;  // of the epoch; with weights

  // The same mixture at an epoch. With weights draws in the block that holds `position` are found the soonest.
  Mixture at_epoch(uint64_t of_seed, int64_t epoch, int64_t position = 0) const {
    Mixture mixture = *this;
    mixture.seed = of_seed;
    mixture.first_draw = static_cast<uint64_t>(epoch) * static_cast<uint64_t>(samples);
    if (weighted) {
      mixture.keyed_block = (mixture.first_draw + static_cast<uint64_t>(position)) / kMixtureBlock;
      mixture.order = order.keyed(mix_bits(of_seed), mixture.keyed_block);
    } else {
      mixture.order = order.keyed(of_seed, static_cast<uint64_t>(epoch));
    }
    return mixture;
  }

  // An anchor of all sources.
  ROBOCACHE_HD Draw of(int64_t anchor) const {
    if (sources == 1) return {0, anchor};
    const int32_t source = last_from(&MixtureSource::first_anchor, anchor);
    return {source, anchor - table[source].first_anchor};
  }

  // The draw at a position of the epoch, in [0, samples).
  ROBOCACHE_HD Draw at(int64_t position) const {
    if (!weighted) return of(order.at(position));
    const uint64_t draw = first_draw + static_cast<uint64_t>(position);
    const uint64_t block = draw / kMixtureBlock;
    const auto in_block = static_cast<int64_t>(draw % kMixtureBlock);
    const int64_t place = block == keyed_block ? order.at(in_block) : order.keyed(mix_bits(seed), block).at(in_block);
    const int32_t source = last_from(&MixtureSource::first_place, place);
    const MixtureSource& own = table[source];
    const auto share = static_cast<uint64_t>(table[source + 1].first_place - own.first_place);
    const uint64_t of_source = block * share + static_cast<uint64_t>(place - own.first_place);
    const auto n = static_cast<uint64_t>(own.order.n);
    const Order turn = own.order.keyed(mix_bits(seed ^ mix_bits(static_cast<uint64_t>(source) + 1)), of_source / n);
    return {source, turn.at(static_cast<int64_t>(of_source % n))};
  }

 private:
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

// What sources are mixed by.
struct MixtureOptions {
  std::vector<std::optional<double>> weights;  // of each source: all or none
  std::optional<double> temperature;           // weights proportional to anchors^(1 / temperature)
  std::optional<int64_t> samples_per_epoch;    // with weights; else all anchors' number
  bool shuffle = true;
};

// The tables of a Mixture in host memory; mixture() points into this object.
class MixtureTables {
 public:
  // Of sources with so many anchors, at least one each. Throws ArgumentError for weights that are not finite and above 0, that
  // some sources have and others have not, or that come to no draw of a block.
  MixtureTables(std::span<const int64_t> anchors, const MixtureOptions& options);

  Mixture mixture() const;
  std::span<const MixtureSource> table() const { return table_; }

 private:
  std::vector<MixtureSource> table_;
  Mixture mixture_{};
};

}  // namespace robocache
