// PNG, as image/codec.hpp promises it. Only inflating and deflating are zlib's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "robocache/image/frame.hpp"

namespace robocache {

FrameShape png_shape(std::span<const uint8_t> blob);

// Throws FrameError where the header says another shape than `expected`.
void decode_png_frame(std::span<const uint8_t> blob, const FrameShape& expected, void* out);

// Throws what decode_png_frame would, sooner: pixels are not made where any would do.
void check_png_frame(std::span<const uint8_t> blob, const FrameShape& expected);

// uint8 and uint16.
std::vector<uint8_t> encode_png_frame(const void* pixels, const FrameShape& shape);

}  // namespace robocache
