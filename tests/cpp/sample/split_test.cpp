#include "robocache/sample/split.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "robocache/core/error.hpp"
#include "tests/cpp/expect_refused.hpp"

namespace robocache {
namespace {

using Counts = std::vector<int64_t>;

int64_t changed(const std::vector<int64_t>& before, const std::vector<int64_t>& now) {
  int64_t count = 0;
  for (size_t i = 0; i < before.size(); ++i) count += before[i] != now[i] ? 1 : 0;
  return count;
}

TEST(Split, EachPartHasItsCount) {
  for (const int64_t n : {0, 1, 2, 3, 10, 1000}) {
    for (const Counts& counts :
         {Counts{}, Counts{n}, Counts{0, n, 0}, Counts{n / 2, n / 3}, Counts{n - n / 5, n / 5}}) {
      const std::vector<int64_t> part = split(n, counts, 7);
      ASSERT_EQ(static_cast<int64_t>(part.size()), n);
      int64_t drawn = 0;
      for (size_t p = 0; p < counts.size(); ++p) {
        EXPECT_EQ(std::ranges::count(part, static_cast<int64_t>(p)), counts[p]);
        drawn += counts[p];
      }
      EXPECT_EQ(std::ranges::count(part, -1), n - drawn);
    }
  }
}

// What was validation must stay so on every machine: these numbers were worked out by another program.
TEST(Split, NeverChanges) {
  EXPECT_EQ(split(10, Counts{7, 2}, 0), (std::vector<int64_t>{0, 0, 1, 0, 0, -1, 0, 1, 0, 0}));
  EXPECT_EQ(split(10, Counts{7, 2}, 1), (std::vector<int64_t>{1, 0, -1, 0, 1, 0, 0, 0, 0, 0}));
  EXPECT_EQ(split(10, Counts{7, 2}, std::numeric_limits<uint64_t>::max()),
            (std::vector<int64_t>{0, 0, 1, 0, -1, 0, 0, 1, 0, 0}));
}

TEST(Split, AnotherSeedDrawsOthers) {
  // Of 1000 in two equal parts, another seed's draw has 500 in another part: 16 is the standard deviation.
  const std::vector<int64_t> part = split(1000, Counts{500, 500}, 0);
  for (const uint64_t seed : {1u, 2u, 3u}) EXPECT_NEAR(changed(part, split(1000, Counts{500, 500}, seed)), 500, 64);
}

TEST(Split, ThingsAddedBehindMoveFewOthers) {
  const std::vector<int64_t> part = split(1000, Counts{900, 100}, 3);
  // One more that is drawn for a part pushes one over each bound behind it, if any.
  EXPECT_LE(changed(part, split(1001, Counts{901, 100}, 3)), 1);
  EXPECT_LE(changed(part, split(1100, Counts{990, 110}, 3)), 40);
}

TEST(Split, RefusesCountsThatDoNotFit) {
  const std::string start = "shares: expected counts of at least 0, together at most 10, got ";
  test::expect_refused<ArgumentError>([] { split(10, Counts{4, -1}, 0); }, start + "-1");
  test::expect_refused<ArgumentError>([] { split(10, Counts{4, 7}, 0); }, start + "7 of the 6 left");
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  test::expect_refused<ArgumentError>([] { split(10, Counts{kMost, kMost}, 0); }, start);
}

}  // namespace
}  // namespace robocache
