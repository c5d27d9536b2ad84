// A frame's transform on one thread, built once per instruction set.
#pragma once

#include <cstdint>

#include "robocache/image/transform_math.hpp"
#include "robocache/image/transform_params.hpp"

namespace robocache {

// `scratch` has transform_scratch_bytes(), aligned to 64. `frame` null: black.
using TransformFrame = void(const TransformParams& params, const FramePlan& plan, const void* frame, char* scratch,
                            void* out);

namespace baseline {
TransformFrame transform_frame;
}
namespace v3 {
TransformFrame transform_frame;
}
namespace v4 {
TransformFrame transform_frame;
}

// Where in the scratch memory what lies. Taps of a column are at most those of all pixels.
struct TransformScratch {
  int64_t bytes;    // the frame [H, W, C] as it goes out, before it is normalised
  int64_t sums;     // int32 [columns of the frame, C]: rows of the frame, weighed and added
  int64_t means;    // float64 [W, C]: sums of columns of that
  int64_t weights;  // float64 [W, C]: by what they are to be divided, but for the row's
  int64_t columns;  // Taps [W]
  int64_t end;
};

ROBOCACHE_HD TransformScratch transform_scratch(const TransformParams& p) {
  const auto rounded_up = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  const int64_t of_row = int64_t{p.out[1]} * p.channels;
  TransformScratch places{};
  places.sums = rounded_up(of_row * p.out[0]);
  places.means = places.sums + rounded_up(int64_t{p.frame[1]} * p.channels * int64_t{sizeof(int32_t)});
  places.weights = places.means + rounded_up(of_row * int64_t{sizeof(double)});
  places.columns = places.weights + rounded_up(of_row * int64_t{sizeof(double)});
  places.end = places.columns + rounded_up(int64_t{p.out[1]} * int64_t{sizeof(Taps)});
  return places;
}

}  // namespace robocache
