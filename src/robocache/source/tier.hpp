// Where a stream's values lie while they are drawn from. The same bytes come out of every tier.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace robocache {

// From the fastest to the roomiest.
enum class Tier : uint8_t {
  kDecoded,  // of cameras: frames as pixels in the device's memory; of what needs no decoding the same as kDevice
  kDevice,   // a copy in the device's memory
  kPinned,   // a copy in host memory that the same kernel reads across the link
  kMapped,   // in the cache's files, which threads of the host read ahead of time
};

// "decoded", "device", "pinned", "mapped".
std::string_view tier_name(Tier tier);

// The inverse, and none for "auto". Throws ArgumentError that names `argument`.
std::optional<Tier> tier_from_name(std::string_view name, std::string_view argument = "residency");

}  // namespace robocache
