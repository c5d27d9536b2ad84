// The engine under resample and fuse: every segment of a call, brought to its targets.
//
// On CUDA the work is queued on `stream` as one kernel and not waited for; on the CPU it is done on return, on the pool's
// threads. `segments` is read before the call returns. Throws DeviceError. Nothing is checked here: the operations do.
#pragma once

#include <cstdint>

#include "robocache/core/device.hpp"
#include "robocache/interpolation/segment.hpp"

namespace robocache {

// The most segments of a call: they travel as a kernel's arguments.
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
