// A batch in one launch: draw the anchors, search each stream's clock, interpolate, normalise, convert, mask.
//
// For sample i of the batch, its anchor is (episode, time) = anchors.at(order.at(first_position + i)). Step k of a
// segment aims at time + delta_ns[k] in that episode of its stream; a target closer than snap_ns to a sample is that
// sample; else the rules of ops/resample/resample.hpp with `clamp`. Each value becomes fma(x, scale, shift) in the work
// type and is rounded once to the output's. is_pad is true outside the recording, in a bracket longer than max_gap_ns,
// and where the episode has no rows of the stream; there, values are the edge sample, the method's value, and 0.
//
// `memory` is filled completely for `count` samples. The same bits on the CPU and on CUDA, whatever the threads. On CUDA
// one kernel on `stream`, not waited for; on the CPU done on return. Throws DeviceError.
#pragma once

#include "robocache/align/window_params.hpp"
#include "robocache/core/device.hpp"

namespace robocache {

void window_batch(const WindowBatch& batch, Device device, CudaStream stream);

}  // namespace robocache
