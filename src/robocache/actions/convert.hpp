// Converts actions in a batch: makes a key's window relative to a state of the same sample, changes its representation
// of rotations, or rescales it. window_batch converts a sample after it has filled the sample's windows; a conversion
// that only subtracts the state in float32 is done while the window is filled. docs/actions.md has the formulas, which
// are those of python/robocache/actions.
//
// The contract of a converted key:
//   - The window and its base are aligned and interpolated as without conversions, in the work type: float64 if one of
//     their streams is float64, else float32. The base is the base key's value at the sample's anchor, by the base
//     key's own method, offset_s, causal and max_gap_s. It is never normalised.
//   - The conversions follow in order in the work type, then the normalisation fma(y, scale, shift), then one rounding
//     to the key's dtype. In float32 the CPU, CUDA and the functions in Python give the same bits, except for the
//     sines, cosines and arc tangents of rotation vectors and Euler angles.
//   - A step is padding if the window or the base is padding there; with kStepDelta also if the previous step is. If
//     the window or the base has no rows in the episode, or if interpolation gives no rotation (such as a quaternion
//     whose length is not 1 within 1e-3), the result is 0 and padding. NaN in the data stays NaN.
//   - "<key>_base" [B, D] is the base, in the work type. The inverse needs it.
//   - Statistics describe converted values. They are given, or are those of the drawn windows
//     (batch/window_statistics.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "robocache/actions/convert_params.hpp"
#include "robocache/core/enum_names.hpp"
#include "robocache/core/fields.hpp"

namespace robocache {

template <>
inline constexpr std::string_view kNames<ActionStep>[] = {"joints",     "se3",    "mixed",  "base_frame",
                                                          "step_delta", "rotate", "rescale"};

// The arguments of one conversion. Fields that its step does not need keep their defaults.
struct ActionConversion {
  ActionStep step = ActionStep::kJoints;
  std::vector<int64_t> features = {};  // relative steps and step_delta: the features to convert, ascending
  std::vector<int64_t> angles = {};    // the angles among `features`: differences go the shorter way round
  std::string rotation = "quat_xyzw";  // poses: the form of their rotation; rotate: the form that it reads
  std::string target = "quat_xyzw";    // rotate: the form that it writes
  double scale_metres = 1;             // base_frame: the length that becomes 1
  double scale_radians = 1;            // base_frame: the angle that becomes 1
  int64_t begin = 0;                   // rotate: the first feature; rescale: [begin, end)
  int64_t end = 0;
  double from_first = 0;  // rescale: from_first becomes to_first, from_last to_last
  double from_last = 1;
  double to_first = 0;
  double to_last = 1;
  bool clip = false;  // rescale: first limits numbers to [from_first, from_last]
  // poses, rotate: accepts quaternions of any length but 0, and matrices that are not yet rotations
  bool normalize = false;

  static constexpr auto fields() {
    using Self = ActionConversion;
    return std::tuple(Field{"step", &Self::step}, Field{"features", &Self::features}, Field{"angles", &Self::angles},
                      Field{"rotation", &Self::rotation}, Field{"target", &Self::target},
                      Field{"scale_metres", &Self::scale_metres}, Field{"scale_radians", &Self::scale_radians},
                      Field{"begin", &Self::begin}, Field{"end", &Self::end}, Field{"from_first", &Self::from_first},
                      Field{"from_last", &Self::from_last}, Field{"to_first", &Self::to_first},
                      Field{"to_last", &Self::to_last}, Field{"clip", &Self::clip},
                      Field{"normalize", &Self::normalize});
  }
};

// Conversions in the form that kernels take, for rows of `features` numbers. action_ops() throws ArgumentError that
// begins with `argument`.
struct ActionOps {
  std::vector<ActionOp> ops;
  int64_t out_features = 0;  // numbers in a converted row
  bool has_base = false;     // a conversion is relative to a state
};
ActionOps action_ops(const std::vector<ActionConversion>& conversions, int64_t features, std::string_view argument);

}  // namespace robocache
