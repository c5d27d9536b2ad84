#include "robocache/cache/crc32.hpp"

#include <zlib.h>

namespace robocache::cache {

uint32_t crc32(const void* data, size_t size, uint32_t seed) {
  if (size == 0) return seed;  // zlib treats a null pointer as a request to start anew
  return static_cast<uint32_t>(::crc32_z(seed, static_cast<const Bytef*>(data), size));
}

std::string crc32_text(uint32_t crc) {
  std::string text(8, '0');
  for (size_t i = 0; i < 8; ++i) text[i] = "0123456789abcdef"[(crc >> (28 - 4 * i)) & 0xfu];
  return text;
}

}  // namespace robocache::cache
