// Runs a part of a test with another number of threads.
#pragma once

#include "robocache/core/thread_pool.hpp"

namespace robocache::test {

// Sets the number of threads while it lives.
class Threads {
 public:
  explicit Threads(int n) { set_num_threads(n); }
  ~Threads() { set_num_threads(previous_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int previous_ = num_threads();
};

}  // namespace robocache::test
