// Tests the action of Chunks at a moment. The rule, as a loop over all steps, is in tests/python/live.
#include "robocache/live/chunks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "robocache/source/ring.hpp"
#include "tests/cpp/expect_refused.hpp"

namespace robocache {
namespace {

std::vector<double> at(Chunks& chunks, int64_t time_ns) {
  std::vector<double> action;
  if (!chunks.at(time_ns, action)) action.clear();
  return action;
}

void put(Chunks& chunks, std::vector<int64_t> time_ns, std::vector<double> actions) { chunks.put(time_ns, actions); }

TEST(Chunks, AreReadWhileAnotherThreadPutsThem) {
  Chunks chunks({.mode = ChunkMode::kEnsemble});
  std::thread policy([&] {
    for (int64_t k = 0; k < 2000; ++k) put(chunks, {10 * k, 10 * k + 10, 10 * k + 20}, std::vector<double>(21, 1));
  });
  int64_t next = 0;
  for (int64_t now = 0; chunks.covered_until_ns().value_or(0) < 20'010; now = std::max(now, next)) {
    const std::vector<double> action = at(chunks, now);
    if (!action.empty()) {
      EXPECT_EQ(action.size(), 7);
    }
    for (const double number : action) EXPECT_NEAR(number, 1, 1e-12);
    const Chunks::Rest rest = chunks.leftover(now);
    EXPECT_EQ(rest.actions.size(), 7 * rest.time_ns.size());
    if (!rest.time_ns.empty()) next = rest.time_ns.front();
  }
  policy.join();
}

TEST(Chunks, AnyDecayMixesFiniteActions) {
  for (const double decay : {-0.5, -1000.0, 1000.0, -1e308, 1e308}) {
    Chunks chunks({.mode = ChunkMode::kEnsemble, .decay = decay, .turns = {{.begin = 1}}});
    for (double k = 0; k < 3; ++k) put(chunks, {static_cast<int64_t>(k), 100}, {k, k, k, k});
    const double least = std::exp(-0.5);
    const double mean = (2 + least) / (1 + least + least * least);
    const std::vector<double> action = at(chunks, 50);
    EXPECT_NEAR(action[0], decay == -0.5 ? mean : decay < 0 ? 2 : 0, 1e-15);
    EXPECT_NEAR(action[1], action[0], 1e-15);  // the angles 0, 1 and 2 are within half a turn
  }
}

TEST(Chunks, RefuseInvalidArguments) {
  using test::expect_refused;
  expect_refused<ArgumentError>([] { Chunks({.fade_ns = 0}); }, "fade_s: expected above 0");
  expect_refused<ArgumentError>([] { Chunks({.decay = std::numeric_limits<double>::infinity()}); },
                                "decay: expected a finite number");
  Chunks chunks({});
  put(chunks, {0, 1}, {0, 1});
  expect_refused<ArgumentError>([&] { put(chunks, {0, 0}, {0, 1}); }, "time_ns: expected ascending stamps");
  for (const int64_t far : {INT64_MIN, -kLatestNs, kLatestNs, INT64_MAX}) {
    expect_refused<ArgumentError>([&] { put(chunks, {far}, {0}); }, "time_ns: expected stamps between -2^62 and 2^62");
  }
  expect_refused<ArgumentError>([&] { put(chunks, {}, {}); }, "actions: expected as many numbers");
}

}  // namespace
}  // namespace robocache
