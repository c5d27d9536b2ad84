#include "robocache/batch/work_queue.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "robocache/core/error.hpp"
#include "robocache/core/thread_pool.hpp"
#include "tests/cpp/expect_refused.hpp"
#include "tests/cpp/in_a_child.hpp"

namespace robocache::test {
namespace {

using Clock = std::chrono::steady_clock;

TEST(WorkQueue, DoesWorkInTheOrderOfItsSubmission) {
  for (const int64_t most_pending : {1, 2, 5}) {
    WorkQueue queue;
    std::vector<int> done;
    for (int step = 0, next = 0; step < 60; ++step) {
      for (; next < 60 && queue.pending() < most_pending; ++next) {
        queue.submit([&done, next](const std::atomic<bool>&) { done.push_back(next); });
      }
      EXPECT_EQ(queue.pending(), std::min<int64_t>(most_pending, 60 - step));
      queue.take();
      if (most_pending == 1) {
        EXPECT_EQ(std::ssize(done), step + 1);
      }
    }
    EXPECT_EQ(queue.pending(), 0);
    ASSERT_EQ(done.size(), 60);
    for (int i = 0; i < 60; ++i) EXPECT_EQ(done[static_cast<size_t>(i)], i);
  }
}

TEST(WorkQueue, WorksWhileNobodyWaits) {
  WorkQueue queue;
  std::atomic<int> done = 0;
  for (int i = 0; i < 3; ++i) queue.submit([&done](const std::atomic<bool>&) { ++done; });
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  while (done < 3 && Clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(done, 3);
  EXPECT_EQ(queue.pending(), 3);
}

TEST(WorkQueue, TakeThrowsTheWorksException) {
  WorkQueue queue;
  for (int round = 0; round < 3; ++round) {
    std::atomic<int> done = 0;
    for (int i = 0; i < 3; ++i) {
      queue.submit([&done, i](const std::atomic<bool>&) {
        if (i == 1) throw FileError("batch 1");
        ++done;
      });
    }
    queue.take();
    expect_refused<FileError>([&] { queue.take(); }, "batch 1");
    EXPECT_EQ(queue.pending(), 1);
    queue.take();
    EXPECT_EQ(done, 2);
  }
}

TEST(WorkQueue, CancelAndDestructionStopRunningWorkAndDropTheRest) {
  std::atomic<bool> begun = false;
  std::atomic<int> others = 0;
  std::optional<WorkQueue> queue;
  for (int round = 0; round < 40; ++round) {
    begun = false;
    if (!queue) queue.emplace();
    queue->submit([&begun](const std::atomic<bool>& cancelled) {
      begun = true;
      while (!cancelled) std::this_thread::yield();
    });
    for (int i = 0; i < 2; ++i) queue->submit([&others](const std::atomic<bool>&) { ++others; });
    while (round % 2 == 0 && !begun) std::this_thread::yield();
    if (round >= 20) {
      queue.reset();
      continue;
    }
    queue->cancel();
    EXPECT_EQ(queue->pending(), 0);
    bool done = false;
    queue->submit([&done](const std::atomic<bool>& cancelled) { done = !cancelled; });
    queue->take();
    EXPECT_TRUE(done);
    queue->cancel();  // the queue is empty
  }
  EXPECT_EQ(others, 0);
}

struct Interrupt {};

TEST(WorkQueue, AnInterruptedWaitKeepsTheWork) {
  WorkQueue queue;
  std::atomic<bool> may_finish = false;
  bool done = false;
  queue.submit([&](const std::atomic<bool>&) {
    while (!may_finish) std::this_thread::yield();
    done = true;
  });
  int checks = 0;
  const auto interrupt_third = [&] {
    if (++checks == 3) throw Interrupt();
  };
  EXPECT_THROW(queue.take(interrupt_third), Interrupt);
  EXPECT_EQ(checks, 3);
  EXPECT_EQ(queue.pending(), 1);
  may_finish = true;
  queue.take([] {});
  EXPECT_TRUE(done);
}

TEST(WorkQueue, AWaitForLongWorkIsInterruptedAtOnce) {
  using std::chrono::milliseconds;
  const auto began = Clock::now();
  const int64_t ranges = int64_t{4000} * num_threads();  // 80 s for each thread
  std::atomic<int64_t> ran = 0;
  {
    WorkQueue queue;
    for (int i = 0; i < 2; ++i) {
      queue.submit([&](const std::atomic<bool>&) {
        parallel_for(ranges, 1, [&](int64_t, int64_t) {
          ++ran;
          std::this_thread::sleep_for(milliseconds(20));
        });
      });
    }
    EXPECT_THROW(queue.take([] { throw Interrupt(); }), Interrupt);
    EXPECT_EQ(queue.pending(), 2);
  }
  EXPECT_LT(ran, ranges / 4);  // the destructor does not wait for the rest either
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(10));
}

// The caller and the queue's thread sleep and wake each other, in every order.
TEST(WorkQueue, DoesEachWorkOnce) {
  constexpr int kWorks = 20'000;
  const auto run_counts = std::make_unique<std::atomic<int>[]>(kWorks);
  WorkQueue queue;
  for (int i = 0; i < kWorks; ++i) {
    queue.submit([i, &run_counts](const std::atomic<bool>&) {
      ++run_counts[static_cast<size_t>(i)];
      if (i % 70 == 0) std::this_thread::sleep_for(std::chrono::microseconds(i % 130));
    });
    if (i % 110 == 0) std::this_thread::sleep_for(std::chrono::microseconds(i % 150));
    const auto until = Clock::now() + std::chrono::nanoseconds(int64_t{i} * 7919 % 30'000);
    while (Clock::now() < until) {
    }
    if (queue.pending() > i % 3) queue.take();
    while (queue.pending() > 3) queue.take();
  }
  while (queue.pending() > 0) queue.take();
  for (int i = 0; i < kWorks; ++i) ASSERT_EQ(run_counts[static_cast<size_t>(i)], 1) << i;
}

#ifndef __SANITIZE_THREAD__  // ThreadSanitizer does not follow threads that start after a fork.

TEST(WorkQueue, IsEmptyInAForkedChild) {
  std::optional<WorkQueue> queue(std::in_place);
  std::atomic<bool> may_finish = false;
  int done = 0;
  queue->submit([&](const std::atomic<bool>& cancelled) {
    while (!may_finish && !cancelled) std::this_thread::yield();
  });
  queue->submit([&](const std::atomic<bool>&) { done = 1; });
  const auto queue_works = [&] {
    if (queue->pending() != 0) return 1;
    try {
      queue->take();
      return 3;
    } catch (const std::logic_error&) {
    }
    queue->submit([&](const std::atomic<bool>&) { done = 7; });
    queue->take();
    return done == 7 ? 0 : 2;
  };
  EXPECT_EQ(in_a_child(queue_works), 0);
  EXPECT_EQ(in_a_child([&] {
              queue->cancel();
              return queue_works() + in_a_child(queue_works);
            }),
            0);
  EXPECT_EQ(in_a_child([&] {
              queue.reset();
              return 0;
            }),
            0);
  may_finish = true;
  queue->take();
  queue->take();
  EXPECT_EQ(done, 1);  // the work of the children changed only their own memory
}

#endif

}  // namespace
}  // namespace robocache::test
