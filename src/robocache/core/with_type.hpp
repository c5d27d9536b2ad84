// Calls a function with the C++ type of a dtype's elements.
#pragma once

#include <cstdint>

#include "robocache/core/dtype.hpp"
#include "robocache/core/half.hpp"
#include "robocache/core/host_device.hpp"

namespace robocache {

// Returns body(T{}) with the element type of `dtype`, which is a floating-point type.
template <class Body>
ROBOCACHE_HD auto with_floating(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kFloat64:
      return body(double{});
    case DType::kFloat32:
      return body(float{});
    case DType::kFloat16:
      return body(Float16{});
    case DType::kBFloat16:
      return body(BFloat16{});
    default:
      __builtin_unreachable();
  }
}

// Does the same for any element type; bool becomes uint8, 0 or 1.
template <class Body>
ROBOCACHE_HD auto with_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8:
      return body(uint8_t{});
    case DType::kInt8:
      return body(int8_t{});
    case DType::kInt16:
      return body(int16_t{});
    case DType::kUInt16:
      return body(uint16_t{});
    case DType::kInt32:
      return body(int32_t{});
    case DType::kUInt32:
      return body(uint32_t{});
    case DType::kInt64:
      return body(int64_t{});
    case DType::kUInt64:
      return body(uint64_t{});
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kFloat32:
    case DType::kFloat64:
      return with_floating(dtype, body);
  }
  __builtin_unreachable();
}

}  // namespace robocache
