// Converts one frame between its file and its pixels, on the calling thread. image/frames.hpp handles many frames on
// all threads.
//
// A decoded JPEG has exactly libjpeg-turbo's pixels: its integer inverse DCT "islow", its upsampling "fancy", its
// conversion to RGB. Grey stays one channel. An Exif orientation is not applied, because robots' cameras do not turn.
// CMYK and YCCK are refused. A PNG gives uint8, or uint16 if it has 16 bits. Grey of 1, 2 and 4 bits is scaled to
// 0..255. Palettes become RGB. An alpha channel is dropped if the frame is opaque, otherwise the frame is refused.
//
// Nothing is repaired: if the decoder finds a frame truncated or damaged, the frame is refused, never returned with
// grey rows. Whatever the bytes are, these functions do not crash or read outside the blob. They allocate memory at
// most in proportion to the blob's length and to the expected frame.
//
// FrameError describes the fault and, for a damaged frame, the byte near it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/image/frame.hpp"

namespace robocache {

// Returns the codec that the first bytes show, never kRaw. Throws FrameError if they are neither JPEG nor PNG.
Codec codec_of(std::span<const uint8_t> blob);

// Returns the shape of the decoded frame, from the header; reads about a hundred bytes. Throws FrameError for a bad
// header, for frames refused above, for sides of 0 or beyond kMaxFrameSide, and for more pixels than the file's bytes
// can hold. So a caller may allocate memory of this shape even for an untrusted file. Throws ArgumentError for kRaw.
FrameShape frame_shape(Codec codec, std::span<const uint8_t> blob);

// Decodes into `out`, memory of expected.bytes() bytes. kRaw copies. Throws FrameError, also if the frame does not have
// the `expected` shape; the content of `out` is then undefined.
void decode_frame(Codec codec, std::span<const uint8_t> blob, const FrameShape& expected, void* out);

enum class Subsampling : uint8_t {
  k420,  // one colour sample per 2 x 2 pixels
  k444,  // one colour sample per pixel
};
template <>
inline constexpr std::string_view kNames<Subsampling>[] = {"4:2:0", "4:4:4"};

// Options of JPEG. PNG and raw frames are exact and have none.
struct EncodeOptions {
  int64_t quality = 95;  // libjpeg's scale, 1 to 100
  Subsampling subsampling = Subsampling::k420;
};

// Encodes a frame. JPEG needs uint8 and gives files in the form of segment_jpeg. PNG needs uint8 or uint16 and uses
// zlib's fastest level. Throws ArgumentError for a shape or quality that the codec does not support.
std::vector<uint8_t> encode_frame(Codec codec, const void* pixels, const FrameShape& shape,
                                  const EncodeOptions& options = {});

// The number of MCUs between two restart markers. An MCU (minimum coded unit) holds the blocks of `mcu_pixels` pixels:
// 16 x 16 for 4:2:0. Each segment can be decoded by itself, so a GPU decodes thousands at once. At 4:2:0 and quality 95
// this costs 3.6 % more bytes.
constexpr int restart_mcus(int mcu_pixels) { return mcu_pixels >= 256 ? 1 : 2; }

struct Segmented {
  std::vector<uint8_t> blob;
  bool reencoded = false;  // encoded again at quality 95, with JPEG's loss
  std::string why;         // why it was encoded again; else empty
};

// Rewrites a JPEG in the form that the decoders here decode fastest: standard, baseline, Huffman coded, one interleaved
// scan, YCbCr in 4:4:4, 4:2:2 or 4:2:0, or grey, a restart marker every restart_mcus(), no metadata. Every file uses
// the standard's example Huffman tables, two for DC and two for AC. Tables per frame would save 4 to 5 % of the bytes,
// but take 9 KB of GPU memory per frame.
//
// The coefficients are kept if possible, also those of progressive files: the decoded pixels are the same to the bit.
// They cannot be kept for other samplings, for JPEGs that store RGB, for unfinished progressive files, and in some rare
// cases. Then the pixels are encoded again, and `why` gives the reason. Throws FrameError for frames that decode_frame
// refuses, and for a block beyond the range of the inverse DCT (rule 40 of docs/rules.md), whose pixels differ between
// decoders.
Segmented segment_jpeg(std::span<const uint8_t> blob);

}  // namespace robocache
