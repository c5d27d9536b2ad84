#include "robocache/source/tier.hpp"

#include <string>

#include "robocache/core/error.hpp"

namespace robocache {

std::string_view tier_name(Tier tier) {
  switch (tier) {
    case Tier::kDecoded:
      return "decoded";
    case Tier::kDevice:
      return "device";
    case Tier::kPinned:
      return "pinned";
    case Tier::kMapped:
      return "mapped";
  }
  __builtin_unreachable();
}

std::optional<Tier> tier_from_name(std::string_view name, std::string_view argument) {
  if (name == "auto") return std::nullopt;
  for (const Tier tier : {Tier::kDecoded, Tier::kDevice, Tier::kPinned, Tier::kMapped}) {
    if (tier_name(tier) == name) return tier;
  }
  throw ArgumentError(std::string(argument) + ": expected 'auto', 'decoded', 'device', 'pinned' or 'mapped', got '" +
                      std::string(name) + "'");
}

}  // namespace robocache
