#include "robocache/batch/prefetch.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "robocache/core/backend.hpp"
#include "robocache/core/error.hpp"
#include "robocache/core/thread_pool.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/expect_refused.hpp"
#include "tests/cpp/in_a_child.hpp"

namespace robocache::test {
namespace {

constexpr int64_t kPart = 1 << 14;  // elements that the host makes of a batch, in two pieces
constexpr int64_t kGap = 64;        // and others before, between and behind them
constexpr int64_t kBatch = kPart + 3 * kGap;

struct Staging {
  const char* name;
  DeviceType device;
  bool staged;
};

// The host's part of batches of int32, by each way. Every batch has memory of its own, full of -1.
class PrefetchTest : public testing::TestWithParam<Staging> {
 protected:
  void SetUp() override { skip_unless_usable(device()); }

  static Device device() { return {GetParam().device, 0}; }

  static Prefetcher prefetcher(int64_t depth) {
    if (!GetParam().staged) return {device(), depth};
    constexpr int64_t kHalf = kPart / 2 * 4;
    return {device(), depth, 2 * kHalf, {{0, kGap * 4, kHalf}, {kHalf, (2 * kGap + kPart / 2) * 4, kHalf}}};
  }

  static DeviceBuffer memory() {
    DeviceBuffer made(device(), kBatch * 4);
    const std::vector<int32_t> minus(kBatch, -1);
    made.fill_from_host(minus.data(), minus.size() * 4);
    return made;
  }

  // Numbers from `first` on, where the host's part of the batch is, be it the batch or its slot.
  static void make(int32_t first, void* to) {
    auto* at = static_cast<int32_t*>(to);
    for (int32_t i = 0; i < kPart; ++i) {
      const bool second = i >= kPart / 2;
      at[GetParam().staged ? i : i + (second ? 2 * kGap : kGap)] = first + i;
    }
  }
  static Prefetcher::Make maker(int32_t first) {
    return [first](void* to, const std::atomic<bool>&) { make(first, to); };
  }

  static bool is_made(const DeviceBuffer& from, int32_t first, CudaStream stream = {}) {
    std::vector<int32_t> got(kBatch);
    if (device().is_cuda()) {
      check_cuda(cuda_backend().copy_to_host(0, got.data(), from.data(), from.bytes(), stream.handle), "read");
      check_cuda(cuda_backend().synchronize(0, stream.handle), "read");
    } else {
      std::memcpy(got.data(), from.data(), from.bytes());
    }
    std::vector<int32_t> expected(kBatch, -1);
    for (int32_t i = 0; i < kPart; ++i) {
      expected[static_cast<size_t>(i + (i >= kPart / 2 ? 2 * kGap : kGap))] = first + i;
    }
    return got == expected;
  }

