// The engine of resample and fuse: computes every segment of a call at the targets.
//
// On CUDA it queues one kernel on `stream` and does not wait; on the CPU the threads of the pool do the work before it
// returns. It reads `segments` before it returns. Throws DeviceError. It checks nothing: the operations check the
// arguments.
#pragma once

#include <cstdint>

#include "robocache/core/device.hpp"
#include "robocache/interpolation/segment.hpp"

namespace robocache {

// The most segments of a call: they are passed as a kernel's arguments.
constexpr int32_t kMaxSegments = 112;

void interpolate(const Interpolation& call, Device device, CudaStream stream);

// The CPU loop, built once per instruction set: fills the entries [begin, end) of the flattened
// [segment_count, batch, targets_count].
using InterpolateEntries = void(const Interpolation& call, int64_t begin, int64_t end);
namespace baseline {
InterpolateEntries interpolate_entries;
}
namespace v3 {
InterpolateEntries interpolate_entries;
}
namespace v4 {
InterpolateEntries interpolate_entries;
}

}  // namespace robocache
