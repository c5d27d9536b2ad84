// Prepares JPEG files for a kernel, once, when frames become resident: reads and checks headers, removes markers and
// byte stuffing from the entropy-coded data, and converts Huffman tables to look-up tables.
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
  int32_t height = 0, width = 0, channels = 0;  // of every frame; channels is 1 (grey) or 3 (RGB)
  std::vector<uint32_t> words;                  // entropy-coded bits, from the highest bit of a word down
  // For each frame segment_count + 1 offsets, in bytes from the frame's first byte: the begin of each segment, and the
  // end of the last one.
  std::vector<uint32_t> segments;
  std::vector<JpegFrame> frames;
  std::vector<JpegTables> tables;      // distinct ones
  std::vector<uint16_t> long_entries;  // of codes longer than kJpegFirstBits, see JpegHuffman
  int32_t most_segments = 0;           // of any frame
  int64_t plane_bytes = 0;             // temporary memory for decoding one frame; a multiple of 256
};

// Prepares frame i from the file blobs[offsets[rows[i]], offsets[rows[i] + 1]), on all threads.
//
// Throws FrameError that names the byte and the first bad frame, as "row 7" or as `name(i)`. A file is bad if it is not
// a JPEG; if decode_jpeg_params.hpp does not describe it (progressive, arithmetic, 12 bits, CMYK, RGB, several scans,
// other sampling); if its size differs from the first file's; or if it is broken: cut short, a Huffman table that
// overflows, a missing table, restart markers that are too few, too many or out of order. Damage inside a segment is
// found when it is decoded. All files from segment_jpeg of codec.hpp are accepted.
JpegFrames prepare_jpeg_frames(std::span<const uint8_t> blobs, std::span<const int64_t> offsets,
                               std::span<const int64_t> rows,
                               const std::function<std::string(int64_t i)>& name = nullptr);

// Appends the frames of `piece`, but not their words: the caller stores these from word `first_word` on. Equal tables
// are kept once. All frames have one size.
void append_frames(JpegFrames& all, JpegFrames piece, int64_t first_word);

// The frames of one batch in one block, so that one copy brings them to a device. The block begins with an array of
// JpegFrame; the other members of JpegFrames follow at these offsets.
struct PackedJpegs {
  int64_t words, segments, tables, long_entries;
  int64_t bytes;  // of everything
  int32_t most_segments;
  bool one_table;  // all frames have the same tables
};

// The most bytes of a file that is packed: twice its pixels, and a header. All frames get memory for the largest file.
inline int64_t most_packed_bytes(const FrameShape& shape) { return 2 * shape.bytes() + 65536; }

// Returns the most memory for `count` frames of a shape whose files have at most `largest` bytes.
int64_t packed_jpegs_bytes(const FrameShape& shape, int64_t count, int64_t largest);

using ReadFile = std::function<std::span<const uint8_t>(int64_t i, std::vector<uint8_t>& buffer)>;
using RefuseFile = std::function<void(int64_t i, const FrameError& error)>;

// Prepares frame i from a file of file_bytes[i] bytes, or no frame if that is 0. read(i, buffer) returns the file's
// bytes, in `buffer` or elsewhere. refuse(i, error) is called for a file that prepare_jpeg_frames would refuse, and may
// throw. All threads call both functions. `memory` is 16-byte aligned and has packed_jpegs_bytes() bytes.
PackedJpegs pack_jpegs(const FrameShape& shape, std::span<const int64_t> file_bytes, const ReadFile& read,
                       const RefuseFile& refuse, void* memory);

}  // namespace robocache
