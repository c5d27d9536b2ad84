// The tiers of memory from which batches read a stream's values. Every tier gives the same bytes.
#pragma once

#include <cstdint>
#include <string_view>

#include "robocache/core/enum_names.hpp"

namespace robocache {

// The fastest tier comes first, the largest last.
enum class Tier : uint8_t {
  kDecoded,  // a camera's frames as pixels in the device's memory; other values as in kDevice
  kDevice,   // a copy in the device's memory
  kPinned,   // a copy in host memory that the same kernel reads across the link
  kMapped,   // the cache's files, which threads of the host read ahead of time
};

template <>
inline constexpr std::string_view kNames<Tier>[] = {"decoded", "device", "pinned", "mapped"};

}  // namespace robocache
