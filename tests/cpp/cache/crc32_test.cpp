#include "robocache/cache/crc32.hpp"

#include <gtest/gtest.h>

#include <string>

namespace robocache::cache {
namespace {

TEST(Crc32, CheckValueOfThePolynomial) {
  EXPECT_EQ(crc32("123456789", 9), 0xcbf43926u);
  EXPECT_EQ(crc32(nullptr, 0), 0u);
}

TEST(Crc32, SeedContinuesAChecksum) {
  const std::string text = "one stream, two halves, any split";
  for (size_t split = 0; split <= text.size(); ++split) {
    EXPECT_EQ(crc32(text.data() + split, text.size() - split, crc32(text.data(), split)),
              crc32(text.data(), text.size()));
  }
  EXPECT_EQ(crc32(nullptr, 0, 7), 7u);
}

TEST(Crc32, TextKeepsLeadingZeros) {
  EXPECT_EQ(crc32_text(0x0000a1fu), "00000a1f");
  EXPECT_EQ(crc32_text(0xffffffffu), "ffffffff");
}

}  // namespace
}  // namespace robocache::cache
