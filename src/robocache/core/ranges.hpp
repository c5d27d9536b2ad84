// The ranges that one thread of a parallel_ranges() takes (core/thread_pool.hpp). The functions are virtual, because
// the caller may be compiled for another instruction set than the pool.
#pragma once

#include <cstdint>

namespace robocache {

class Ranges {
 public:
  // Returns true and the next range, if one is left for this thread; else leaves both arguments unchanged.
  virtual bool next(int64_t& begin, int64_t& end) = 0;

 protected:
  ~Ranges() = default;
};

}  // namespace robocache
