// Converts one step of a sample, or one feature of it, for the CPU loop and the CUDA kernel.
#pragma once

#include <cstdint>

#include "robocache/actions/convert_params.hpp"
#include "robocache/core/host_device.hpp"
#include "robocache/interpolation/number.hpp"

namespace robocache {

// Multiplies two 3x3 matrices: y = a b.
template <class Scalar>
ROBOCACHE_HD void multiply(const Scalar* a, const Scalar* b, Scalar* y) {
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) {
      const Scalar column[3] = {b[j], b[3 + j], b[6 + j]};
      y[3 * i + j] = dot_of(a + 3 * i, column, 3);
    }
  }
}

// The pose that other poses become relative to.
template <class Scalar>
struct BasePose {
  bool is_nan;
  bool is_pose;
  Scalar p[3];        // its position
  Scalar inverse[9];  // of its rotation matrix
};

inline constexpr int kMostPose = 3 + kMostRotation;

// Loads the pose that begins at feature taken[begin], filled up with 0. Each index is a constant, so that the numbers
// stay in registers.
template <class Scalar, class Row>
ROBOCACHE_HD void load_pose(const ActionOp& op, const Row& row, int begin, Scalar* pose) {
  for (int i = 0; i < kMostPose; ++i) {
    pose[i] = i < 3 + op.source.width ? row[op.taken[begin + i]] : Scalar(0);
  }
}

template <class Scalar, class Row>
ROBOCACHE_HD BasePose<Scalar> base_pose(const ActionOp& op, Scalar tolerance, const Row& base, int begin) {
  BasePose<Scalar> result;
  Scalar numbers[kMostPose];
  load_pose(op, base, begin, numbers);
  result.is_nan = has_nan(numbers, kMostPose);
  result.is_pose = to_matrix(op.source, numbers + 3, tolerance, result.inverse);
  for (int i = 0; i < 3; ++i) result.p[i] = numbers[i];
  transpose(result.inverse);
  return result;
}

// Makes `pose` relative to `base`. If either has NaN, the result is all NaN. Else returns false if either is no pose.
// `Scalar` may be Wide: several poses with the same base.
template <class Scalar>
ROBOCACHE_HD auto convert_pose(const ActionOp& op, Scalar tolerance, Scalar* pose, const BasePose<One<Scalar>>& base) {
  const auto has_no_nan = !has_nan(pose, kMostPose) && is_true<Scalar>(!base.is_nan);
  Scalar inverse[9];
  Scalar m[9];
  Scalar result[9];
  for (int i = 0; i < 9; ++i) inverse[i] = Scalar(base.inverse[i]);
  const auto is_pose = to_matrix(op.source, pose + 3, tolerance, m) && is_true<Scalar>(base.is_pose);
  if (op.step == ActionStep::kBaseFrame) {
    multiply(m, inverse, result);
  } else {
    multiply(inverse, m, result);
  }
  Scalar p[3];
  for (int i = 0; i < 3; ++i) p[i] = pose[i] - Scalar(base.p[i]);
  for (int i = 0; i < 3; ++i) pose[i] = op.step == ActionStep::kSe3 ? dot_of(inverse + 3 * i, p, 3) : p[i];
  from_matrix(op.source, result, pose + 3);
  if (op.scale_metres != 1 || op.scale_radians != 1) {
    for (int i = 0; i < kMostPose; ++i) {
      pose[i] = pose[i] / Scalar(static_cast<One<Scalar>>(i < 3 ? op.scale_metres : op.scale_radians));
    }
  }
  for (int i = 0; i < kMostPose; ++i) pose[i] = choose(has_no_nan, pose[i], not_a_number<Scalar>());
  return is_pose || !has_no_nan;
}

// Returns a number of a feature as flipped images show it. Flips along both axes cancel out. A reversed 0 is +0.
template <class Scalar>
ROBOCACHE_HD Scalar mirrored(const ActionMirror& mirror, uint8_t flipped, int feature, Scalar x) {
  if (mirror.axes == nullptr) return x;
  const uint8_t axes = mirror.axes[feature] & flipped;
  return axes == 1 || axes == 2 ? Scalar(0) - x : x;
}

// The state that the steps of a sample are relative to. Feature f of the steps belongs to number features[f] of
// `state`.
template <class Scalar>
struct BaseRow {
  bool is_there;  // whether the episode has rows of the base
  bool is_pad;
  const Scalar* state;
  const int32_t* features;
  ActionMirror mirror;
  uint8_t flipped;

  ROBOCACHE_HD Scalar operator[](int feature) const {
    return mirrored(mirror, flipped, features[feature], state[features[feature]]);
  }
};

