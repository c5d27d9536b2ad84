#include "robocache/sample/mixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "robocache/core/error.hpp"
#include "robocache/core/mix_bits.hpp"

namespace robocache {
namespace {

// A multiplication by the reciprocal replaces the division. It could be off by one at multiples of the divisor and
// beside them.
TEST(Mixture, RoundsEqualQuotientAndRemainder) {
  std::vector<uint64_t> numbers{0, 1, 2, 3, 5, 7, 63, 255, 641, 65'535, 65'536, 65'537, 6'700'417, (1u << 31) - 1};
  for (int bit = 32; bit < 64; ++bit) {
    for (const uint64_t offset : {0, 1, 2, 3}) numbers.push_back((uint64_t{1} << bit) + offset - 2);
  }
  for (uint64_t i = 0; i < 64; ++i) numbers.push_back(mix_bits(i) >> i % 60);
  for (const uint64_t n : numbers) {
    if (n == 0 || n > static_cast<uint64_t>(INT64_MAX)) continue;
    const MixtureSource source{0, 0, UINT64_MAX / n, Order::of(static_cast<int64_t>(n))};
    std::vector<uint64_t> draws = numbers;
    for (const uint64_t factor : numbers) {
      const uint64_t multiple = n * std::min(factor, UINT64_MAX / n);
      draws.insert(draws.end(), {multiple - 1, multiple, multiple + 1, UINT64_MAX - factor});
    }
    for (const uint64_t draw : draws) {
      const MixtureSource::Round round = source.round_of(draw);
      ASSERT_EQ(round.number, draw / n) << draw << " / " << n;
      ASSERT_EQ(static_cast<uint64_t>(round.index), draw % n) << draw << " / " << n;
    }
  }
}

TEST(MixtureTurns, SlotsAreAPermutationAndEarlierDrawsAreCounted) {
  for (const uint64_t key : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, uint64_t{0x0123456789abcdef}}) {
    const MixtureTurns turns(key);
    std::set<uint32_t> slots;
    uint32_t before = 0;
    for (uint32_t draw = 0; draw < kMixtureBlock; ++draw) {
      const uint32_t slot = turns.slot(draw);
      ASSERT_LT(slot, kMixtureBlock);
      ASSERT_TRUE(slots.insert(slot).second);
      ASSERT_EQ(turns.before(draw, slot, 12'345, 54'321), before);
      ASSERT_EQ(turns.before(draw, slot, 0, kMixtureBlock), draw);
      before += slot >= 12'345 && slot < 54'321;
    }
  }
}

// Among 2^b draws from a multiple of 2^b on, a source of share 0.3 (slots below 19,661) has its share to within one
// draw, and the order varies.
TEST(MixtureTurns, EveryBatchHasTheSharesToWithinOneDraw) {
  const MixtureTurns turns(mix_bits(7));
  for (const uint32_t size : {2u, 64u, 1024u}) {
    const double expected = size * 0.3;
    std::set<std::vector<bool>> orders;
    for (uint32_t begin = 0; begin < kMixtureBlock; begin += size) {
      std::vector<bool> has_source;
      for (uint32_t draw = begin; draw < begin + size; ++draw) has_source.push_back(turns.slot(draw) < 19'661);
      ASSERT_LT(std::abs(static_cast<double>(std::count(has_source.begin(), has_source.end(), true)) - expected),
                1.001);
      orders.insert(has_source);
    }
    EXPECT_GE(orders.size(), size == 2 ? 3u : kMixtureBlock / size);
  }
}

// The expected anchor comes from counting each source's draws one by one.
TEST(Mixture, SourcesContinueAfterAChangeOfWeights) {
  const std::vector<int64_t> anchors = {5, 300, 70'000};
  for (const bool shuffle : {true, false}) {
    MixtureOptions options{
        .weights = {0.5, 0.3, 0.2}, .temperature = {}, .samples_per_epoch = 1000, .shuffle = shuffle};
    std::vector<MixtureTables> tables = {MixtureTables(anchors, options)};
    const auto mixture = [&](const MixtureTables& table) {
      Mixture result = tables[0].mixture().at_epoch(7, 0);
      result.table = table.table().data();
      return result;
    };
    options.changed = {"a", "b", "c"};
    std::vector<uint64_t> counts(anchors.size());
    uint64_t draw = 0;
    for (const auto& [weights, end] : std::vector<std::pair<std::vector<double>, uint64_t>>{
             {{0.5, 0.3, 0.2}, 40'000}, {{0, 1, 3}, 40'001}, {{1, 0, 0}, 200'000}, {{2, 3, 1}, 400'000}}) {
      options.weights.assign(weights.begin(), weights.end());
      MixtureTables next(anchors, options);
      next.continue_from(mixture(tables.back()), draw);
      const Mixture changed_mixture = mixture(next);
      for (; draw < end; ++draw) {
        const Draw actual = changed_mixture.at(static_cast<int64_t>(draw));
        const auto source = static_cast<size_t>(actual.source);
        ASSERT_GT(weights[source], 0);
        const uint64_t source_draw = counts[source]++;
        const auto n = static_cast<uint64_t>(anchors[source]);
        const Order order =
            Order::of(anchors[source], shuffle).keyed(changed_mixture.seed_of(actual.source), source_draw / n);
        ASSERT_EQ(actual.anchor, order.at(static_cast<int64_t>(source_draw % n))) << draw;
      }
      tables.push_back(std::move(next));
    }
  }
}

}  // namespace
}  // namespace robocache
