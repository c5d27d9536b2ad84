// The element types of tensors.
#pragma once

#include <cstdint>
#include <string_view>

#include "robocache/core/host_device.hpp"

namespace robocache {

enum class DType : uint8_t {
  kBool,
  kInt8,
  kUInt8,
  kInt16,
  kUInt16,
  kInt32,
  kUInt32,
  kInt64,
  kUInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
};

// The bytes of one element.
ROBOCACHE_HD constexpr int64_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kInt8:
    case DType::kUInt8:
      return 1;
    case DType::kInt16:
    case DType::kUInt16:
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kInt32:
    case DType::kUInt32:
    case DType::kFloat32:
      return 4;
    case DType::kInt64:
    case DType::kUInt64:
    case DType::kFloat64:
      return 8;
  }
  __builtin_unreachable();
}

// "bool", "int8", ..., "float16", "bfloat16", "float32", "float64".
std::string_view dtype_name(DType dtype);

// The inverse of dtype_name. Throws ArgumentError naming `argument` and the accepted names.
DType dtype_from_name(std::string_view name, std::string_view argument = "dtype");

constexpr bool is_floating(DType dtype) { return dtype >= DType::kFloat16; }

}  // namespace robocache
