// Computes the checksums of a PNG's chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace robocache::test {

inline uint32_t crc32_of(std::span<const uint8_t> bytes) {
  uint32_t crc = 0xffffffff;
  for (const uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc;
}

// Corrects the checksums of a PNG's chunks: otherwise the code after the checksum test would never run.
inline void mend_checksums(std::vector<uint8_t>* file) {
  for (size_t offset = 8; offset + 12 <= file->size();) {
    uint8_t* chunk = file->data() + offset;
    const size_t length = size_t{chunk[0]} << 24 | size_t{chunk[1]} << 16 | size_t{chunk[2]} << 8 | chunk[3];
    if (length > file->size() - offset - 12) return;
    const uint32_t crc = crc32_of({chunk + 4, length + 4});
    for (size_t i = 0; i < 4; ++i) chunk[8 + length + i] = static_cast<uint8_t>(crc >> (24 - 8 * i));
    offset += 12 + length;
  }
}

}  // namespace robocache::test
