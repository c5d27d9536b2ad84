// The CPU loop, built once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "robocache/align/window_params.hpp"

namespace robocache {

// What a file did not give.
struct WindowFault {
  int32_t file = -1;  // none
  int64_t offset;
  int64_t bytes;  // asked for
  int64_t got;    // below 0: -errno
};

// Fills the samples [begin, end) of the batch, or gives what stopped it.
using WindowSamples = WindowFault(const WindowBatch& batch, int64_t begin, int64_t end);

// Memory of the thread's own, of at least so many bytes; what it held is lost.
char* window_scratch(size_t bytes);

// Reads [offset, offset + bytes) of a file. Returns what stopped it.
WindowFault read_window(int32_t file, int64_t offset, int64_t bytes, char* to);

namespace baseline {
WindowSamples window_samples;
}
namespace v3 {
WindowSamples window_samples;
}
namespace v4 {
WindowSamples window_samples;
}

}  // namespace robocache
