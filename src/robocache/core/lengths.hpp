// Arrays of int32 or int64 with the lengths of rows, or with the offsets where they begin.
#pragma once

#include <cstdint>

#include "robocache/core/dtype.hpp"
#include "robocache/core/host_device.hpp"

namespace robocache {

// Returns an entry of an array of int32 or int64.
ROBOCACHE_HD int64_t integer_at(const void* array, DType dtype, int64_t i) {
  return dtype == DType::kInt32 ? static_cast<const int32_t*>(array)[i] : static_cast<const int64_t*>(array)[i];
}

// Returns an entry of `lengths`, or `all` if `lengths` is null.
ROBOCACHE_HD int64_t length_at(const void* lengths, DType dtype, int64_t i, int64_t all) {
  return lengths == nullptr ? all : integer_at(lengths, dtype, i);
}

}  // namespace robocache
