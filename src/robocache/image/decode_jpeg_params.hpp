// JPEG frames as a kernel decodes them: plain C. What a file says in many ways is said in one here.
//
// Baseline sequential Huffman coding, 8 bits, one interleaved scan: grey, or Y, Cb, Cr with chroma at full size, at
// half its width, or at half both ways. The entropy-coded bytes are cut at restart markers into segments that are
// decoded independently of each other; markers and byte stuffing are gone.
#pragma once

#include <cstdint>

#include "robocache/core/host_device.hpp"

namespace robocache {

// Codes of at most this many bits are decoded by one look-up.
inline constexpr int32_t kJpegFirstBits = 10;

// A Huffman table of symbols that say how many bits of a coefficient follow (`size`), and by how much the place in the
// block goes on (`advance`: 1 and the run of zeros before the coefficient; 64 at the end of a block, past every place).
// An entry is advance << 9 | size << 5 | bits of code and coefficient; 0 is none.
struct JpegHuffman {
  uint16_t first[1 << kJpegFirstBits];  // by the next bits; 0: the code is longer, or there is none
  // The entry of a longer code is long_entries[long_begin + c - long_code], c being the next 16 bits, where
  // long_code <= c < long_end; elsewhere there is none.
  uint32_t long_code;
  uint32_t long_end;
  uint32_t long_begin;
  uint32_t padding;
};

// The table's entry of the code that `bits` begin with; 0: there is none.
ROBOCACHE_HD uint32_t jpeg_entry(const JpegHuffman& table, const uint16_t* long_entries, uint32_t bits) {
  const uint32_t entry = table.first[bits >> (32 - kJpegFirstBits)];
  if (entry != 0) return entry;
  const uint32_t place = (bits >> 16) - table.long_code;
  return place < table.long_end - table.long_code ? long_entries[table.long_begin + place] : 0;
}

ROBOCACHE_HD uint32_t entry_bits(uint32_t entry) { return entry & 31; }  // of code and coefficient
ROBOCACHE_HD uint32_t entry_size(uint32_t entry) { return entry >> 5 & 15; }
ROBOCACHE_HD uint32_t entry_advance(uint32_t entry) { return entry >> 9; }

// What frames of one camera nearly always share.
struct alignas(16) JpegTables {
  JpegHuffman dc[2];
  JpegHuffman ac[2];
  uint16_t quantisation[3][64];  // of each component, in zigzag order
  uint8_t dc_of[4];              // of each component, which of dc and ac
  uint8_t ac_of[4];
  uint8_t padding[8];
};
static_assert(sizeof(JpegTables) % 16 == 0);

struct JpegFrame {
  int64_t words;     // where its entropy-coded bits begin, in JpegFrames::words, a multiple of 4
  int64_t segments;  // where its segments begin, in JpegFrames::segments
  int32_t segment_count;
  int32_t segment_mcus;  // of each segment but the last
  int32_t tables;
  int32_t luma_across, luma_down;  // samples of luma for one of chroma: 1 and 1, 2 and 1, or 2 and 2
  int32_t padding;
};

// Where the decoded samples of a frame's components lie before chroma is brought to full size: planes of whole MCUs.
struct JpegPlanes {
  int32_t mcus_across, mcus_down;
  int32_t luma_pitch, chroma_pitch;    // bytes from row to row
  int64_t chroma_begin, chroma_bytes;  // Cb, and behind it Cr
  int64_t bytes;                       // of all planes
  int32_t chroma_height, chroma_width;
};

ROBOCACHE_HD JpegPlanes jpeg_planes(const JpegFrame& frame, int32_t height, int32_t width, int32_t channels) {
  JpegPlanes planes;
  // By shifts, since luma_across and luma_down are 1 or 2: a GPU divides slowly.
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

// What the host may look at whenever it likes, in pinned memory: of all damaged frames so far their number, and the row
// of one of them.
struct JpegDamage {
  int64_t frames;
  int64_t row;
};

// What decoding hands to CUDA: validated. All of it lies where a kernel reads it.
struct DecodeJpegParams {
  const uint32_t* words;
  const uint32_t* segments;
  const JpegFrame* frames;
  const JpegTables* tables;
  const uint16_t* long_entries;
  int64_t frame_count;
  int32_t height, width, channels;
  int64_t
      words_of_place;  // above 0: frame i of the batch has its words at i * words_of_place, wherever it begins itself
  int32_t most_segments;  // of any frame
  bool one_table;         // all frames have the same tables
  int64_t plane_bytes;    // for one frame, whichever it is; a multiple of 256

  const int64_t* rows;  // [count] which frame, counted from first_row; below it, or past the last: black
  int64_t first_row;
  bool in_order;       // frame i of the batch is frames[i], wherever rows[i] is one at all
  bool leaves_others;  // `out` stays as it is where it would be black for want of a frame
  int64_t count;
  uint8_t* out;       // [count, height, width, channels], dense
  int32_t* status;    // [count] 1: the entropy-coded data is damaged, the frame is black; else 0; or null
  JpegDamage* found;  // of any call, or null
  bool* is_pad;       // [count] becomes true where status would be 1; or null
  uint8_t* planes;    // [count, plane_bytes]
  uint8_t* damage;    // [count, most_segments]
  uint32_t* fetched;  // of fetch_jpegs alone: what becomes `words`, by words_of_place
};

}  // namespace robocache
