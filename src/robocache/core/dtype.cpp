#include "robocache/core/dtype.hpp"

#include <array>
#include <string>
#include <utility>

#include "robocache/core/error.hpp"

namespace robocache {
namespace {

constexpr std::array<std::string_view, 13> kNames{"bool",     "int8",    "uint8",  "int16",  "uint16",
                                                  "int32",    "uint32",  "int64",  "uint64", "float16",
                                                  "bfloat16", "float32", "float64"};

}  // namespace

std::string_view dtype_name(DType dtype) { return kNames[static_cast<size_t>(dtype)]; }

DType dtype_from_name(std::string_view name, std::string_view argument) {
  std::string accepted;
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<DType>(i);
    accepted.append(i == 0 ? "" : ", ").append(kNames[i]);
  }
  throw ArgumentError(std::string(argument) + ": expected one of " + accepted + ", got '" + std::string(name) + "'");
}

}  // namespace robocache
