// The tiers of memory from which batches read a stream's values. Every tier gives the same bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace robocache {

// The fastest first, the largest last.
enum class Tier : uint8_t {
  kDecoded,  // a camera's frames as pixels in the device's memory; for other values the same as kDevice
  kDevice,   // a copy in the device's memory
  kPinned,   // a copy in host memory that the same kernel reads across the link
  kMapped,   // the cache's files, which threads of the host read ahead of time
};

// "decoded", "device", "pinned", "mapped".
std::string_view tier_name(Tier tier);

// The inverse of tier_name; nullopt for "auto". Throws ArgumentError, which names `argument`.
std::optional<Tier> tier_from_name(std::string_view name, std::string_view argument = "residency");

}  // namespace robocache