template <class Scalar>
ROBOCACHE_HD BaseRow<Scalar> base_of(const ConvertActionsParams& p, const char* memory, int64_t sample,
                                     const FlippedAxes& flipped) {
  if (p.base_features == nullptr) return {true, false, nullptr, nullptr, {}, 0};
  return {reinterpret_cast<const int64_t*>(memory + p.base_age_offset)[sample] != INT64_MIN,
          reinterpret_cast<const bool*>(memory + p.base_pad_offset)[sample],
          reinterpret_cast<const Scalar*>(memory + p.base_row_offset) + sample * p.base_row,
          p.base_features,
          p.base_mirror,
          flipped.base};
}

ROBOCACHE_HD bool starts_with(const ConvertActionsParams& p, ActionStep step) { return p.ops[0].step == step; }

// Whether the window has the row of a step.
ROBOCACHE_HD bool has_row(const ConvertActionsParams& p, const char* memory, int64_t row) {
  return reinterpret_cast<const int64_t*>(memory + p.age_offset)[row] != INT64_MIN;
}

template <class Scalar>
ROBOCACHE_HD void store_pad(const ConvertActionsParams& p, char* memory, int64_t row, int64_t k,
                            const BaseRow<Scalar>& base, bool is_there) {
  const auto* const pads = reinterpret_cast<const bool*>(memory + p.pad_offset);
  const bool is_after_pad = starts_with(p, ActionStep::kStepDelta) && k > 0 && pads[row - 1];
  reinterpret_cast<bool*>(memory + p.out_pad_offset)[row] = !is_there || base.is_pad || pads[row] || is_after_pad;
}

template <class Scalar>
ROBOCACHE_HD Scalar rescaled(const ActionOp& op, Scalar v) {
  const auto scalar = [](double number) { return Scalar(static_cast<One<Scalar>>(number)); };
  v = choose(v < scalar(op.least), scalar(op.least), choose(v > scalar(op.most), scalar(op.most), v));
  return scalar(op.to) + (v - scalar(op.from)) * scalar(op.factor);
}

template <class Scalar>
ROBOCACHE_HD Scalar normalised(const ConvertActionsParams& p, int32_t source, int64_t k, int feature, Scalar y) {
  if (p.scale == nullptr) return y;
  const int64_t index = (int64_t{source} * p.scale_rows + (p.scale_per_step ? k : 0)) * p.out_features + feature;
  y = multiply_add(y, static_cast<const Scalar*>(p.scale)[index], static_cast<const Scalar*>(p.shift)[index]);
  return p.clip ? clipped(y) : y;
}

// Converts one feature of step k of a sample, if no conversion mixes features. For feature 0 it also writes the step's
// padding.
template <class Scalar>
ROBOCACHE_HD void convert_feature(const ConvertActionsParams& p, char* memory, int32_t source, int64_t sample,
                                  const FlippedAxes& flipped, int64_t k, int feature) {
  const BaseRow<Scalar> base = base_of<Scalar>(p, memory, sample, flipped);
  const int64_t row = sample * p.steps + k;
  const bool is_there = base.is_there && has_row(p, memory, row);
  if (feature == 0) store_pad(p, memory, row, k, base, is_there);
  const Scalar* const x = reinterpret_cast<const Scalar*>(memory + p.x_offset) + row * p.features + feature;
  Scalar y = mirrored(p.mirror, flipped.x, feature, *x);
  for (int32_t op_index = 0; op_index < p.op_count; ++op_index) {
    const ActionOp& op = p.ops[op_index];
    if (op.step == ActionStep::kRescale) {
      if (feature >= op.begin && feature < op.end) y = rescaled(op, y);
    } else if (op.is_taken[feature] != 0) {
      y = y - (op.step == ActionStep::kJoints || k == 0 ? base[feature]
                                                        : mirrored(p.mirror, flipped.x, feature, *(x - p.features)));
      if (op.is_angle[feature] != 0) y = within_half_a_turn(y);
    }
  }
  y = is_there ? normalised(p, source, k, feature, y) : Scalar(0);
  with_floating(p.out_dtype, [&](auto out) {
    reinterpret_cast<decltype(out)*>(memory + p.out_offset)[row * p.features + feature] =
        rounded_once<decltype(out)>(y);
  });
}

template <class Scalar>
ROBOCACHE_HD Scalar tolerance_of(const ConvertActionsParams& p, const ActionOp& op) {
  return op.normalizes ? infinity<Scalar>() : static_cast<Scalar>(p.tolerance);
}

