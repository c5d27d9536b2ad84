// The shape of a decoded frame.
#pragma once

#include <cstdint>
#include <string>

#include "robocache/core/dtype.hpp"

namespace robocache {

// The longest side of a frame: libjpeg's limit, for every codec.
inline constexpr int64_t kMaxFrameSide = 65500;

// Pixels are contiguous, row by row, with the channels of a pixel together: [height, width, channels].
struct FrameShape {
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;         // 1, or 3: red, green, blue
  DType dtype = DType::kUInt8;  // or kUInt16, kFloat32

  int64_t bytes() const { return height * width * channels * dtype_size(dtype); }

  // For example "[480, 640, 3] uint8".
  std::string describe() const;

  bool operator==(const FrameShape&) const = default;
};

}  // namespace robocache
