#include "robocache/cache/crc32.hpp"

#include <array>
#include <bit>
#include <cstring>

namespace robocache::cache {
namespace {

constexpr uint32_t kPolynomial = 0xedb88320u;  // reflected
constexpr size_t kSlices = 16;

using Tables = std::array<std::array<uint32_t, 256>, kSlices>;

// kTables[s][b]: what byte b adds to the checksum when s bytes follow it.
constexpr Tables kTables = [] {
  Tables tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? kPolynomial : 0u);
    tables[0][b] = crc;
  }
  for (size_t s = 1; s < kSlices; ++s) {
    for (size_t b = 0; b < 256; ++b) tables[s][b] = (tables[s - 1][b] >> 8) ^ tables[0][tables[s - 1][b] & 0xffu];
  }
  return tables;
}();

}  // namespace

uint32_t crc32(const void* data, size_t size, uint32_t seed) {
  static_assert(std::endian::native == std::endian::little);
  const auto* bytes = static_cast<const unsigned char*>(data);
  uint32_t crc = ~seed;
  while (size >= kSlices) {
    std::array<uint32_t, 4> words;
    std::memcpy(words.data(), bytes, kSlices);
    words[0] ^= crc;
    crc = 0;
    for (size_t w = 0; w < 4; ++w) {
      const size_t slice = kSlices - 1 - 4 * w;
      crc ^= kTables[slice][words[w] & 0xffu] ^ kTables[slice - 1][(words[w] >> 8) & 0xffu] ^
             kTables[slice - 2][(words[w] >> 16) & 0xffu] ^ kTables[slice - 3][words[w] >> 24];
    }
    bytes += kSlices;
    size -= kSlices;
  }
  for (; size > 0; --size) crc = (crc >> 8) ^ kTables[0][(crc ^ *bytes++) & 0xffu];
  return ~crc;
}

std::string crc32_text(uint32_t crc) {
  std::string text(8, '0');
  for (size_t i = 0; i < 8; ++i) text[i] = "0123456789abcdef"[(crc >> (28 - 4 * i)) & 0xfu];
  return text;
}

}  // namespace robocache::cache
