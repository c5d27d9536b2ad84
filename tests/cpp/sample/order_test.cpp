#include "robocache/sample/order.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace robocache {
namespace {

Order order_of(int64_t n, uint64_t seed, int64_t epoch, bool shuffle = true) {
  return Order::of(n, shuffle).keyed(seed, static_cast<uint64_t>(epoch));
}

std::vector<int64_t> whole_order(int64_t n, uint64_t seed, int64_t epoch, bool shuffle = true) {
  const Order order = order_of(n, seed, epoch, shuffle);
  std::vector<int64_t> samples;
  for (int64_t position = 0; position < n; ++position) samples.push_back(order.at(position));
  return samples;
}

// Training runs resume by (seed, epoch, position), so these numbers may never change. Another program computed them.
TEST(Order, NeverChanges) {
  EXPECT_EQ(whole_order(10, 0, 0), (std::vector<int64_t>{2, 5, 0, 8, 6, 1, 9, 3, 7, 4}));
  EXPECT_EQ(whole_order(10, 0, 1), (std::vector<int64_t>{3, 2, 8, 9, 6, 7, 1, 4, 5, 0}));
  EXPECT_EQ(whole_order(10, 1, 0), (std::vector<int64_t>{6, 1, 9, 3, 5, 2, 4, 7, 0, 8}));
  const auto five_samples = [](int64_t n, uint64_t seed, int64_t epoch) {
    const Order order = order_of(n, seed, epoch);
    return std::vector<int64_t>{order.at(0), order.at(1), order.at(2), order.at(n / 2), order.at(n - 1)};
  };
  EXPECT_EQ(five_samples(257, 7, 3), (std::vector<int64_t>{215, 238, 61, 94, 209}));
  EXPECT_EQ(five_samples(1'000'003, std::numeric_limits<uint64_t>::max(), 12),
            (std::vector<int64_t>{720937, 597546, 410014, 252801, 360746}));
  EXPECT_EQ(five_samples((int64_t{1} << 40) + 1, 42, -1),
            (std::vector<int64_t>{1029925494238, 16731819491, 845810503007, 776372355500, 318939009401}));
  EXPECT_EQ(five_samples(std::numeric_limits<int64_t>::max(), 5, int64_t{1} << 40),
            (std::vector<int64_t>{3442159084096685788, 8496463068582815052, 6936343490032599726, 7737497381770487674,
                                  2115441781688407216}));
}

// ---- Statistics. The seeds are fixed, so a test that passes once always passes. ----

// Chi-square of equally likely cells. Its cube root is nearly normal (Wilson and Hilferty, 1931); four standard
// deviations are allowed on each side.
void expect_uniform(const std::vector<int64_t>& counts, const std::string& what) {
  const double total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  const double expected = total / static_cast<double>(counts.size());
  ASSERT_GE(expected, 10) << what << ": too few draws to tell";
  double chi_square = 0;
  for (const int64_t count : counts) {
    const double difference = static_cast<double>(count) - expected;
    chi_square += difference * difference / expected;
  }
  const auto freedom = static_cast<double>(counts.size() - 1);
  const double variance = 2 / (9 * freedom);
  const double deviations = (std::cbrt(chi_square / freedom) - (1 - variance)) / std::sqrt(variance);
  EXPECT_LT(std::abs(deviations), 4) << what << ": chi-square " << chi_square << " of " << freedom;
}

TEST(Order, EveryPermutationOfThreeToFiveSamplesIsEquallyLikely) {
  for (const int64_t n : {3, 4, 5}) {
    std::vector<int64_t> counts(n == 3 ? 6 : n == 4 ? 24 : 120, 0);
    for (int64_t epoch = 0; epoch < 12'000; ++epoch) {
      const std::vector<int64_t> order = whole_order(n, 4, epoch);
      int64_t rank = 0;  // rank in lexicographic order
      for (int64_t i = 0; i < n; ++i) {
        int64_t smaller = 0;
        for (int64_t j = i + 1; j < n; ++j) smaller += order[static_cast<size_t>(j)] < order[static_cast<size_t>(i)];
        rank = rank * (n - i) + smaller;
      }
      ++counts[static_cast<size_t>(rank)];
    }
    expect_uniform(counts, "permutations of " + std::to_string(n));
  }
}

}  // namespace
}  // namespace robocache
