#include "robocache/core/thread_pool.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

#include "robocache/core/error.hpp"

namespace robocache {
namespace {

class ThreadPool : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_num_threads(GetParam()); }
  void TearDown() override { set_num_threads(before_); }

 private:
  int before_ = num_threads();
};

TEST_P(ThreadPool, EachIndexIsVisitedOnceInRangesOfAtMostGrain) {
  for (const int64_t n : {0, 1, 7, 64, 1000, 4097}) {
    for (const int64_t grain : {1, 3, 64, 5000}) {
      std::vector<int> visits(static_cast<size_t>(n), 0);
      std::atomic<bool> too_long = false;
      parallel_for(n, grain, [&](int64_t begin, int64_t end) {
        if (end - begin > grain || begin >= end) too_long = true;
        for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
      });
      EXPECT_FALSE(too_long);
      EXPECT_EQ(visits, std::vector<int>(static_cast<size_t>(n), 1)) << "n " << n << " grain " << grain;
    }
  }
}

TEST_P(ThreadPool, ManyShortJobsFollowEachOther) {
  std::vector<int64_t> sums(8, 0);
  for (int round = 0; round < 2000; ++round) {
    parallel_for(8, 1, [&](int64_t begin, int64_t) { sums[static_cast<size_t>(begin)] += round; });
  }
  EXPECT_EQ(sums, std::vector<int64_t>(8, 2000 * 1999 / 2));
}

TEST_P(ThreadPool, AnExceptionReachesTheCallerAndThePoolGoesOn) {
  const auto job = [] {
    parallel_for(100, 1, [](int64_t begin, int64_t) {
      if (begin == 42) throw std::runtime_error("range 42");
    });
  };
  EXPECT_THROW(job(), std::runtime_error);
  std::atomic<int> ran = 0;
  parallel_for(100, 1, [&](int64_t, int64_t) { ++ran; });
  EXPECT_EQ(ran, 100);
}

TEST_P(ThreadPool, ACallInsideARangeRunsOnThatThread) {
  std::atomic<int> inner = 0;
  std::atomic<bool> elsewhere = false;
  parallel_for(16, 1, [&](int64_t, int64_t) {
    const auto outer_thread = std::this_thread::get_id();
    parallel_for(16, 1, [&](int64_t, int64_t) {
      if (std::this_thread::get_id() != outer_thread) elsewhere = true;
      ++inner;
    });
  });
  EXPECT_EQ(inner, 16 * 16);
  EXPECT_FALSE(elsewhere);
}

TEST_P(ThreadPool, CallersInSeveralThreadsAllFinish) {
  std::atomic<int64_t> total = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        parallel_for(64, 4, [&](int64_t begin, int64_t end) { total += end - begin; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total, 4 * 100 * 64);
}

#ifndef __SANITIZE_THREAD__  // ThreadSanitizer does not follow threads that start after a fork.
TEST_P(ThreadPool, AForkedChildHasThreadsOfItsOwn) {
  parallel_for(64, 1, [](int64_t, int64_t) {});
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // a child that hangs must not hang the test
    std::atomic<int> ran = 0;
    parallel_for(64, 1, [&](int64_t, int64_t) { ++ran; });
    _exit(ran == 64 && num_threads() == GetParam() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}
#endif

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPool, testing::Values(1, 2, 5));

TEST(SetNumThreads, RefusesFewerThanOne) {
  EXPECT_THROW(set_num_threads(0), ArgumentError);
  EXPECT_THROW(set_num_threads(-3), ArgumentError);
}

}  // namespace
}  // namespace robocache
