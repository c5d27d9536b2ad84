// Arrays of int32 or int64 that say how much of a row there is.
#pragma once

#include <cstdint>

#include "robocache/core/dtype.hpp"
#include "robocache/core/host_device.hpp"

namespace robocache {

// An entry of `lengths`: int32 or int64, or `all` where it is null.
ROBOCACHE_HD int64_t length_at(const void* lengths, DType dtype, int64_t offset, int64_t all) {
  if (lengths == nullptr) return all;
  return dtype == DType::kInt32 ? static_cast<const int32_t*>(lengths)[offset]
                                : static_cast<const int64_t*>(lengths)[offset];
}

}  // namespace robocache
