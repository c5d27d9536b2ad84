// JPEG frames, as image/codec.hpp specifies them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "robocache/image/codec.hpp"
#include "robocache/image/frame.hpp"

namespace robocache {

FrameShape jpeg_shape(std::span<const uint8_t> blob);

// Throws FrameError if the header has another shape than `expected`.
void decode_jpeg_frame(std::span<const uint8_t> blob, const FrameShape& expected, uint8_t* out);

std::vector<uint8_t> encode_jpeg_frame(const uint8_t* pixels, const FrameShape& shape, const EncodeOptions& options);

}  // namespace robocache
