#include "robocache/source/tier.hpp"

#include <gtest/gtest.h>

#include <optional>

#include "robocache/core/error.hpp"
#include "tests/cpp/expect_refused.hpp"

namespace robocache::test {
namespace {

TEST(Tier, NamesThereAndBack) {
  for (const Tier tier : {Tier::kDevice, Tier::kPinned, Tier::kMapped})
    EXPECT_EQ(tier_from_name(tier_name(tier)), tier);
  EXPECT_EQ(tier_name(Tier::kDevice), "device");
  EXPECT_EQ(tier_name(Tier::kPinned), "pinned");
  EXPECT_EQ(tier_name(Tier::kMapped), "mapped");
  EXPECT_EQ(tier_from_name("auto"), std::nullopt);
}

TEST(Tier, AnotherNameIsRefused) {
  expect_refused<ArgumentError>(
      [] { tier_from_name("Pinned", "residency['a']"); },
      "residency['a']: expected 'auto', 'decoded', 'device', 'pinned' or 'mapped', got 'Pinned'");
}

}  // namespace
}  // namespace robocache::test
