#include "robocache/core/dtype.hpp"

#include <array>
#include <string>
#include <utility>

#include "robocache/core/error.hpp"

namespace robocache {
namespace {

struct Entry {
  std::string_view name;
  int64_t size;
};

constexpr std::array<Entry, 13> kEntries{{{"bool", 1},
                                          {"int8", 1},
                                          {"uint8", 1},
                                          {"int16", 2},
                                          {"uint16", 2},
                                          {"int32", 4},
                                          {"uint32", 4},
                                          {"int64", 8},
                                          {"uint64", 8},
                                          {"float16", 2},
                                          {"bfloat16", 2},
                                          {"float32", 4},
                                          {"float64", 8}}};

}  // namespace

int64_t dtype_size(DType dtype) { return kEntries[static_cast<size_t>(dtype)].size; }

std::string_view dtype_name(DType dtype) { return kEntries[static_cast<size_t>(dtype)].name; }

DType dtype_from_name(std::string_view name, std::string_view argument) {
  std::string accepted;
  for (size_t i = 0; i < kEntries.size(); ++i) {
    if (kEntries[i].name == name) return static_cast<DType>(i);
    accepted.append(i == 0 ? "" : ", ").append(kEntries[i].name);
  }
  throw ArgumentError(std::string(argument) + ": expected one of " + accepted + ", got '" + std::string(name) + "'");
}

}  // namespace robocache
