// The CPU loop, built once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "robocache/align/window_params.hpp"
#include "robocache/core/ranges.hpp"

namespace robocache {

// Fills the samples of the batch that these ranges give. Throws FileError where rows lie in a file.
using WindowSamples = void(const WindowBatch& batch, Ranges& samples);

// Memory of the thread's own, of at least so many bytes; what it held is lost.
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
