// The threads that CPU work runs on. No result depends on their number.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "robocache/core/ranges.hpp"

namespace robocache {

// Threads used by parallel_for, the caller's included: ROBOCACHE_NUM_THREADS where set, else the cores this process may
// run on.
int num_threads();

// Throws ArgumentError unless 1 <= n <= 4096. Not while a parallel_for runs in another thread.
void set_num_threads(int64_t n);

// Calls body(begin, end) over disjoint ranges that cover [0, n), each `grain` long but the last, and returns when all are
// done. The caller works too. Ranges run on any thread and end in any order, but begin in theirs, so that one may wait
// for those before it. The first exception a range throws is rethrown here once every range has ended. A call inside a
// range, or one while another thread's call is running, runs on the caller's thread alone. Safe after fork(): a child
// starts with threads of its own.
void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

// The same for work that begins a range before it has ended the one before: calls body(ranges) on each thread that takes part,
// which takes ranges until there are none, and returns when it has done them all. It is called once more where it threw.
void parallel_ranges(int64_t n, int64_t grain, const std::function<void(Ranges& ranges)>& body);

// While it lives, a parallel_for of this thread begins no further range once `by` is true, and throws Cancelled when those that
// run have ended: nobody wants what they make.
class Cancellable {
 public:
  explicit Cancellable(const std::atomic<bool>& by);
  ~Cancellable();
  Cancellable(const Cancellable&) = delete;
  Cancellable& operator=(const Cancellable&) = delete;

 private:
  const std::atomic<bool>* before_;
};

struct Cancelled {};

}  // namespace robocache
