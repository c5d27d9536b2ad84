// JPEG frames in the form that a kernel decodes, as plain C structs. Files can code the same frame in several ways; a
// kernel reads only this one:
//
// Baseline sequential Huffman coding, 8 bits, one interleaved scan: grey, or Y, Cb, Cr with chroma at full size, at
// half the width, or at half of both. Restart markers divide the entropy-coded bytes into segments that are decoded
// independently; markers and byte stuffing are removed.
#pragma once

#include <cstdint>

#include "robocache/core/host_device.hpp"

namespace robocache {

// A code of at most this many bits takes one look-up.
inline constexpr int32_t kJpegFirstBits = 10;

// A Huffman table. A symbol gives the number of bits of a coefficient that follow (`size`), and the increase of the
// index in the block (`advance`: 1 plus the run of zeros before the coefficient; 64 at the end of a block, which is
// beyond every index). An entry is advance << 9 | size << 5 | bits of code and coefficient; 0 means no code.
struct JpegHuffman {
  uint16_t first[1 << kJpegFirstBits];  // indexed by the next bits; 0 if the code is longer or does not exist
  // For a longer code with the next 16 bits c, long_code <= c < long_end, the entry is long_entries[long_begin + c -
  // long_code]. Other c have no code.
  uint32_t long_code;
  uint32_t long_end;
  uint32_t long_begin;
  uint32_t padding;
};

// Returns the entry of the code that `bits` begin with, or 0 if there is none.
ROBOCACHE_HD uint32_t jpeg_entry(const JpegHuffman& table, const uint16_t* long_entries, uint32_t bits) {
  const uint32_t entry = table.first[bits >> (32 - kJpegFirstBits)];
  if (entry != 0) return entry;
  const uint32_t index = (bits >> 16) - table.long_code;
  return index < table.long_end - table.long_code ? long_entries[table.long_begin + index] : 0;
}

ROBOCACHE_HD uint32_t entry_bits(uint32_t entry) { return entry & 31; }  // of code and coefficient
ROBOCACHE_HD uint32_t entry_size(uint32_t entry) { return entry >> 5 & 15; }
ROBOCACHE_HD uint32_t entry_advance(uint32_t entry) { return entry >> 9; }

// The tables of a frame. Frames of one camera nearly always share them.
struct alignas(16) JpegTables {
  JpegHuffman dc[2];
  JpegHuffman ac[2];
  uint16_t quantisation[3][64];  // for each component, in zigzag order
  uint8_t dc_of[4];              // for each component: the index in dc
  uint8_t ac_of[4];              // for each component: the index in ac
  uint8_t padding[8];
};
static_assert(sizeof(JpegTables) % 16 == 0);

struct JpegFrame {
  int64_t words;     // offset of its entropy-coded bits in JpegFrames::words, a multiple of 4
  int64_t segments;  // offset of its segments in JpegFrames::segments
  int32_t segment_count;
  int32_t segment_mcus;            // MCUs in each segment except the last
  int32_t tables;                  // index of its tables
  int32_t luma_across, luma_down;  // luma samples per chroma sample: 1 and 1, 2 and 1, or 2 and 2
  int32_t padding;
};

// The layout of the decoded samples of a frame before chroma is upsampled: planes of whole MCUs.
struct JpegPlanes {
  int32_t mcus_across, mcus_down;
  int32_t luma_pitch, chroma_pitch;    // bytes from row to row
  int64_t chroma_begin, chroma_bytes;  // Cb, followed by Cr
  int64_t bytes;                       // of all planes
  int32_t chroma_height, chroma_width;
};

ROBOCACHE_HD JpegPlanes jpeg_planes(const JpegFrame& frame, int32_t height, int32_t width, int32_t channels) {
  JpegPlanes planes;
  // Shifts, because luma_across and luma_down are 1 or 2 and a GPU divides slowly.
  const int32_t mcu_width = 8 * frame.luma_across, mcu_height = 8 * frame.luma_down;
  planes.mcus_across = (width + mcu_width - 1) >> (2 + frame.luma_across);
  planes.mcus_down = (height + mcu_height - 1) >> (2 + frame.luma_down);
  planes.luma_pitch = planes.mcus_across * mcu_width;
  planes.chroma_pitch = planes.mcus_across * 8;
  planes.chroma_begin = int64_t{planes.luma_pitch} * planes.mcus_down * mcu_height;
  planes.chroma_bytes = int64_t{planes.chroma_pitch} * planes.mcus_down * 8;
  planes.bytes = planes.chroma_begin + (channels == 3 ? 2 * planes.chroma_bytes : 0);
  planes.chroma_height = (height + frame.luma_down - 1) >> (frame.luma_down - 1);
  planes.chroma_width = (width + frame.luma_across - 1) >> (frame.luma_across - 1);
  return planes;
}

// The number of damaged frames so far, and the row of one of them. The struct is in pinned memory, so the host can read
// it at any time.
struct JpegDamage {
  int64_t frames;
  int64_t row;
};

// The validated arguments of decoding. All pointers are readable by a kernel.
struct DecodeJpegParams {
  const uint32_t* words;
  const uint32_t* segments;
  const JpegFrame* frames;
  const JpegTables* tables;
  const uint16_t* long_entries;
  int64_t frame_count;
  int32_t height, width, channels;
  int64_t words_stride;   // if above 0, the words of frame i of the batch begin at i * words_stride
  int32_t most_segments;  // of any frame
  bool one_table;         // all frames share the tables
  int64_t plane_bytes;    // for any one frame; a multiple of 256

  const int64_t* rows;  // [count] the frame's index plus first_row; black if there is no such frame
  int64_t first_row;
  bool in_order;       // frame i of the batch is frames[i], if rows[i] is a valid frame
  bool leaves_others;  // whether `out` stays unchanged where there is no such frame, instead of becoming black
  int64_t count;
  uint8_t* out;     // [count, height, width, channels], dense
  int32_t* status;  // [count] 1 if the entropy-coded data is damaged and the frame is black, else 0; may be null
  JpegDamage* damage_report;  // counts damaged frames over all calls; may be null
  bool* is_pad;               // [count] set to true for a damaged frame; may be null
  uint8_t* planes;            // [count, plane_bytes]
  uint8_t* damage;            // [count, most_segments]
  uint32_t* fetched;          // for fetch_jpegs only: the memory to fill, laid out by words_stride
};

}  // namespace robocache
