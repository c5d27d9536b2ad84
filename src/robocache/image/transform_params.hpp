// The validated arguments of an ImageTransform for a backend, as plain C structs. In each pair, the entry for rows
// comes first, then the one for columns.
#pragma once

#include <cstdint>

#include "robocache/core/dtype.hpp"
#include "robocache/core/host_device.hpp"
#include "robocache/image/options.hpp"

namespace robocache {

// The position of a sample in a loader's order. The sample's random draws depend only on it and on the camera.
struct ImageDraw {
  uint64_t seed = 0;
  uint64_t epoch = 0;
  int64_t sample = 0;
  int64_t stride = 1;  // the step from one sample's number to the next

  // Returns the position `samples` samples later in this order.
  ROBOCACHE_HD ImageDraw behind(int64_t samples) const { return {seed, epoch, sample + stride * samples, stride}; }
};

struct TransformParams {
  int32_t frame[2];  // size in pixels of the input frame
  int32_t sized[2];  // of the resized frame
  int32_t out[2];    // of the output frame
  int32_t channels;
  DType dtype;
  DType out_dtype;
  ImageLayout layout;

  bool crop_scales;  // whether a part of each frame is cut out before resizing: crop_scale of its area
  ImageRange crop_scale;
  ImageFit fit;
  ImageInterpolation interpolation;
  bool crops_at_random;
  int32_t shift;

  bool warps;      // whether frames are flipped or rotated
  double flip[2];  // the probability that the order of rows, or of columns, is reversed
  bool rotates;
  ImageRange rotation;  // in degrees

  int32_t blur_reach;  // pixels on each side, 0 without blur
  ImageRange blur;

  double erase;  // the probability of erasing
  ImageRange erase_scale;
  ImageRange erase_log_ratio;
  uint8_t erased[3];  // the byte for each channel

  bool jitters;  // whether any of the next four is true
  bool brightens, contrasts, saturates, hues;
  ImageRange brightness, contrast, saturation, hue;

  // A channel's y = fma(x, scale, offset).
  float scale[3];
  float offset[3];
  double unit_m;  // of uint16 depth

  bool per_frame;
  uint64_t key;  // a hash of the camera's name
};

// Output i is frame rows[i] - first_row of `pixels`, or frame i without rows; black if there is no such frame. Outputs
// whose rows[i] is not in [begin, end) belong to another call and stay unchanged.
struct FrameChoice {
  const void* pixels;
  int64_t frames;  // contiguous
  const int64_t* rows = nullptr;
  int64_t first_row = 0;
  bool in_order = false;  // output i is frame i, if rows[i] is a valid frame
  int64_t begin = INT64_MIN, end = INT64_MAX;
};

// Output i of [count, steps] belongs to the sample that is i / steps samples after `first`.
struct TransformBatch {
  TransformParams params;
  ImageDraw first;
  FrameChoice from;
  int64_t count, steps;
  void* out;
};

struct IntrinsicsBatch {
  TransformParams params;
  ImageDraw first;
  double matrix[9];        // 3x3 row-major; 0 if the camera has none
  const int64_t* numbers;  // [count, steps]: each output's frame number; below 1, the matrix is 0
  int64_t begin, end;      // matrices with numbers outside [begin, end) belong to another call
  int64_t count, steps;
  float* out;  // [count, steps, 3, 3] with per_frame, else [count, 3, 3]
};

}  // namespace robocache
