// The coding of a JPEG file after its header: byte stuffing, restart markers and Huffman tables.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "robocache/core/error.hpp"
#include "robocache/image/decode_jpeg_params.hpp"

namespace robocache {

inline std::string hexadecimal(int byte) {
  char text[8];
  std::snprintf(text, sizeof(text), "0x%02x", static_cast<unsigned>(byte));
  return text;
}

template <class... Parts>
[[noreturn]] void refuse_jpeg(int64_t byte, const Parts&... parts) {
  throw FrameError("JPEG, byte ", byte, ": ", parts...);
}

// Calls take(from, bytes) for each stretch of entropy-coded data from `begin` on, without byte stuffing and markers,
// and end_segment() after each segment. Throws FrameError if restart markers are out of order or the image has no end
// marker.
template <class Take, class EndSegment>
void for_each_stretch(std::span<const uint8_t> blob, int64_t begin, const Take& take, const EndSegment& end_segment) {
  const uint8_t* const end = blob.data() + blob.size();
  const uint8_t* from = blob.data() + begin;
  int restarts = 0;
  for (;;) {
    const auto* const ff = static_cast<const uint8_t*>(std::memchr(from, 0xff, static_cast<size_t>(end - from)));
    const uint8_t* after = ff == nullptr ? end : ff + 1;
    while (after < end && *after == 0xff) ++after;
    if (after == end) refuse_jpeg(end - blob.data(), "the file ends inside its entropy-coded data");
    const int marker = *after;
    take(from, ff - from + (marker == 0 ? 1 : 0));  // an ff in the data is followed by a 0
    from = after + 1;
    if (marker == 0) continue;
    end_segment();
    if (marker == 0xd9) return;
    const int expected = 0xd0 + restarts++ % 8;
    if (marker != expected) {
      refuse_jpeg(after - blob.data(), "expected restart marker ", hexadecimal(expected),
                  " or the end of the image, 0xd9, got marker ", hexadecimal(marker));
    }
  }
}

// The number of codes of each length from 1 to 16 bits, and the symbols in their order.
struct HuffmanCodes {
  std::array<uint8_t, 16> counts{};
  std::array<uint8_t, 256> symbols{};
  bool defined = false;

  // Calls take(symbol, code, length) for each symbol. The code is in the upper bits of a 16-bit number. Codes that do
  // not fit are skipped.
  template <class Take>
  void for_each(const Take& take) const {
    uint32_t code = 0;
    size_t next = 0;
    for (uint32_t length = 1; length <= 16; ++length) {
      for (int i = 0; i < counts[length - 1]; ++i, code += 1u << (16 - length)) take(symbols[next++], code, length);
    }
  }
};

// Returns the look-up table for DC or AC coefficients. Appends codes longer than kJpegFirstBits to `long_entries`.
JpegHuffman make_jpeg_huffman(const HuffmanCodes& codes, bool is_dc, std::vector<uint16_t>& long_entries);

}  // namespace robocache
