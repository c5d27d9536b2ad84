#include "robocache/core/thread_pool.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "robocache/core/error.hpp"
#include "tests/cpp/in_a_child.hpp"
#include "tests/cpp/threads.hpp"

namespace robocache {
namespace {

class ThreadPool : public testing::TestWithParam<int> {
  const test::Threads threads_{GetParam()};
};

TEST_P(ThreadPool, EachIndexIsVisitedOnceInRangesOfOneGrain) {
  for (const int64_t n : {0, 1, 7, 64, 1000, 4097}) {
    for (const int64_t grain : {1, 3, 64, 5000}) {
      std::vector<int> visits(static_cast<size_t>(n), 0);
      std::atomic<bool> wrong_range = false;
      parallel_for(n, grain, [&](int64_t begin, int64_t end) {
        if (begin % grain != 0 || end != std::min(n, begin + grain)) wrong_range = true;
        for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
      });
      EXPECT_FALSE(wrong_range);
      EXPECT_EQ(visits, std::vector<int>(static_cast<size_t>(n), 1)) << "n " << n << " grain " << grain;
    }
  }
}

TEST_P(ThreadPool, ARangeMayWaitForEarlierRanges) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<int64_t> ended = 0;
    std::atomic<bool> timed_out = false;
    parallel_for(100, 1, [&](int64_t begin, int64_t) {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (ended < begin && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      if (ended != begin) timed_out = true;
      ++ended;
    });
    EXPECT_FALSE(timed_out);
  }
}

TEST_P(ThreadPool, RangesTakenAheadAreEachTakenOnce) {
  for (const int64_t n : {int64_t{1}, int64_t{7}, int64_t{64}, int64_t{1000}}) {
    std::vector<std::atomic<int>> visits(static_cast<size_t>(n));
    parallel_ranges(n, 3, [&](Ranges& ranges) {
      std::vector<std::pair<int64_t, int64_t>> taken;
      int64_t begin = -1;
      int64_t end = -2;
      while (ranges.next(begin, end)) taken.emplace_back(begin, end);
      // At the end, next() leaves `begin` and `end` as they are.
      const auto last = taken.empty() ? std::pair<int64_t, int64_t>{-1, -2} : taken.back();
      EXPECT_FALSE(ranges.next(begin, end));
      EXPECT_EQ(std::pair(begin, end), last);
      for (const auto& [first, past] : taken) {
        EXPECT_GT(past, first);
        EXPECT_LE(past, first + 3);
        for (int64_t i = first; i < past; ++i) ++visits[static_cast<size_t>(i)];
      }
    });
    for (const auto& visit : visits) ASSERT_EQ(visit, 1) << n;
  }
}

TEST_P(ThreadPool, TheCallerBeginsWithTheFirstRangeAndOthersTakeTheRest) {
  const int64_t n = 1000;
  const int64_t threads = GetParam();
  const std::thread::id caller = std::this_thread::get_id();
  for (int round = 0; round < 20; ++round) {
    std::atomic<int64_t> left = n;
    std::atomic<bool> has_begun = false;
    parallel_ranges(n, 1, [&](Ranges& ranges) {
      const bool is_caller = std::this_thread::get_id() == caller;
      int64_t begin = 0;
      int64_t end = 0;
      bool is_first = true;
      while (ranges.next(begin, end)) {
        if (is_first && is_caller) {
          EXPECT_EQ(begin, 0);
        }
        is_first = false;
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        // Others stay in their first ranges until the caller is in its own, since they may take that one after theirs.
        if (is_caller) has_begun = true;
        while (!has_begun && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
        // The caller stays in its first range until the others have taken all that they can.
        --left;
        while (is_caller && threads > 1 && left > 0 && std::chrono::steady_clock::now() < deadline) {
          std::this_thread::yield();
        }
      }
    });
    EXPECT_EQ(left, 0);
  }
}

TEST_P(ThreadPool, ABodyThatThrowsBeforeItTakesARangeEnds) {
  std::atomic<int> calls = 0;
  EXPECT_THROW(parallel_ranges(100, 1,
                               [&](Ranges&) {
                                 ++calls;
                                 throw std::runtime_error("here");
                               }),
               std::runtime_error);
  EXPECT_LE(calls, GetParam());
}

TEST_P(ThreadPool, ManyShortJobsFollowEachOther) {
  std::vector<int64_t> sums(8, 0);
  for (int round = 0; round < 2000; ++round) {
    parallel_for(8, 1, [&](int64_t begin, int64_t) { sums[static_cast<size_t>(begin)] += round; });
  }
  EXPECT_EQ(sums, std::vector<int64_t>(8, 2000 * 1999 / 2));
}

TEST_P(ThreadPool, RangesRunOnAllThreadsAtOnce) {
  std::atomic<int> arrived = 0;
  std::atomic<bool> is_alone = false;
  parallel_for(GetParam(), 1, [&](int64_t, int64_t) {
    ++arrived;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (arrived < GetParam() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    if (arrived < GetParam()) is_alone = true;
  });
  EXPECT_EQ(arrived, GetParam());
  EXPECT_FALSE(is_alone);
}

TEST_P(ThreadPool, OneOfManyExceptionsIsThrownAfterAllRangesEnded) {
  std::atomic<int> running = 0;
  for (int round = 0; round < 50; ++round) {
    try {
      parallel_for(64, 1, [&](int64_t begin, int64_t) {
        ++running;
        std::this_thread::yield();
        --running;
        if (begin % 3 == 1) throw std::out_of_range("range " + std::to_string(begin));
      });
      FAIL();
    } catch (const std::out_of_range& error) {
      EXPECT_EQ(running, 0) << error.what();
    }
  }
}

TEST_P(ThreadPool, ACallInsideARangeRunsOnThatThread) {
  std::atomic<int> inner = 0;
  std::atomic<bool> on_another_thread = false;
  parallel_for(16, 1, [&](int64_t, int64_t) {
    const auto outer_thread = std::this_thread::get_id();
    parallel_for(16, 1, [&](int64_t, int64_t) {
      if (std::this_thread::get_id() != outer_thread) on_another_thread = true;
      ++inner;
    });
  });
  EXPECT_EQ(inner, 16 * 16);
  EXPECT_FALSE(on_another_thread);
}

// The second caller finds the threads busy and works alone. Calls inside its ranges run on its thread too, even if the
// pool's threads are free by then.
TEST_P(ThreadPool, ACallInsideARangeOfASecondCallerRunsOnThatThread) {
  std::atomic<bool> first_began = false;
  std::atomic<bool> second_began = false;
  std::atomic<bool> first_ended = false;
  std::thread first([&] {
    parallel_for(2, 1, [&](int64_t, int64_t) {
      first_began = true;
      while (!second_began) std::this_thread::yield();
    });
    first_ended = true;
  });
  while (!first_began) std::this_thread::yield();
  std::atomic<bool> on_another_thread = false;
  parallel_for(2, 1, [&](int64_t, int64_t) {
    second_began = true;
    while (!first_ended) std::this_thread::yield();
    const auto outer_thread = std::this_thread::get_id();
    parallel_for(1000, 1, [&](int64_t, int64_t) {
      if (std::this_thread::get_id() != outer_thread) on_another_thread = true;
    });
  });
  first.join();
  EXPECT_FALSE(on_another_thread);
}

TEST_P(ThreadPool, CallersInSeveralThreadsFinishAndGetTheirOwnExceptions) {
  std::atomic<int> caught = 0;
  std::atomic<int64_t> visited = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int round = 0; round < 50; ++round) {
        try {
          parallel_for(16, 1, [&, caller](int64_t begin, int64_t end) {
            if (caller % 2 == 0 && begin == 7) throw caller;
            if (caller % 2 == 1) visited += end - begin;
          });
          if (caller % 2 == 1) ++caught;
        } catch (int thrower) {
          if (thrower == caller) ++caught;
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(caught, 4 * 50);
  EXPECT_EQ(visited, 2 * 50 * 16);
}

TEST_P(ThreadPool, FirstIsTheLeastIndex) {
  for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{1000}}) {
    for (const int64_t first : {int64_t{0}, int64_t{7}, int64_t{640}, int64_t{5000}}) {
      const auto condition = [&](int64_t i) { return i >= first && (i - first) % 3 == 0; };
      EXPECT_EQ(parallel_first(n, 16, condition), std::min(n, first)) << n;
    }
  }
}

#ifndef __SANITIZE_THREAD__  // ThreadSanitizer does not follow threads that start after a fork.

bool works_in_a_child() {
  const int threads = num_threads();
  return test::in_a_child([&] {
           std::atomic<int> ran = 0;
           parallel_for(64, 1, [&](int64_t, int64_t) { ++ran; });
           return ran == 64 && num_threads() == threads ? 0 : 1;
         }) == 0;
}

TEST_P(ThreadPool, AForkedChildHasThreadsOfItsOwn) {
  parallel_for(64, 1, [](int64_t, int64_t) {});
  EXPECT_TRUE(works_in_a_child());
  parallel_for(64, 1, [](int64_t, int64_t) {});  // the parent keeps its own threads
}

TEST_P(ThreadPool, AChildForkedWhileAnotherThreadWorksHasThreadsOfItsOwn) {
  std::atomic<bool> stop = false;
  std::atomic<int> rounds = 0;
  std::thread other([&] {
    for (; !stop; ++rounds) parallel_for(64, 1, [](int64_t, int64_t) {});
  });
  for (int i = 0; i < 10; ++i) {
    const int before = rounds;
    while (rounds == before) std::this_thread::yield();
    EXPECT_TRUE(works_in_a_child());
  }
  stop = true;
  other.join();
}

#endif

TEST_P(ThreadPool, CancelledWorkBeginsNoFurtherRange) {
  std::atomic<bool> cancelled = false;
  std::atomic<int> ran = 0;
  const auto job = [&] {
    parallel_for(1000, 1, [&](int64_t, int64_t) {
      ++ran;
      cancelled = true;
    });
  };
  {
    const Cancellable cancellable(cancelled);
    EXPECT_THROW(job(), Cancelled);
    EXPECT_LE(ran, GetParam());
    ran = 0;
    EXPECT_THROW(job(), Cancelled);
    EXPECT_EQ(ran, 0);
  }
  job();
  EXPECT_EQ(ran, 1000);
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPool, testing::Values(1, 2, 5));

TEST(SetNumThreads, RefusesFewerThanOneAndAnAbsurdNumber) {
  for (const int64_t bad : {int64_t{0}, int64_t{-3}, int64_t{4097}, int64_t{1} << 32}) {
    EXPECT_THROW(set_num_threads(bad), ArgumentError) << bad;
  }
}

// A process reads the environment once, so each value needs its own process.
TEST(NumThreadsDeathTest, FollowsTheEnvironment) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto exit_with_threads = [](const char* text) {
    setenv("ROBOCACHE_NUM_THREADS", text, 1);
    exit(num_threads());
  };
  unsetenv("ROBOCACHE_NUM_THREADS");
  cpu_set_t cores;
  ASSERT_EQ(sched_getaffinity(0, sizeof(cores), &cores), 0);
  EXPECT_EXIT(exit_with_threads("3"), testing::ExitedWithCode(3), "");
  EXPECT_EXIT(exit_with_threads("0"), testing::ExitedWithCode(CPU_COUNT(&cores)), "");
  EXPECT_EXIT(exit_with_threads("many"), testing::ExitedWithCode(CPU_COUNT(&cores)), "");
}

}  // namespace
}  // namespace robocache
