// The CPU loop, built once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "robocache/align/window_params.hpp"
#include "robocache/core/ranges.hpp"

namespace robocache {

// Fills the samples of the batch in these ranges. Throws FileError for rows in a file.
using WindowSamples = void(const WindowBatch& batch, Ranges& samples);

// Returns the thread's own scratch memory, of at least this many bytes. A later call of the thread overwrites it.
char* window_scratch(size_t bytes);

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
