// Computes the CRC-32 of zlib, PNG and Python's zlib.crc32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace robocache::cache {

// Returns the checksum of `size` bytes. `seed` is the checksum of the bytes before them, or 0.
uint32_t crc32(const void* data, size_t size, uint32_t seed = 0);

// Returns eight lower-case hexadecimal digits.
std::string crc32_text(uint32_t crc);

}  // namespace robocache::cache
