// Converts one step of a sample, for the CPU loop and the CUDA kernel.
#pragma once

#include <cstdint>

#include "robocache/actions/convert_params.hpp"
#include "robocache/core/host_device.hpp"
#include "robocache/interpolation/number.hpp"

namespace robocache {

template <class Scalar>
ROBOCACHE_HD void multiply(const Scalar* a, const Scalar* b, Scalar* y) {
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) {
      const Scalar column[3] = {b[j], b[3 + j], b[6 + j]};
      y[3 * i + j] = dot_of(a + 3 * i, column, 3);
    }
  }
}

// A pose that others are relative to.
template <class Scalar>
struct BasePose {
  bool is_nan;
  bool is_pose;
  Scalar p[3];
  Scalar inverse[9];  // of its rotation
};

template <class Scalar>
ROBOCACHE_HD BasePose<Scalar> base_pose(const ActionOp& op, Scalar tolerance, const Scalar* base, int begin) {
  BasePose<Scalar> made;
  Scalar numbers[12];
  const int width = 3 + op.source.width;
  for (int i = 0; i < width; ++i) numbers[i] = base[op.taken[begin + i]];
  made.is_nan = has_nan(numbers, width);
  made.is_pose = !made.is_nan && is_rotation(op.source, numbers + 3, tolerance);
  if (!made.is_pose) return made;
  for (int i = 0; i < 3; ++i) made.p[i] = numbers[i];
  to_matrix(op.source, numbers + 3, made.inverse);
  transpose(made.inverse);
  return made;
}

// A pose relative to another. False where one of them is no pose; NaN in either is NaN in all of it.
template <class Scalar>
ROBOCACHE_HD bool convert_pose(const ActionOp& op, Scalar tolerance, Scalar* pose, const BasePose<Scalar>& base) {
  const int width = 3 + op.source.width;
  if (base.is_nan || has_nan(pose, width)) {
    for (int i = 0; i < width; ++i) pose[i] = Scalar(__builtin_nanf(""));
    return true;
  }
  if (!base.is_pose || !is_rotation(op.source, pose + 3, tolerance)) return false;
  Scalar m[9];
  Scalar made[9];
  to_matrix(op.source, pose + 3, m);
  if (op.step == ActionStep::kBaseFrame) {
    multiply(m, base.inverse, made);
  } else {
    multiply(base.inverse, m, made);
  }
  Scalar p[3];
  for (int i = 0; i < 3; ++i) p[i] = pose[i] - base.p[i];
  for (int i = 0; i < 3; ++i) pose[i] = op.step == ActionStep::kSe3 ? dot_of(base.inverse + 3 * i, p, 3) : p[i];
  from_matrix(op.source, made, pose + 3);
  if (op.scale_metres != 1 || op.scale_radians != 1) {
    for (int i = 0; i < width; ++i) pose[i] = pose[i] / Scalar(i < 3 ? op.scale_metres : op.scale_radians);
  }
  return true;
}

// The state of a sample that its steps are relative to.
template <class Scalar>
struct Base {
  bool is_there;
  bool is_pad;
  Scalar row[kMostActionFeatures];
};

template <class Scalar>
ROBOCACHE_HD void load_base(const ConvertActionsParams& p, int64_t sample, Base<Scalar>& base) {
  base.is_there = true;
  base.is_pad = false;
  if (p.base_features == nullptr) return;
  base.is_there = reinterpret_cast<const int64_t*>(p.memory + p.base_age_offset)[sample] != INT64_MIN;
  base.is_pad = reinterpret_cast<const bool*>(p.memory + p.base_pad_offset)[sample];
  const auto* const state = reinterpret_cast<const Scalar*>(p.memory + p.base_row_offset) + sample * p.base_row;
  for (int i = 0; i < p.features; ++i) base.row[i] = state[p.base_features[i]];
}

// Shows the state in the batch.
template <class Scalar>
ROBOCACHE_HD void store_base(const ConvertActionsParams& p, int64_t sample, const Base<Scalar>& base) {
  if (p.base_features == nullptr) return;
  auto* const shown = reinterpret_cast<Scalar*>(p.memory + p.base_offset) + sample * p.features;
  for (int i = 0; i < p.features; ++i) shown[i] = base.row[i];
}

