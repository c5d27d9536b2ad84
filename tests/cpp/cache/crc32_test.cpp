#include "robocache/cache/crc32.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace robocache::cache {
namespace {

// The definition: one bit at a time.
uint32_t bitwise(const std::vector<unsigned char>& bytes) {
  uint32_t crc = 0xffffffffu;
  for (const unsigned char byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0xedb88320u : 0u);
  }
  return ~crc;
}

TEST(Crc32, CheckValueOfThePolynomial) {
  EXPECT_EQ(crc32("123456789", 9), 0xcbf43926u);
  EXPECT_EQ(crc32("", 0), 0u);
}

TEST(Crc32, EveryLengthAndAlignmentIsTheDefinition) {
  std::mt19937 random(1);
  for (size_t length = 0; length < 300; ++length) {
    std::vector<unsigned char> bytes(length + 3);
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
    for (const size_t offset : {0, 1, 3}) {
      const std::vector<unsigned char> part(bytes.begin() + static_cast<std::ptrdiff_t>(offset),
                                            bytes.begin() + static_cast<std::ptrdiff_t>(offset + length));
      EXPECT_EQ(crc32(bytes.data() + offset, length), bitwise(part)) << length << " bytes from " << offset;
    }
  }
}

TEST(Crc32, SeedContinuesAChecksum) {
  const std::string text = "one stream, two halves, any split";
  for (size_t split = 0; split <= text.size(); ++split) {
    EXPECT_EQ(crc32(text.data() + split, text.size() - split, crc32(text.data(), split)),
              crc32(text.data(), text.size()));
  }
}

TEST(Crc32, TextKeepsLeadingZeros) {
  EXPECT_EQ(crc32_text(0x0000a1fu), "00000a1f");
  EXPECT_EQ(crc32_text(0xffffffffu), "ffffffff");
}

}  // namespace
}  // namespace robocache::cache
