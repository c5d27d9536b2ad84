// Conversions of actions in a batch: a key's window relative to a state of the same sample, in another representation of
// rotations, rescaled. window_batch does them to each sample whose windows it has filled, or, where they only subtract the state
// in float32, while it fills the window. The formulas are those of the functions of python/robocache/actions, and docs/actions.md
// has them.
//
// The contract of a converted key:
//   - The window and its base are aligned and interpolated as without conversions, in the work type: float64 where the stream of
//     one of them is, else float32. The base is the base key's value at the anchor: the same sample's, by that key's method,
//     offset_s, causal and gaps, never normalised.
//   - The conversions follow in order, all in the work type; then the normalisation, fma(y, scale, shift); then one rounding to
//     the key's dtype. In float32, the same bits on the CPU, on CUDA and by the functions, but for the sines, cosines and arc
//     tangents of rotation vectors and Euler angles.
//   - Padding of the window or of the base is padding of the result; of kStepDelta also of the step before. Where either has no
//     rows in the episode, and where interpolation gives no rotation (a quaternion whose length is not 1 within 1e-3, a zero one), the result
//     is 0 and padding: never a number without a mark. NaN that the data has stays NaN.
//   - "<key>_base" [B, D] is the base that the conversions had, of the work type: what the inverse needs.
//   - Statistics are of converted values: given ones, or those of the windows that are drawn (batch/window_statistics.hpp).
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
struct EnumNames<ActionStep> {
  static constexpr std::string_view names[] = {"joints",     "se3",    "mixed",  "base_frame",
                                               "step_delta", "rotate", "rescale"};
};

// The arguments of one conversion. Fields that its step does not need keep their defaults.
struct ActionConversion {
  ActionStep step = ActionStep::kJoints;
  std::vector<int64_t> features = {};  // relative and step_delta: those that are converted, ascending
  std::vector<int64_t> angles = {};    // of these: their differences go the shorter way round
  std::string rotation = "quat_xyzw";  // of poses, and what rotate reads
  std::string target = "quat_xyzw";    // of rotate
  double scale_metres = 1;             // base_frame: what becomes 1
  double scale_radians = 1;
  int64_t begin = 0;  // rotate: the first feature; rescale: [begin, end)
  int64_t end = 0;
  double from_first = 0;  // rescale: from_first becomes to_first, from_last to_last
  double from_last = 1;
  double to_first = 0;
  double to_last = 1;
  bool clip = false;  // to the range from_first, from_last
  bool normalize =
      false;  // poses, rotate: quaternions of any length but 0, and matrices that Gram-Schmidt makes rotations

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

// Conversions of rows of `features` numbers as the kernels take them. Throws ArgumentError that begins with `argument`.
struct ActionOps {
  std::vector<ActionOp> ops;
  int64_t out_features = 0;
  bool has_base = false;
};
ActionOps action_ops(const std::vector<ActionConversion>& conversions, int64_t features, std::string_view argument);

}  // namespace robocache
