// Computes a batch in one launch: draws the anchors, searches each stream's clock, interpolates, normalises, converts,
// masks.
//
// Sample i of the batch has the anchor (episode, time) = anchors.at(order.at(first_position + i)). Step k of a segment
// has the target `time + delta_ns[k]`, in the same episode of the segment's stream. A target closer than snap_ns to a
// sample is that sample. For other targets the rules of ops/resample/resample.hpp hold, with `clamp`. Each value
// becomes fma(x, scale, shift) in the work type and is rounded once to the output's type. is_pad is true in three
// cases: outside the recording, where the value is the end sample; in a bracket longer than max_gap_ns, where the value
// is the method's; and if the episode has no rows of the stream, where the value is 0.
//
// All of `memory` is filled for `count` samples, with the same bits on the CPU and on CUDA and for any number of
// threads. On CUDA one kernel is queued on `stream`, and the call does not wait. On the CPU the batch is complete on
// return. Throws DeviceError.
#pragma once

#include "robocache/align/window_params.hpp"
#include "robocache/core/device.hpp"

namespace robocache {

void window_batch(const WindowBatch& batch, Device device, CudaStream stream);

}  // namespace robocache