// Does all conversions to a row x of `features` numbers, of which there is room for kMostActionFeatures. `before` is the row of
// the step before it, or the base; `poses` are the base's in turn, or null. False where a rotation is none: x is then of no
// use.
template <class Scalar>
ROBOCACHE_HD bool convert_row(const ConvertActionsParams& p, Scalar* x, const Scalar* before, const Scalar* base,
                              const BasePose<Scalar>* poses) {
  const auto tolerance = static_cast<Scalar>(p.tolerance);
  int features = p.features;
  for (int32_t at = 0; at < p.op_count; ++at) {
    const ActionOp& op = p.ops[at];
    if (op.step == ActionStep::kRescale) {
      for (int i = op.begin; i < op.end; ++i) {
        Scalar v = x[i];
        v = v < Scalar(op.least) ? Scalar(op.least) : v > Scalar(op.most) ? Scalar(op.most) : v;
        x[i] = Scalar(op.to) + (v - Scalar(op.from)) * Scalar(op.factor);
      }
    } else if (op.step == ActionStep::kRotate) {
      Scalar from[9];
      Scalar to[9];
      for (int i = 0; i < op.source.width; ++i) from[i] = x[op.begin + i];
      if (has_nan(from, op.source.width)) {
        for (int i = 0; i < op.target.width; ++i) to[i] = Scalar(__builtin_nanf(""));
      } else {
        if (!is_rotation(op.source, from, tolerance)) return false;
        convert_rotation(op.source, op.target, from, to);
      }
      const int wider = op.target.width - op.source.width;
      const int rest = op.begin + op.source.width;
      if (wider > 0) {
        for (int i = features - 1; i >= rest; --i) x[i + wider] = x[i];
      } else {
        for (int i = rest; i < features; ++i) x[i + wider] = x[i];
      }
      for (int i = 0; i < op.target.width; ++i) x[op.begin + i] = to[i];
      features += wider;
    } else if (op.step == ActionStep::kJoints || op.step == ActionStep::kStepDelta) {
      const Scalar* const other = op.step == ActionStep::kJoints ? base : before;
      for (int f = 0; f < features; ++f) {
        const Scalar difference = x[f] - other[f];
        x[f] = op.is_taken[f] != 0 ? difference : x[f];
      }
      for (int i = 0; op.has_angles && i < op.count; ++i) {
        const int f = op.taken[i];
        if (op.is_angle[i] != 0) x[f] = within_half_a_turn(x[f]);
      }
    } else {
      const int width = 3 + op.source.width;
      for (int begin = 0; begin < op.count; begin += width) {
        Scalar pose[12];
        for (int i = 0; i < width; ++i) pose[i] = x[op.taken[begin + i]];
        const BasePose<Scalar> origin = poses != nullptr ? poses[begin / width] : base_pose(op, tolerance, base, begin);
        if (!convert_pose(op, tolerance, pose, origin)) return false;
        for (int i = 0; i < width; ++i) x[op.taken[begin + i]] = pose[i];
      }
    }
  }
  return true;
}

// Step k of a sample. `poses` are the base's in turn, or null.
template <class Scalar, class Out>
ROBOCACHE_HD void convert_step(const ConvertActionsParams& p, int64_t sample, int64_t k, const Base<Scalar>& base,
                               const BasePose<Scalar>* poses) {
  const int64_t at = sample * p.steps + k;
  const auto* const pads = reinterpret_cast<const bool*>(p.memory + p.pad_offset);
  const auto* const row = reinterpret_cast<const Scalar*>(p.memory + p.x_offset) + at * p.features;
  auto* const out = reinterpret_cast<Out*>(p.memory + p.out_offset) + at * p.out_features;
  const bool is_delta = p.ops[0].step == ActionStep::kStepDelta;
  const bool is_pad = base.is_pad || pads[at] || (is_delta && k > 0 && pads[at - 1]);
  bool is_there = base.is_there && reinterpret_cast<const int64_t*>(p.memory + p.age_offset)[at] != INT64_MIN;
  Scalar x[kMostActionFeatures];
  if (is_there) {
    for (int i = 0; i < p.features; ++i) x[i] = row[i];
    is_there = convert_row(p, x, k == 0 ? base.row : row - p.features, base.row, poses);
  }
  reinterpret_cast<bool*>(p.memory + p.out_pad_offset)[at] = is_pad || !is_there;
  const Scalar* scale = nullptr;
  const Scalar* shift = nullptr;
  if (p.scale != nullptr) {
    const int64_t source = reinterpret_cast<const int64_t*>(p.memory + p.source_offset)[sample];
    scale = static_cast<const Scalar*>(p.scale) + source * p.out_features;
    shift = static_cast<const Scalar*>(p.shift) + source * p.out_features;
  }
  for (int i = 0; i < p.out_features; ++i) {
    const Scalar y = !is_there ? Scalar(0) : scale != nullptr ? multiply_add(x[i], scale[i], shift[i]) : x[i];
    out[i] = rounded_once<Out>(y);
  }
}

// Calls body(Scalar{}, Out{}).
template <class Body>
void with_action_types(const ConvertActionsParams& p, const Body& body) {
  const auto by_out = [&](auto work) {
    switch (p.out_dtype) {
      case DType::kFloat64:
        return body(work, double{});
      case DType::kFloat32:
        return body(work, float{});
      case DType::kFloat16:
        return body(work, Float16{});
      default:
        return body(work, BFloat16{});
    }
  };
  p.wide ? by_out(double{}) : by_out(float{});
}

}  // namespace robocache
