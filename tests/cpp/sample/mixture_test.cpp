#include "robocache/sample/mixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "robocache/core/error.hpp"
#include "robocache/core/mix_bits.hpp"

namespace robocache {
namespace {

using Weights = std::vector<std::optional<double>>;

std::vector<std::pair<int32_t, int64_t>> drawn(const Mixture& mixture, int64_t count) {
  std::vector<std::pair<int32_t, int64_t>> draws;
  for (int64_t position = 0; position < count; ++position) {
    const Draw draw = mixture.at(position);
    draws.emplace_back(draw.source, draw.anchor);
  }
  return draws;
}

TEST(Mixture, WithoutWeightsEachAnchorComesOnceAnEpoch) {
  const std::vector<int64_t> anchors{3, 1000, 1, 77};
  const MixtureTables tables(anchors, {.weights = Weights(4)});
  std::set<std::vector<std::pair<int32_t, int64_t>>> epochs;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    auto draws = drawn(tables.mixture().at_epoch(5, epoch), 1081);
    epochs.insert(draws);
    std::sort(draws.begin(), draws.end());
    size_t at = 0;
    for (int32_t source = 0; source < 4; ++source) {
      for (int64_t anchor = 0; anchor < anchors[static_cast<size_t>(source)]; ++anchor) {
        ASSERT_EQ(draws[at++], std::pair(source, anchor));
      }
    }
  }
  EXPECT_EQ(epochs.size(), 3u);
}

TEST(Mixture, AnchorsCountOverAllSources) {
  const MixtureTables tables(std::vector<int64_t>{3, 2, 4}, {.weights = {1.0, 2.0, 3.0}});
  const Mixture mixture = tables.mixture();
  EXPECT_EQ(mixture.anchors, 9);
  const std::pair<int32_t, int64_t> expected[] = {{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1},
                                                  {2, 0}, {2, 1}, {2, 2}, {2, 3}};
  for (int64_t i = 0; i < 9; ++i) {
    const Draw draw = mixture.of(i);
    EXPECT_EQ((std::pair{draw.source, draw.anchor}), expected[i]);
  }
}

// Whatever an epoch's length, blocks run on across epochs: each holds exactly every source's share, and a source's draws go
// through all its anchors before one comes again.
TEST(Mixture, SharesAreExactInEveryBlockAndSourcesGoRoundAndRound) {
  const std::vector<int64_t> anchors{1000, 17, 70000};
  for (const int64_t samples : {int64_t{1000}, kMixtureBlock, int64_t{150001}}) {
    const MixtureTables tables(anchors, {.weights = {0.5, 0.3, 0.2}, .samples_per_epoch = samples});
    std::vector<std::pair<int32_t, int64_t>> draws;
    for (int64_t epoch = 0; static_cast<int64_t>(draws.size()) < 4 * kMixtureBlock; ++epoch) {
      const auto more = drawn(tables.mixture().at_epoch(8, epoch), samples);
      draws.insert(draws.end(), more.begin(), more.end());
    }
    std::vector<std::map<int64_t, int64_t>> seen(3);
    for (int64_t block = 0; block < 4; ++block) {
      std::vector<int64_t> shares(3);
      for (int64_t i = 0; i < kMixtureBlock; ++i) {
        const auto& [source, anchor] = draws[static_cast<size_t>(block * kMixtureBlock + i)];
        ++shares[static_cast<size_t>(source)];
        ++seen[static_cast<size_t>(source)][anchor];
      }
      EXPECT_EQ(shares, (std::vector<int64_t>{32768, 19661, 13107}));  // of 32768, 19660.8 and 13107.2
      for (size_t source = 0; source < 3; ++source) {
        // A block is drawn whole: so far every anchor came as often as any other, or once more.
        const int64_t rounds = (block + 1) * shares[source] / anchors[source];
        int64_t total = 0;
        for (const auto& [anchor, count] : seen[source]) {
          ASSERT_TRUE(count == rounds || count == rounds + 1) << source << ": " << anchor << " came " << count;
          total += count;
        }
        EXPECT_EQ(total, (block + 1) * shares[source]);
      }
    }
  }
}

// In the order in which they come, not only counted over whole blocks: whoever trains for less than a block sees every anchor
// of a small source too.
TEST(Mixture, ASourceDrawsEachAnchorBeforeItDrawsOneAgain) {
  const std::vector<int64_t> anchors{10'000, 7, 3'000};
  for (const bool shuffle : {true, false}) {
    const MixtureOptions options{
        .weights = {0.5, 0.3, 0.2}, .samples_per_epoch = 3 * kMixtureBlock, .shuffle = shuffle};
    std::vector<std::set<int64_t>> round(3);
    for (const auto& [source, anchor] :
         drawn(MixtureTables(anchors, options).mixture().at_epoch(3, 0), 3 * kMixtureBlock)) {
      std::set<int64_t>& seen = round[static_cast<size_t>(source)];
      ASSERT_TRUE(seen.insert(anchor).second) << source << ": " << anchor << " came again";
      if (std::ssize(seen) == anchors[static_cast<size_t>(source)]) seen.clear();
    }
  }
}

// A reciprocal stands in for the division: the divisor's multiples and what lies beside them are where it could be one off.
TEST(Mixture, RoundsAreTheQuotientAndTheRestOfWholeNumbers) {
  std::vector<uint64_t> some{0, 1, 2, 3, 5, 7, 63, 255, 641, 65'535, 65'536, 65'537, 6'700'417, (1u << 31) - 1};
  for (int bit = 32; bit < 64; ++bit) {
    for (const uint64_t beside : {0, 1, 2, 3}) some.push_back((uint64_t{1} << bit) + beside - 2);
  }
  for (uint64_t i = 0; i < 64; ++i) some.push_back(mix_bits(i) >> i % 60);
  for (const uint64_t n : some) {
    if (n == 0 || n > static_cast<uint64_t>(INT64_MAX)) continue;
    const MixtureSource source{0, 0, UINT64_MAX / n, Order::of(static_cast<int64_t>(n))};
    std::vector<uint64_t> draws = some;
    for (const uint64_t times : some) {
      const uint64_t multiple = n * std::min(times, UINT64_MAX / n);
      draws.insert(draws.end(), {multiple - 1, multiple, multiple + 1, UINT64_MAX - times});
    }
    for (const uint64_t draw : draws) {
      const MixtureSource::Round round = source.round_of(draw);
      ASSERT_EQ(round.number, draw / n) << draw << " / " << n;
      ASSERT_EQ(static_cast<uint64_t>(round.index), draw % n) << draw << " / " << n;
    }
  }
}

TEST(MixtureTurns, PlacesAreAPermutationAndWhatCameBeforeIsCounted) {
  for (const uint64_t key : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, uint64_t{0x0123456789abcdef}}) {
    const MixtureTurns turns(key);
    std::set<uint32_t> places;
    uint32_t before = 0;
    for (uint32_t draw = 0; draw < kMixtureBlock; ++draw) {
      const uint32_t place = turns.slot(draw);
      ASSERT_LT(place, kMixtureBlock);
      ASSERT_TRUE(places.insert(place).second);
      ASSERT_EQ(turns.before(draw, place, 12'345, 54'321), before);
      ASSERT_EQ(turns.before(draw, place, 0, kMixtureBlock), draw);
      before += place >= 12'345 && place < 54'321;
    }
  }
}

// Of 2^b draws that follow a multiple of 2^b a source has its share, to within one draw, and not in one same order.
TEST(MixtureTurns, EveryBatchHasTheSharesToWithinOneDraw) {
  const MixtureTurns turns(mix_bits(7));
  for (const uint32_t size : {2u, 64u, 1024u}) {
    const double expected = size * 0.3;
    std::set<std::vector<bool>> orders;
    for (uint32_t begin = 0; begin < kMixtureBlock; begin += size) {
      std::vector<bool> theirs;
      for (uint32_t draw = begin; draw < begin + size; ++draw) theirs.push_back(turns.slot(draw) < 19'661);
      ASSERT_LT(std::abs(static_cast<double>(std::count(theirs.begin(), theirs.end(), true)) - expected), 1.001);
      orders.insert(theirs);
    }
    EXPECT_GE(orders.size(), size == 2 ? 3u : kMixtureBlock / size);
  }
}

TEST(Mixture, EpochsAreCutOutOfOneSequence) {
  const std::vector<int64_t> anchors{100, 200};
  const MixtureOptions whole{.weights = {3.0, 1.0}, .samples_per_epoch = 3000};
  const MixtureOptions parts{.weights = {3.0, 1.0}, .samples_per_epoch = 1000};
  const auto expected = drawn(MixtureTables(anchors, whole).mixture().at_epoch(1, 0), 3000);
  std::vector<std::pair<int32_t, int64_t>> got;
  const MixtureTables tables(anchors, parts);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const auto more = drawn(tables.mixture().at_epoch(1, epoch), 1000);
    got.insert(got.end(), more.begin(), more.end());
  }
  EXPECT_EQ(got, expected);
  EXPECT_NE(drawn(tables.mixture().at_epoch(2, 0), 1000), std::vector(expected.begin(), expected.begin() + 1000));
}

TEST(Mixture, TemperatureFlattensTheNumberOfAnchors) {
  const std::vector<int64_t> anchors{100, 10000};
  const auto share = [&](double temperature) {
    const MixtureTables tables(anchors, {.weights = Weights(2), .temperature = temperature});
    return tables.table()[1].first_slot;
  };
  EXPECT_EQ(share(1), 649);   // 65536 / 101
  EXPECT_EQ(share(2), 5958);  // 65536 / 11
  EXPECT_EQ(share(1e9), kMixtureBlock / 2);
}

TEST(Mixture, TiesGoToTheEarlierSource) {
  const MixtureTables tables(std::vector<int64_t>{1, 1, 1}, {.weights = {1.0, 1.0, 1.0}});
  std::vector<int64_t> places;
  for (const MixtureSource& source : tables.table()) places.push_back(source.first_slot);
  EXPECT_EQ(places, (std::vector<int64_t>{0, 21846, 43691, 65536}));
}

TEST(Mixture, RefusesByName) {
  const auto refused = [](const std::vector<int64_t>& anchors, const MixtureOptions& options) -> std::string {
    try {
      const MixtureTables tables(anchors, options);
    } catch (const ArgumentError& error) {
      return error.what();
    }
    return "nothing";
  };
  EXPECT_EQ(refused({5, 5}, {.weights = {1.0, std::nullopt}}).rfind("sources[1].weight: expected a weight", 0), 0u);
  EXPECT_EQ(refused({5, 5}, {.weights = {0.0, 1.0}}).rfind("sources[0].weight: expected a finite number above 0", 0),
            0u);
  EXPECT_EQ(refused({5, 5}, {.weights = {1.0, 1e-9}}).rfind("sources[1].weight: expected at least one draw", 0), 0u);
  EXPECT_EQ(refused({5, 5}, {.weights = {1.0, 1.0}, .temperature = 2.0}).rfind("temperature: ", 0), 0u);
  EXPECT_EQ(refused({5, 5}, {.weights = Weights(2), .temperature = 0.0}).rfind("temperature: ", 0), 0u);
  EXPECT_EQ(refused({5, 5}, {.weights = Weights(2), .samples_per_epoch = 4}).rfind("samples_per_epoch: ", 0), 0u);
  for (const int64_t samples : {int64_t{0}, (int64_t{1} << 53) + 1, INT64_MAX}) {
    EXPECT_EQ(refused({5, 5}, {.weights = {1.0, 1.0}, .samples_per_epoch = samples}).rfind("samples_per_epoch: ", 0),
              0u);
  }
}

}  // namespace
}  // namespace robocache
