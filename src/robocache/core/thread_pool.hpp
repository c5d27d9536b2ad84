// The threads that run CPU work. No result depends on their number.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "robocache/core/ranges.hpp"

namespace robocache {

// Returns the number of threads of parallel_for, including the caller's: the number given to set_num_threads(), else
// ROBOCACHE_NUM_THREADS if set, else the number of cores that this process may use.
int num_threads();

// Throws ArgumentError unless 1 <= n <= 4096. Do not call it while a parallel_for runs in another thread.
void set_num_threads(int64_t n);

// Calls body(begin, end) over disjoint ranges that cover [0, n), each `grain` long except the last, and returns when
// all are done. The caller works too. Ranges begin in order but run on any thread and end in any order, so a range may
// wait for earlier ones. The first exception of a range is rethrown here after every range has ended. A call inside a
// range, or while another thread's call is running, uses the caller's thread alone. A forked child may call it too: the
// child starts its own threads.
void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

// Returns the least i below n for which condition(i) is true, or n if there is none. Calls `condition` as parallel_for
// does, but may leave out any i above the result.
int64_t parallel_first(int64_t n, int64_t grain, const std::function<bool(int64_t i)>& condition);

// Like parallel_for, for work that begins a range before the previous one is finished. Calls body(ranges) on each
// thread. The body takes ranges until none is left and returns when they are all done. A body that throws after it took
// a range is called again for the other ranges.
// Ranges do not begin in order: each thread begins at its own part of [0, n), the same in every call, and then takes
// what others have left. A range may not wait for another one.
void parallel_ranges(int64_t n, int64_t grain, const std::function<void(Ranges& ranges)>& body);

// While this object lives, a parallel_for of this thread begins no further range once `cancel` is true. The
// parallel_for throws Cancelled when the running ranges have ended.
class Cancellable {
 public:
  explicit Cancellable(const std::atomic<bool>& cancel);
  ~Cancellable();
  Cancellable(const Cancellable&) = delete;
  Cancellable& operator=(const Cancellable&) = delete;

 private:
  const std::atomic<bool>* previous_;
};

struct Cancelled {};

}  // namespace robocache
