// One frame between its file and its pixels, on the calling thread. image/frames.hpp handles many on all threads.
//
// A decoded JPEG has libjpeg-turbo's pixels, bit for bit: the integer "islow" inverse DCT, the "fancy" upsampling, the
// conversion to RGB. Grey stays one channel. An Exif orientation is not applied, because robots' cameras do not turn.
// CMYK and YCCK are refused. A PNG gives uint8, or uint16 if it has 16 bits; grey of 1, 2 and 4 bits is scaled to
// 0..255; palettes become RGB; an alpha channel is dropped if the frame is opaque, and otherwise the frame is refused.
//
// Nothing is repaired: a frame whose decoder notices that it is truncated or damaged is refused, and never returned
// with grey rows. No blob makes these functions read outside it, crash, or allocate more than in proportion to its
// length and to the expected frame.
//
// FrameError says what is wrong with a frame and, if it is damaged, near which byte.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/image/frame.hpp"

namespace robocache {

// Tells the codec by the first bytes, never kRaw. Throws FrameError for anything but JPEG and PNG.
Codec codec_of(std::span<const uint8_t> blob);

// The shape that decoding gives, according to the header; reads some hundred bytes. Throws FrameError for a bad header,
// for what is refused above, for sides of 0 or beyond kMaxFrameSide, and for more pixels than so few bytes can hold:
// memory of this shape may be allocated for a file from a stranger. Throws ArgumentError for kRaw.
FrameShape frame_shape(Codec codec, std::span<const uint8_t> blob);

// Decodes into `out`, which has expected.bytes(). kRaw copies. Throws FrameError, also if the frame is not `expected`;
// `out` then holds anything.
void decode_frame(Codec codec, std::span<const uint8_t> blob, const FrameShape& expected, void* out);

enum class Subsampling : uint8_t {
  k420,  // one sample of colour for 2 x 2 pixels
  k444,  // one sample for each pixel
};

// Reads "4:2:0" or "4:4:4". Throws ArgumentError naming `subsampling`.
Subsampling subsampling_from_name(std::string_view name);

// Options of JPEG. PNG and raw frames are exact and have none.
struct EncodeOptions {
  int64_t quality = 95;  // libjpeg's scale, 1 to 100
  Subsampling subsampling = Subsampling::k420;
};

// Encodes a frame. JPEG takes uint8 and gives what segment_jpeg gives; PNG takes uint8 and uint16, at zlib's fastest
// level. Throws ArgumentError for a shape or quality that the codec does not take.
std::vector<uint8_t> encode_frame(Codec codec, const void* pixels, const FrameShape& shape,
                                  const EncodeOptions& options = {});

// The number of MCUs between two restart markers. An MCU (minimum coded unit) holds the blocks of `mcu_pixels` pixels:
// 16 x 16 for 4:2:0. Each segment can be decoded by itself, so a GPU decodes thousands at once. At 4:2:0 and quality 95
// this costs 3.6 % more bytes.
constexpr int restart_mcus(int mcu_pixels) { return mcu_pixels >= 256 ? 1 : 2; }

struct Segmented {
  std::vector<uint8_t> blob;
  bool reencoded = false;  // encoded again at quality 95, with JPEG's loss
  std::string why;         // the reason for encoding again; else empty
};

// Rewrites a JPEG in the form that the decoders here are fastest at: standard, baseline, Huffman coded, one interleaved
// scan, YCbCr in 4:4:4, 4:2:2 or 4:2:0, or grey, a restart marker every restart_mcus(), no metadata. Every file has the
// standard's example Huffman tables, two for DC and two for AC: tables for each frame would save 4 to 5 % of the bytes
// and cost a GPU 9 KB a frame.
//
// The coefficients are kept if possible, also those of progressive files: the decoded pixels are the same to the bit.
// They cannot be kept for other samplings, for JPEGs that store RGB, for unfinished progressive files, and in some rare
// cases; then the pixels are encoded again, and `why` says so. Throws FrameError for what decode_frame refuses, and for
// a block beyond the range of the inverse DCT (rule 40 of docs/rules.md), whose pixels differ from decoder to decoder.
Segmented segment_jpeg(std::span<const uint8_t> blob);

}  // namespace robocache
