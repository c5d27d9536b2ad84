// The conversions of a batch's keys as the loader passes them to either backend: validated, plain C, every pointer on
// the kernel's device.
#pragma once

#include <cstdint>

#include "robocache/actions/rotation.hpp"
#include "robocache/core/dtype.hpp"

namespace robocache {

inline constexpr int32_t kMostActionFeatures = 128;  // before and after every conversion

enum class ActionStep : int32_t {
  kJoints,     // x - base
  kSe3,        // R0^T (p - p0), R0^T R
  kMixed,      // p - p0, R0^T R
  kBaseFrame,  // p - p0, R R0^T
  kStepDelta,  // x - the step before; the first step: x - base
  kRotate,     // a rotation in another representation
  kRescale,    // maps one range of numbers to another
};

// Whether the step converts poses: positions with rotations.
ROBOCACHE_HD bool is_of_poses(ActionStep step) {
  return step == ActionStep::kSe3 || step == ActionStep::kMixed || step == ActionStep::kBaseFrame;
}

// One conversion of a row, in place.
struct ActionOp {
  ActionStep step;
  RotationForm source;  // poses: the form of their rotation; kRotate: the form that it reads
  RotationForm target;  // kRotate: the form that it writes
  int32_t begin;        // kRotate: the first feature; kRescale: [begin, end)
  int32_t end;
  int32_t count;                          // of `taken`; for poses a multiple of 3 + source.width
  uint8_t taken[kMostActionFeatures];     // the features to convert
  uint8_t is_taken[kMostActionFeatures];  // for each feature
  uint8_t is_angle[kMostActionFeatures];  // for each feature
  bool has_angles;
  bool normalizes;                     // accepts rotations of any length but 0
  double scale_metres, scale_radians;  // kBaseFrame: the length and the angle that become 1
  double factor, from, to;             // kRescale: to + (x - from) * factor
  double least, most;                  // kRescale: x is first limited to [least, most]
};

// Mirrors numbers when the images of their sample are flipped.
struct ActionMirror {
  // For each feature: 1 if a flip of rows reverses its sign, 2 if a flip of columns does, 3 if either does; or null.
  const uint8_t* axes;
  double flip[2];  // the probabilities, as in TransformParams
};

// The flips of a sample's images, as bits like ActionMirror::axes, that mirror x and its base.
struct FlippedAxes {
  uint8_t x, base;
};

// A key's conversions. Offsets are in bytes from the start of the batch. The inputs, in the work type, are x
// [samples, steps, features] and the bases [samples, base_row]. Both have padding, and ages, whose least int64 means
// that there is no row. The results may overwrite x.
struct ConvertActionsParams {
  const ActionOp* ops;
  const int32_t* base_features;  // [features]: for each, the feature of the base's row; null: no base
  // WindowSegment::subtracted, if the only conversion subtracts the base in float32; else null.
  const int32_t* subtracted;
  bool poses_only;  // on CUDA: the only conversion is of poses in float32, and flips mirror nothing
  // y = fma(x, scale, shift) in the work type, or null. Each source has scale_rows rows of out_features numbers: with
  // scale_per_step one row for each step, else kTileRows equal rows.
  const void* scale;
  const void* shift;
  ActionMirror mirror, base_mirror;  // of x, and of the base's row
  int64_t x_offset, age_offset, pad_offset;
  int64_t base_row_offset, base_age_offset, base_pad_offset;
  int64_t out_offset;  // [samples, steps, out_features] of out_dtype
  int64_t out_pad_offset;
  int64_t base_offset;  // [samples, features] of the work type: "<key>_base"
  double tolerance;     // the largest error of a rotation
  int32_t steps;
  int32_t scale_rows;
  int32_t op_count;
  int32_t features;
  int32_t out_features;
  int32_t base_row;
  bool wide;        // the work type is float64, else float32
  bool by_feature;  // no conversion mixes features
  bool scale_per_step;
  bool shows_ages;  // the batch has the ages of x
  bool clip;        // scaled values are limited to [-1, 1]
  DType out_dtype;
};

// kTileRows rows fill whole vectors, for any number of features.
inline constexpr int32_t kTileRows = 16;

}  // namespace robocache