  OwnedCudaStream consumer_{cuda_device_count() > 0 ? device() : Device{}};
};

INSTANTIATE_TEST_SUITE_P(Ways, PrefetchTest,
                         testing::Values(Staging{"cpu", DeviceType::kCpu, false},
                                         Staging{"cpu_staged", DeviceType::kCpu, true},
                                         Staging{"cuda_staged", DeviceType::kCuda, true}),
                         [](const auto& way) { return std::string(way.param.name); });

TEST_P(PrefetchTest, GivesEveryBatchInOrder) {
  for (const int64_t depth : {1, 2, 5}) {
    Prefetcher ahead = prefetcher(depth);
    EXPECT_EQ(ahead.depth(), depth);
    constexpr int32_t kBatches = 60;
    std::vector<DeviceBuffer> memories;
    for (int32_t step = 0, next = 0; step < kBatches; ++step) {
      for (; next < kBatches && ahead.pending() < depth; ++next) {
        memories.push_back(memory());
        ahead.submit(maker(1000 * next), memories.back().data(), consumer_.get());
      }
      EXPECT_EQ(ahead.pending(), std::min<int64_t>(depth, kBatches - step));
      ahead.take(consumer_.get());
      EXPECT_TRUE(is_made(memories[static_cast<size_t>(step)], 1000 * step, consumer_.get())) << step;
    }
    EXPECT_EQ(ahead.pending(), 0);
  }
}

TEST_P(PrefetchTest, WorksAheadWhileNobodyWaits) {
  Prefetcher ahead = prefetcher(3);
  std::atomic<int> made = 0;
  std::vector<DeviceBuffer> memories;
  for (int32_t i = 0; i < 3; ++i) {
    memories.push_back(memory());
    ahead.submit(
        [&made, i](void* to, const std::atomic<bool>&) {
          make(i, to);
          ++made;
        },
        memories.back().data(), consumer_.get());
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (made < 3 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(made, 3);
  for (int32_t i = 0; i < 3; ++i) {
    ahead.take(consumer_.get());
    EXPECT_TRUE(is_made(memories[static_cast<size_t>(i)], i, consumer_.get()));
  }
}

TEST_P(PrefetchTest, WhatABatchThrowsItsTakerThrows) {
  Prefetcher ahead = prefetcher(3);
  for (int round = 0; round < 3; ++round) {
    std::vector<DeviceBuffer> memories;
    for (int32_t i = 0; i < 3; ++i) {
      memories.push_back(memory());
      ahead.submit(
          [i](void* to, const std::atomic<bool>&) {
            if (i == 1) throw FileError("batch 1");
            make(i, to);
          },
          memories.back().data(), consumer_.get());
    }
    ahead.take(consumer_.get());
    EXPECT_TRUE(is_made(memories[0], 0, consumer_.get()));
    expect_refused<FileError>([&] { ahead.take(consumer_.get()); }, "batch 1");
    EXPECT_EQ(ahead.pending(), 1);
    ahead.take(consumer_.get());
    EXPECT_TRUE(is_made(memories[2], 2, consumer_.get()));
  }
}

// One that is being made until it is cancelled, and two behind it.
template <class Submit>
void submit_endless(const Submit& submit, std::atomic<bool>& begun, std::atomic<int>& others) {
  begun = false;
  submit([&begun](void*, const std::atomic<bool>& cancelled) {
    begun = true;
    while (!cancelled) std::this_thread::yield();
  });
  for (int i = 0; i < 2; ++i) submit([&others](void*, const std::atomic<bool>&) { ++others; });
}

TEST_P(PrefetchTest, CancelEndsWhatHasBegunAndDropsTheRest) {
  Prefetcher ahead = prefetcher(3);
  std::atomic<bool> begun = false;
  std::atomic<int> others = 0;
  for (int round = 0; round < 20; ++round) {
    const DeviceBuffer memories[3] = {memory(), memory(), memory()};
    int at = 0;
    submit_endless([&](auto make) { ahead.submit(make, memories[at++].data(), consumer_.get()); }, begun, others);
    while (round % 2 == 0 && !begun) std::this_thread::yield();
    ahead.cancel();
    EXPECT_EQ(ahead.pending(), 0);
    ahead.submit(maker(7), memories[1].data(), consumer_.get());
    ahead.take(consumer_.get());
    EXPECT_TRUE(is_made(memories[1], 7, consumer_.get()));
  }
  EXPECT_EQ(others, 0);
  ahead.cancel();
}

TEST_P(PrefetchTest, DestructionEndsWhatHasBegunAndDropsTheRest) {
  std::atomic<bool> begun = false;
  std::atomic<int> others = 0;
  const DeviceBuffer memories[3] = {memory(), memory(), memory()};
  for (int round = 0; round < 20; ++round) {
    Prefetcher ahead = prefetcher(3);
    int at = 0;
    submit_endless([&](auto make) { ahead.submit(make, memories[at++].data(), consumer_.get()); }, begun, others);
    while (round % 2 == 0 && !begun) std::this_thread::yield();
  }
  EXPECT_EQ(others, 0);
}

TEST_P(PrefetchTest, AWaitThatIsInterruptedLeavesTheBatch) {
  struct Interrupt {};
  Prefetcher ahead = prefetcher(1);
  std::atomic<bool> begun = false;
  std::atomic<bool> go = false;
  const DeviceBuffer made = memory();
  ahead.submit(
      [&](void* to, const std::atomic<bool>&) {
        begun = true;
        while (!go) std::this_thread::yield();
        make(3, to);
      },
      made.data(), consumer_.get());
  while (!begun) std::this_thread::yield();
  int checks = 0;
  EXPECT_THROW(ahead.take(consumer_.get(),
                          [&] {
                            if (++checks == 3) throw Interrupt();
                          }),
               Interrupt);
  EXPECT_EQ(checks, 3);
  EXPECT_EQ(ahead.pending(), 1);
  go = true;
  ahead.take(consumer_.get(), [] {});
  EXPECT_TRUE(is_made(made, 3, consumer_.get()));
}

// Whether its thread has begun or not: who makes a long batch himself hears of no signal.
TEST_P(PrefetchTest, AWaitForALongBatchIsInterruptedAtOnce) {
  struct Interrupt {};
  using std::chrono::milliseconds;
  using Clock = std::chrono::steady_clock;
  const auto began = Clock::now();
  const DeviceBuffer memories[] = {memory(), memory()};
  const int64_t ranges = int64_t{4000} * num_threads();  // 80 s of each thread
  std::atomic<int64_t> ran = 0;
  {
    Prefetcher ahead = prefetcher(2);
    for (const DeviceBuffer& to : memories) {
      const Prefetcher::Make make = [&](void*, const std::atomic<bool>&) {
        parallel_for(ranges, 1, [&](int64_t, int64_t) {
          ++ran;
          std::this_thread::sleep_for(milliseconds(20));
        });
      };
      ahead.submit(make, to.data(), consumer_.get());
    }
    EXPECT_THROW(ahead.take(consumer_.get(), [] { throw Interrupt(); }), Interrupt);
    EXPECT_EQ(ahead.pending(), 2);
  }
  EXPECT_LT(ran, ranges / 4);  // nor does anybody wait for the rest of it
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(10));
}

TEST_P(PrefetchTest, MoreThanItsDepthAndLessThanNothingAreRefused) {
  for (const int64_t bad : {int64_t{0}, int64_t{-1}, int64_t{65}}) {
    expect_refused<ArgumentError>([&] { prefetcher(bad); },
                                  "prefetch: expected 1 to 64 batches, got " + std::to_string(bad));
  }
  Prefetcher ahead = prefetcher(1);
  expect_refused<ArgumentError>([&] { ahead.take(consumer_.get()); }, "prefetch: ", "none pending");
  const DeviceBuffer made = memory();
  ahead.submit(maker(1), made.data(), consumer_.get());
  expect_refused<ArgumentError>([&] { ahead.submit(maker(2), made.data(), consumer_.get()); },
                                "prefetch: ", "beyond the 1");
  ahead.take(consumer_.get());
  EXPECT_TRUE(is_made(made, 1, consumer_.get()));
}

TEST_P(PrefetchTest, AMovedOneGoesOn) {
  Prefetcher first = prefetcher(2);
  const DeviceBuffer made = memory();
  first.submit(maker(9), made.data(), consumer_.get());
  Prefetcher second(std::move(first));
  second.take(consumer_.get());
  EXPECT_TRUE(is_made(made, 9, consumer_.get()));
}

// Both sides fall asleep and are woken, in every order; each batch is made once.
TEST_P(PrefetchTest, NobodySleepsForever) {
  Prefetcher ahead = prefetcher(2);
  const DeviceBuffer memories[2] = {memory(), memory()};
  std::vector<std::atomic<int>> made(1000);
  for (int i = 0; i < 1000; ++i) {
    ahead.submit(
        [i, &made](void*, const std::atomic<bool>&) {
          ++made[static_cast<size_t>(i)];
          if (i % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(i % 130));
        },
        memories[i % 2].data(), consumer_.get());
    if (i % 11 == 0) std::this_thread::sleep_for(std::chrono::microseconds(i % 150));
    if (ahead.pending() == 2) ahead.take(consumer_.get());
  }
  while (ahead.pending() > 0) ahead.take(consumer_.get());
  for (const std::atomic<int>& times : made) EXPECT_EQ(times, 1);
}

// ---- On CUDA ----

// The batch's memory is still read by what was queued before.
// Also where it comes at the very moment at which the thread gives up looking for one.
TEST_P(PrefetchTest, EveryBatchIsMadeOnce) {
  constexpr int64_t kBatches = 30'000;
  const DeviceBuffer to = memory();
  const auto made = std::make_unique<std::atomic<int>[]>(kBatches);
  {
    Prefetcher ahead = prefetcher(1);
    for (int64_t batch = 0; batch < kBatches; ++batch) {
      const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(batch * 7919 % 30'000);
      while (std::chrono::steady_clock::now() < until) {
      }
      ahead.submit([&made, batch](void*, const std::atomic<bool>&) { ++made[static_cast<size_t>(batch)]; }, to.data(),
                   consumer_.get());
      ahead.take(consumer_.get());
    }
  }
  for (int64_t batch = 0; batch < kBatches; ++batch) ASSERT_EQ(made[static_cast<size_t>(batch)].load(), 1) << batch;
}

TEST_P(PrefetchTest, WhoIsSoonBackMakesAPartOfTheBatch) {
  if (num_threads() == 1) GTEST_SKIP() << "one thread makes a batch";
  Prefetcher ahead = prefetcher(2);
  std::atomic<int> by_taker = 0;
  const auto taker = std::this_thread::get_id();
  const Prefetcher::Make make = [&](void*, const std::atomic<bool>&) {
    const bool taken_over = std::this_thread::get_id() == taker;  // all of it
    parallel_for(20, 1, [&, taken_over](int64_t, int64_t) {
      if (!taken_over && std::this_thread::get_id() == taker) ++by_taker;
      const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
      while (std::chrono::steady_clock::now() < until) {
      }
    });
  };
  const DeviceBuffer memories[] = {memory(), memory(), memory()};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  ahead.submit(make, memories[0].data(), consumer_.get());
  for (int next = 1; by_taker == 0 && std::chrono::steady_clock::now() < deadline; ++next) {
    ahead.submit(make, memories[next % 3].data(), consumer_.get());
    ahead.take(consumer_.get());
  }
  ahead.cancel();
  EXPECT_GT(by_taker, 0);
}

TEST_P(PrefetchTest, CopiesWaitForWhatUsesTheMemory) {
  if (!device().is_cuda()) GTEST_SKIP() << "nothing is queued on the CPU";
  Prefetcher ahead = prefetcher(2);
  const DeviceBuffer made = memory();
  const PinnedBuffer before(device(), made.bytes());
  const DeviceBuffer large(device(), size_t{256} << 20);
  const PinnedBuffer away(device(), large.bytes());
  const auto copy = [&](void* to, const DeviceBuffer& from) {
    check_cuda(cuda_backend().copy_to_host(0, to, from.data(), from.bytes(), consumer_.get().handle), "copy");
  };
  for (int i = 0; i < 20; ++i) copy(away.data(), large);  // about a tenth of a second
  copy(before.data(), made);
  ahead.submit(maker(5), made.data(), consumer_.get());
  ahead.take(consumer_.get());
  EXPECT_TRUE(is_made(made, 5, consumer_.get()));
  const auto* const old = static_cast<const int32_t*>(before.data());
  EXPECT_EQ(std::vector<int32_t>(old, old + kBatch), std::vector<int32_t>(kBatch, -1));
}

// ---- Forks ----

#ifndef __SANITIZE_THREAD__  // ThreadSanitizer does not follow threads that start after a fork.

TEST_P(PrefetchTest, AForkedChildMakesAnewWhatWasPending) {
  if (device().is_cuda()) GTEST_SKIP() << "CUDA does not survive a fork";
  std::optional<Prefetcher> ahead(prefetcher(3));
  std::vector<DeviceBuffer> memories;
  for (int32_t i = 0; i < 5; ++i) memories.push_back(memory());
  std::atomic<bool> go = false;
  ahead->submit(maker(0), memories[0].data(), consumer_.get());
  ahead->take(consumer_.get());
  ahead->submit(maker(1000), memories[1].data(), consumer_.get());
  ahead->submit(
      [&go](void* to, const std::atomic<bool>& cancelled) {
        while (!go && !cancelled) std::this_thread::yield();
        make(2000, to);
      },
      memories[2].data(), consumer_.get());
  const auto goes_on = [&] {
    go = true;
    ahead->submit(maker(3000), memories[3].data(), consumer_.get());
    for (size_t i = 1; i < 4; ++i) {
      ahead->take(consumer_.get());
      if (!is_made(memories[i], 1000 * static_cast<int32_t>(i))) return 1;
    }
    return ahead->pending() == 0 ? 0 : 2;
  };
  EXPECT_EQ(in_a_child(goes_on), 0);
  EXPECT_EQ(in_a_child([&] {
              ahead->cancel();
              if (ahead->pending() != 0) return 1;
              ahead->submit(maker(7), memories[4].data(), consumer_.get());
              ahead->take(consumer_.get());
              return is_made(memories[4], 7) ? 0 : 2;
            }),
            0);
  EXPECT_EQ(in_a_child([&] {
              ahead.reset();
              return 0;
            }),
            0);
  // A child of a child.
  EXPECT_EQ(in_a_child([&] {
              go = true;
              ahead->take(consumer_.get());
              return in_a_child([&] {
                ahead->take(consumer_.get());
                return is_made(memories[2], 2000) ? 0 : 1;
              });
            }),
            0);
  EXPECT_EQ(goes_on(), 0);  // and the parent
}

#endif

}  // namespace
}  // namespace robocache::test
