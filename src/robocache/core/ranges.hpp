// The ranges that a thread takes of a parallel_ranges() (core/thread_pool.hpp). The functions are virtual, because the
// caller may be compiled for another instruction set than the pool.
#pragma once

#include <cstdint>

namespace robocache {

class Ranges {
 public:
  // Returns the next range, if any is left for this thread; else leaves both arguments as they are.
  virtual bool next(int64_t& begin, int64_t& end) = 0;

 protected:
  ~Ranges() = default;
};

}  // namespace robocache
