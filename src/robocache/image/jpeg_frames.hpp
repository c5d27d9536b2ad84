// JPEG files made ready for a kernel, once, when frames become resident: headers read and checked, markers and byte
// stuffing taken out of the entropy-coded data, Huffman tables turned into look-up tables.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "robocache/core/error.hpp"
#include "robocache/image/decode_jpeg_params.hpp"
#include "robocache/image/frame.hpp"

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

// Puts a piece's frames behind all others', but for their words, which lie behind `words` others wherever the caller keeps
// them. Tables that were there already are kept once. All frames have one size.
void append_frames(JpegFrames& all, JpegFrames piece, int64_t words);

// The frames of one batch, made ready in one piece of memory, which is copied to a device whole: an array of JpegFrame,
// and behind it what JpegFrames has, at these bytes.
struct PackedJpegs {
  int64_t words, segments, tables, long_entries;
  int64_t bytes;  // of all
  int32_t most_segments;
  bool one_table;
};

// What `count` frames of a shape, of files of at most `largest` bytes, take at most.
int64_t packed_jpegs_bytes(const FrameShape& shape, int64_t count, int64_t largest);

using ReadFile = std::function<std::span<const uint8_t>(int64_t i, std::vector<uint8_t>& memory)>;
using RefuseFile = std::function<void(int64_t i, const FrameError& error)>;

// Makes frame i of file_bytes.size() out of the file of file_bytes[i] bytes that read(i, memory) gives, there or
// elsewhere; 0: there is none. refuse(i, why) is called for files that prepare_jpeg_frames would refuse; what it throws
// is thrown. On all threads, and so are both called. `memory`, 16-byte aligned, has packed_jpegs_bytes.
PackedJpegs pack_jpegs(const FrameShape& shape, std::span<const int64_t> file_bytes, const ReadFile& read,
                       const RefuseFile& refuse, void* memory);

}  // namespace robocache
