// The CPU loop, built once per instruction set.
#pragma once

#include <cstdint>

#include "robocache/align/window_params.hpp"

namespace robocache {

// Fills the samples [begin, end) of the batch.
using WindowSamples = void(const WindowBatch& batch, int64_t begin, int64_t end);

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
