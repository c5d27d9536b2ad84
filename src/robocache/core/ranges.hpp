// What a thread takes its ranges of a parallel_ranges() from (core/thread_pool.hpp). Virtual: whoever takes them may be built for
// another instruction set than whoever gives them.
#pragma once

#include <cstdint>

namespace robocache {

class Ranges {
 public:
  // The next one, where any is left for this thread; else both stay as they are.
  virtual bool next(int64_t& begin, int64_t& end) = 0;

 protected:
  ~Ranges() = default;
};

}  // namespace robocache
