// What an ImageTransform hands to a backend: validated, plain C. Of a pair the first is of rows, the second of columns.
#pragma once

#include <cstdint>

#include "robocache/core/dtype.hpp"
#include "robocache/image/options.hpp"

namespace robocache {

// Where in a loader's order a sample stands: all that its random draws depend on beside the camera.
struct ImageDraw {
  uint64_t seed = 0;
  uint64_t epoch = 0;
  int64_t sample = 0;
};

struct TransformParams {
  int32_t frame[2];  // pixels of a frame as it comes,
  int32_t sized[2];  // resized,
  int32_t out[2];    // and as it goes out
  int32_t channels;
  DType dtype;
  DType out_dtype;
  ImageLayout layout;

  bool crop_scales;
  ImageRange crop_scale;
  ImageFit fit;
  bool crops_at_random;
  int32_t shift;

  bool jitters;  // one of these, at least
  bool brightens, contrasts, saturates, hues;
  ImageRange brightness, contrast, saturation, hue;

  // A channel's y = fma(x, scale, offset).
  float scale[3];
  float offset[3];
  double unit_m;  // of uint16 depth

  bool per_frame;
  uint64_t key;  // the camera's, hashed
};

// Output i of [count, steps] is frame rows[i], or i without rows, of sample first.sample + i / steps; black where there is no
// such frame.
struct TransformBatch {
  TransformParams params;
  ImageDraw first;
  const void* pixels;
  int64_t frames;
  const int64_t* rows;
  int64_t count, steps;
  void* out;
};

// Of the frames whose numbers begin at first_number, up to the next source's.
struct CameraMatrix {
  int64_t first_number;
  double matrix[9];  // 3x3 row-major; 0 where the camera has none
};

struct IntrinsicsBatch {
  TransformParams params;
  ImageDraw first;
  const CameraMatrix* sources;  // in the order of their numbers
  int32_t source_count;
  const int64_t* numbers;  // [count, steps]
  int64_t count, steps;
  float* out;  // [count, steps, 3, 3] with per_frame, else [count, 3, 3]
};

}  // namespace robocache
