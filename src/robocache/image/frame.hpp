// What a decoded frame is: rows of pixels, [height, width, channels], dense.
#pragma once

#include <cstdint>

#include "robocache/core/dtype.hpp"

namespace robocache {

struct FrameShape {
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
  DType dtype = DType::kUInt8;

  friend bool operator==(const FrameShape&, const FrameShape&) = default;
};

}  // namespace robocache
