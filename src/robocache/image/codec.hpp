// One frame between its file and its pixels, on the calling thread. image/frames.hpp does many on all of them.
//
// A decoded JPEG is libjpeg-turbo's to the bit: its integer "islow" inverse DCT, its "fancy" upsampling, its conversion to
// RGB. Grey stays one channel. An Exif orientation is not applied: robots' cameras do not turn. CMYK and YCCK are refused.
// Of PNG come uint8 and, of 16 bits, uint16; 1, 2 and 4 bits of grey are spread to 0..255, palettes are expanded to RGB, an
// alpha channel is left out where all of it is opaque; a frame one can see through is refused.
//
// Nothing is repaired: a frame that is truncated or damaged in any way that its decoder notices is refused, never returned
// grey from some row on. No blob makes these functions read outside it, crash, or allocate more than in proportion to its
// length and the frame it is expected to be.
//
// Errors: FrameError says what is wrong and, of a damaged frame, near which byte.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/image/frame.hpp"

namespace robocache {

// By its first bytes; kRaw is never the answer. Throws FrameError for what is neither JPEG nor PNG.
Codec codec_of(std::span<const uint8_t> blob);

// What decoding `blob` gives, as far as its header says: as cheap as reading some hundred bytes. Throws FrameError for a
// header that is none, for what is refused above, sides of 0 or beyond kMaxFrameSide, and for more pixels than so few bytes
// can hold: memory of this shape may be allocated on the word of a stranger. Throws ArgumentError for kRaw.
FrameShape frame_shape(Codec codec, std::span<const uint8_t> blob);

// Decodes into `out`, expected.bytes() long. Throws FrameError, also where the frame is not as expected; what `out` then
// holds is free. kRaw copies.
void decode_frame(Codec codec, std::span<const uint8_t> blob, const FrameShape& expected, void* out);

enum class Subsampling : uint8_t {
  k420,  // one sample of colour for 2 x 2 pixels
  k444,  // one for each
};

// "4:2:0", "4:4:4". Throws ArgumentError naming `subsampling`.
Subsampling subsampling_from_name(std::string_view name);

// Of JPEG; PNG and raw are exact and take none.
struct EncodeOptions {
  int64_t quality = 95;  // libjpeg's, 1 to 100
  Subsampling subsampling = Subsampling::k420;
};

// The file of a frame. JPEG takes uint8, and is written as segment_jpeg writes it; PNG takes uint8 and uint16, at zlib's
// fastest level. Throws ArgumentError for a shape or quality that the codec does not take.
std::vector<uint8_t> encode_frame(Codec codec, const void* pixels, const FrameShape& shape,
                                  const EncodeOptions& options = {});

// MCUs (minimum coded units: the blocks of 8 x 8 that belong to so many pixels, 16 x 16 of 4:2:0) between two restart markers.
// Each segment can be decoded by itself, so thousands are at once: in 4:2:0 of quality 95 for 3.6 % more bytes.
constexpr int restart_mcus(int mcu_pixels) { return mcu_pixels >= 256 ? 1 : 2; }

struct Segmented {
  std::vector<uint8_t> blob;
  bool reencoded = false;  // once more through the loss of JPEG, at quality 95
  std::string why;         // ... because; else empty
};

// The same picture as the decoders here like it best: a standard JPEG, baseline, Huffman coded, one interleaved scan, 4:4:4,
// 4:2:2, 4:2:0 or grey, YCbCr, a restart marker every restart_mcus(), no metadata. The Huffman tables are the standard's
// example, two for DC and two for AC, in every file: tables of each frame's own would spare 4 to 5 % of the bytes, and
// cost a GPU 9 KB a frame.
//
// Where the coefficients can be kept they are, of progressive files too: the decoded pixels are the same to the bit. They
// cannot be kept of other samplings, of JPEGs that store RGB, of unfinished progressive ones and of some rarities; then the
// pixels are encoded anew and `why` says so. Throws FrameError for what decode_frame refuses, and for a block beyond the range
// of the inverse DCT (rule 40 of docs/rules.md), whose pixels differ from decoder to decoder.
Segmented segment_jpeg(std::span<const uint8_t> blob);

}  // namespace robocache
