#include "robocache/core/dtype.hpp"

#include <array>
#include <string>
#include <utility>

#include "robocache/core/error.hpp"

namespace robocache {
namespace {

constexpr std::array<std::string_view, 13> kDTypeNames{"bool",     "int8",    "uint8",  "int16",  "uint16",
                                                       "int32",    "uint32",  "int64",  "uint64", "float16",
                                                       "bfloat16", "float32", "float64"};

}  // namespace

std::string_view dtype_name(DType dtype) { return kDTypeNames[static_cast<size_t>(dtype)]; }

DType dtype_from_name(std::string_view name, std::string_view argument) {
  std::string accepted;
  for (size_t i = 0; i < kDTypeNames.size(); ++i) {
    if (kDTypeNames[i] == name) return static_cast<DType>(i);
    accepted.append(i == 0 ? "" : ", ").append(kDTypeNames[i]);
  }
  throw ArgumentError(argument, ": expected one of ", accepted, ", got '", name, "'");
}

}  // namespace robocache
