#include "robocache/image/jpeg_coding.hpp"

#include <algorithm>

namespace robocache {

JpegHuffman make_jpeg_huffman(const HuffmanCodes& codes, bool is_dc, std::vector<uint16_t>& long_entries) {
  JpegHuffman table{};
  table.long_code = table.long_end = 65536;
  table.long_begin = static_cast<uint32_t>(long_entries.size());
  codes.for_each([&](uint32_t symbol, uint32_t code, uint32_t length) {
    const uint32_t size = symbol & 15;
    const uint32_t run = symbol >> 4;
    const bool is_end_of_block = !is_dc && size == 0 && run != 15;
    const uint32_t advance = is_dc ? 1 : is_end_of_block ? 64 : run + 1;
    const auto entry = static_cast<uint16_t>(advance << 9 | size << 5 | (length + size));
    const uint32_t sequence_count = 1u << (16 - length);  // sequences of 16 bits that begin with the code
    if (length <= kJpegFirstBits) {
      std::fill_n(table.first + (code >> (16 - kJpegFirstBits)), sequence_count >> (16 - kJpegFirstBits), entry);
    } else {
      table.long_code = std::min(table.long_code, code);
      table.long_end = code + sequence_count;
      long_entries.insert(long_entries.end(), sequence_count, entry);
    }
  });
  return table;
}

}  // namespace robocache
