// Copies of page-locked host memory to a CUDA device, all in one launch, as a plain C struct.
#pragma once

#include <cstdint>

namespace robocache {

struct PinnedCopy {
  void* to;
  const void* from;  // an address for the device
  int64_t bytes;
};

struct PinnedCopies {
  static constexpr int32_t kMost = 32;
  PinnedCopy entries[kMost];
  int32_t count;
};

}  // namespace robocache
