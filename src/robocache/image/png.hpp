// PNG frames, as image/codec.hpp specifies them. zlib inflates and deflates.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "robocache/image/frame.hpp"

namespace robocache {

FrameShape png_shape(std::span<const uint8_t> blob);

// Throws FrameError if the header has another shape than `expected`.
void decode_png_frame(std::span<const uint8_t> blob, const FrameShape& expected, void* out);

// Throws what decode_png_frame would throw, but is faster: for kinds of pixels in which every value is valid, it makes
// no pixels.
void check_png_frame(std::span<const uint8_t> blob, const FrameShape& expected);

// Takes uint8 and uint16.
std::vector<uint8_t> encode_png_frame(const void* pixels, const FrameShape& shape);

}  // namespace robocache
