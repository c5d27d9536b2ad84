// JPEG files made ready for a kernel, once, when frames become resident: headers read and checked, markers and byte
// stuffing taken out of the entropy-coded data, Huffman tables turned into look-up tables.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "robocache/image/decode_jpeg_params.hpp"

namespace robocache {

struct JpegFrames {
  int32_t height = 0, width = 0, channels = 0;  // of every frame; channels 1 (grey) or 3 (RGB)
  std::vector<uint32_t> words;                  // entropy-coded bits, the first one of a word its highest
  std::vector<uint32_t> segments;  // of each frame segment_count + 1: where each begins, the last ends, in bytes from
                                   // the frame's first
  std::vector<JpegFrame> frames;
  std::vector<JpegTables> tables;  // each once
  std::vector<uint16_t> long_entries;
  int32_t most_segments = 0;  // of any frame
  int64_t plane_bytes = 0;    // that decoding any frame takes meanwhile; a multiple of 256
};

// Frame i is the file blobs[offsets[rows[i]], offsets[rows[i] + 1]), on all threads.
//
// Throws FrameError that names the first bad frame, as "row 7" or as `name(i)`, and the byte, where a file is no JPEG,
// not what decode_jpeg_params.hpp describes (progressive, arithmetic, 12 bits, CMYK, RGB, several scans, other
// sampling), another size than the first, or broken: cut short, a Huffman table that overflows, a table missing,
// restart markers that are too few, too many or out of order. Damage inside a segment shows when it is decoded. What
// segment_jpeg of codec.hpp makes of a file is taken.
JpegFrames prepare_jpeg_frames(std::span<const uint8_t> blobs, std::span<const int64_t> offsets,
                               std::span<const int64_t> rows,
                               const std::function<std::string(int64_t i)>& name = nullptr);

}  // namespace robocache