// Converts a row x of `features` numbers; x has room for kMostActionFeatures. `before` is the row of the step before,
// or the base; `poses` are the poses of the base in order, or null. Returns false if a rotation is invalid; x is then
// meaningless. `Scalar` may be Wide: several rows with the same base.
template <class Scalar, class Before>
ROBOCACHE_HD auto convert_row(const ConvertActionsParams& p, Scalar* x, const Before& before,
                              const BaseRow<One<Scalar>>& base, const BasePose<One<Scalar>>* poses) {
  auto valid = is_true<Scalar>(true);
  int features = p.features;
  for (int32_t op_index = 0; op_index < p.op_count; ++op_index) {
    const ActionOp& op = p.ops[op_index];
    const One<Scalar> tolerance = tolerance_of<One<Scalar>>(p, op);
    if (op.step == ActionStep::kRescale) {
      for (int i = op.begin; i < op.end; ++i) x[i] = rescaled(op, x[i]);
    } else if (op.step == ActionStep::kRotate) {
      Scalar from[kMostRotation];
      Scalar to[kMostRotation];
      for (int i = 0; i < kMostRotation; ++i) from[i] = i < op.source.width ? x[op.begin + i] : Scalar(0);
      const auto has_no_nan = !has_nan(from, kMostRotation);
      valid = (convert_rotation(op.source, op.target, from, Scalar(tolerance), to) || !has_no_nan) && valid;
      const int added = op.target.width - op.source.width;
      const int after_rotation = op.begin + op.source.width;
      if (added > 0) {
        for (int i = features - 1; i >= after_rotation; --i) x[i + added] = x[i];
      } else {
        for (int i = after_rotation; i < features; ++i) x[i + added] = x[i];
      }
      for (int i = 0; i < kMostRotation; ++i) {
        if (i < op.target.width) x[op.begin + i] = choose(has_no_nan, to[i], not_a_number<Scalar>());
      }
      features += added;
    } else if (op.step == ActionStep::kJoints || op.step == ActionStep::kStepDelta) {
      for (int i = 0; i < op.count; ++i) {
        const int f = op.taken[i];
        x[f] = x[f] - (op.step == ActionStep::kJoints ? Scalar(base[f]) : before(f));
        if (op.is_angle[f] != 0) x[f] = within_half_a_turn(x[f]);
      }
    } else {
      const int width = 3 + op.source.width;
      for (int begin = 0; begin < op.count; begin += width) {
        Scalar pose[kMostPose];
        load_pose(op, x, begin, pose);
        valid = valid && convert_pose(op, Scalar(tolerance), pose,
                                      poses != nullptr ? poses[begin / width] : base_pose(op, tolerance, base, begin));
        for (int i = 0; i < kMostPose; ++i) {
          if (i < width) x[op.taken[begin + i]] = pose[i];
        }
      }
    }
  }
  return valid;
}

// Converts step k of a sample.
template <class Scalar>
ROBOCACHE_HD void convert_step(const ConvertActionsParams& p, char* memory, int32_t source, int64_t sample,
                               const FlippedAxes& flipped, int64_t k) {
  const BaseRow<Scalar> base = base_of<Scalar>(p, memory, sample, flipped);
  const int64_t row = sample * p.steps + k;
  const auto* const recorded = reinterpret_cast<const Scalar*>(memory + p.x_offset) + row * p.features;
  const auto before = [&](int f) {
    return k == 0 ? base[f] : mirrored(p.mirror, flipped.x, f, recorded[f - p.features]);
  };
  Scalar x[kMostActionFeatures];
  for (int i = 0; i < p.features; ++i) x[i] = mirrored(p.mirror, flipped.x, i, recorded[i]);
  const bool valid = convert_row(p, x, before, base, nullptr);
  const bool is_there = base.is_there && has_row(p, memory, row) && valid;
  store_pad(p, memory, row, k, base, is_there);
  with_floating(p.out_dtype, [&](auto out) {
    auto* const to = reinterpret_cast<decltype(out)*>(memory + p.out_offset) + row * p.out_features;
    for (int i = 0; i < p.out_features; ++i) {
      to[i] = rounded_once<decltype(out)>(is_there ? normalised(p, source, k, i, x[i]) : Scalar(0));
    }
  });
}

// Writes features first, first + stride, ... of the base to the batch.
template <class Scalar>
ROBOCACHE_HD void store_base(const ConvertActionsParams& p, char* memory, int64_t sample, const BaseRow<Scalar>& base,
                             int first = 0, int stride = 1) {
  if (p.base_features == nullptr) return;
  auto* const stored = reinterpret_cast<Scalar*>(memory + p.base_offset) + sample * p.features;
  for (int f = first; f < p.features; f += stride) stored[f] = base[f];
}

}  // namespace robocache
