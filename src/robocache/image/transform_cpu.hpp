// The transform of a frame on one thread, compiled once per instruction set.
#pragma once

#include <cstdint>

#include "robocache/image/augment_math.hpp"
#include "robocache/image/transform_math.hpp"
#include "robocache/image/transform_params.hpp"

namespace robocache {

// `scratch` has transform_scratch(params).end bytes, aligned to 64. A null `frame` is black.
using TransformFrame = void(const TransformParams& params, const FramePlan& plan, const Augments& augments,
                            const void* frame, char* scratch, void* out);

namespace baseline {
TransformFrame transform_frame;
}
namespace v3 {
TransformFrame transform_frame;
}
namespace v4 {
TransformFrame transform_frame;
}

// The layout of the scratch memory: first the frame [H, W, C] before normalisation; then at these offsets the arrays of
// a resize (ResizeScratch), from `sums` to `weights`; and for a flip, rotation or blur a second frame (`other`), a row
// extended beyond its ends, and a sum for each pixel (`blurred`).
struct TransformScratch {
  int64_t sums, wide, means, divisors, taps, weights, other, row, blurred, end;
};

ROBOCACHE_HD TransformScratch transform_scratch(const TransformParams& p) {
  const auto rounded_up = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  const int64_t out = p.out[1];
  // The last pixel of three channels is read and written as four lanes.
  const int64_t frame_row = int64_t{p.frame[1]} * p.channels + 1;
  const int64_t out_row = out * p.channels + 1;
  // A column has at most 4 max(from / to, 1) + 1 taps, and at most `to` columns have taps.
  const int64_t taps = 4 * int64_t{p.frame[1]} + 5 * out;
  TransformScratch offsets{};
  offsets.sums = rounded_up(out_row * p.out[0]);
  offsets.wide = offsets.sums + rounded_up(frame_row * int64_t{sizeof(int32_t)});
  offsets.means = offsets.wide + rounded_up(frame_row * int64_t{sizeof(double)});
  offsets.divisors = offsets.means + rounded_up(out_row * int64_t{sizeof(double)});
  offsets.taps = offsets.divisors + rounded_up(out_row * int64_t{sizeof(double)});
  offsets.weights = offsets.taps + rounded_up(out * int64_t{sizeof(Taps)});
  offsets.other = offsets.weights + rounded_up(taps * int64_t{sizeof(double)});
  const bool blurs = p.blur_reach > 0;
  offsets.row = offsets.other + (p.warps || blurs ? rounded_up(out_row * p.out[0]) : 0);
  offsets.blurred = offsets.row + (blurs ? rounded_up((out + int64_t{2} * p.blur_reach) * p.channels) : 0);
  offsets.end = offsets.blurred + (blurs ? rounded_up(out_row * p.out[0] * int64_t{sizeof(int32_t)}) : 0);
  return offsets;
}

}  // namespace robocache
