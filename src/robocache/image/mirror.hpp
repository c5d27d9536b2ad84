// Reverses the signs of numbers beside images that are flipped: the world that such an image shows is a mirror image.
#pragma once

#include <cstdint>

#include "robocache/core/device.hpp"
#include "robocache/image/transform_params.hpp"

namespace robocache {

// Pointers are on the device.
struct MirrorParams {
  void* values;  // [samples, rows, features]
  bool wide;     // values are float64, else float32
  int64_t samples, rows, features;
  const uint8_t*
      axes;         // of each feature: 1 if a flip of rows reverses its sign, 2 if one of columns does, 3 if both do
  double flip[2];   // the probabilities, as in TransformParams
  ImageDraw first;  // the draws of sample 0
};

// The draws are those of ImageTransform. On CUDA one kernel is queued on `stream`. Throws DeviceError.
void mirror_values(const MirrorParams& params, Device device, CudaStream stream);

}  // namespace robocache
