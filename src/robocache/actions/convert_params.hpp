// The conversions of a batch's keys as the loader passes them to either backend: validated, plain C, every pointer on the
// kernel's device.
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
  kStepDelta,  // x less the step before it, the first less the base
  kRotate,     // a rotation in another representation
  kRescale,    // one range of numbers in another
};

ROBOCACHE_HD bool is_of_poses(ActionStep step) {
  return step == ActionStep::kSe3 || step == ActionStep::kMixed || step == ActionStep::kBaseFrame;
}

// One conversion of a row, in place.
struct ActionOp {
  ActionStep step;
  RotationForm source;  // of poses, and what kRotate reads
  RotationForm target;  // of kRotate
  int32_t begin;        // kRotate: the first feature; kRescale: [begin, end)
  int32_t end;
  int32_t count;  // of `taken`; of poses a multiple of 3 + source.width
  uint8_t taken[kMostActionFeatures];
  uint8_t is_taken[kMostActionFeatures];  // of each feature
  uint8_t is_angle[kMostActionFeatures];  // of each feature
  bool has_angles;
  bool normalizes;                     // rotations of any length but 0
  double scale_metres, scale_radians;  // of kBaseFrame: what becomes 1
  double factor, from, to;             // kRescale: to + (x - from) * factor
  double least, most;                  // and x is held between these first
};

// Mirrors numbers beside flipped images, which show a mirrored world.
struct ActionMirror {
  const uint8_t*
      axes;  // of each feature: 1 if a flip of rows reverses its sign, 2 if one of columns does, 3 if both do; or null
  double flip[2];  // the probabilities, as in TransformParams
};

// The axes along which the images of a sample are flipped, as in ActionMirror::axes: of x and of its base.
struct FlippedAxes {
  uint8_t x, base;
};

// A key's conversions. Arrays lie in a batch's memory, at offsets in bytes: x [samples, steps, features] and the bases
// [samples, base_row] of the work type; ages of both, whose least int64 says that there is nothing; their padding. The results
// are written; they may lie where x does.
struct ConvertActionsParams {
  const ActionOp* ops;
  const int32_t* base_features;  // of the base's row, [features]; null where no conversion has a base
  const int32_t*
      subtracted;     // where the only conversion subtracts the base in float32: as WindowSegment has it; else null
  const void* scale;  // of the work type, or null: y = fma(x, scale, shift). Each source has scale_rows rows of
  const void* shift;  // out_features numbers: with scale_per_step one a step, else kTileRows that are all the same
  ActionMirror mirror, base_mirror;  // of x, and of the base's row
  int64_t x_offset, age_offset, pad_offset;
  int64_t base_row_offset, base_age_offset, base_pad_offset;
  int64_t out_offset;  // [samples, steps, out_features] of out_dtype
  int64_t out_pad_offset;
  int64_t base_offset;  // [samples, features] of the work type: the base that the conversions had
  double tolerance;     // of a rotation
  int32_t steps;
  int32_t scale_rows;
  int32_t op_count;
  int32_t features;
  int32_t out_features;
  int32_t base_row;
  bool wide;        // the work type is float64, else float32
  bool by_feature;  // no conversion mixes features
  bool scale_per_step;
  bool shows_ages;  // the batch has those of x
  bool clip;        // scaled values are held in [-1, 1]
  DType out_dtype;
};

// So many rows are a whole number of vectors, however many features a row has.
inline constexpr int32_t kTileRows = 16;

}  // namespace robocache
