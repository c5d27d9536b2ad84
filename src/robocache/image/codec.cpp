#include "robocache/image/codec.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "robocache/core/arguments.hpp"
#include "robocache/core/tensor_view.hpp"
#include "robocache/image/jpeg.hpp"
#include "robocache/image/png.hpp"

namespace robocache {
namespace {

void check_encodable(Codec codec, const FrameShape& shape, const EncodeOptions& options) {
  const bool sides_fit =
      shape.height >= 1 && shape.width >= 1 && shape.height <= kMaxFrameSide && shape.width <= kMaxFrameSide;
  if (!sides_fit || (shape.channels != 1 && shape.channels != 3)) {
    refuse("frames: expected sides of 1 to ", std::to_string(kMaxFrameSide), " and 1 or 3 channels, got ",
           shape.describe());
  }
  const bool is_jpeg = codec == Codec::kJpeg;
  if (shape.dtype != DType::kUInt8 && (is_jpeg || shape.dtype != DType::kUInt16)) {
    refuse_type("frames: expected uint8", is_jpeg ? "" : " or uint16", " for ", name_of(codec), ", got ",
                dtype_name(shape.dtype));
  }
  if (is_jpeg && (options.quality < 1 || options.quality > 100)) {
    refuse("quality: expected 1 to 100, got ", std::to_string(options.quality));
  }
}

}  // namespace

std::string FrameShape::describe() const {
  const std::array<int64_t, 3> sides{height, width, channels};
  return shape_string(sides) + " " + std::string(dtype_name(dtype));
}

Codec codec_of(std::span<const uint8_t> blob) {
  constexpr std::array<uint8_t, 3> kJpegStart{0xff, 0xd8, 0xff};
  constexpr std::array<uint8_t, 4> kPngStart{0x89, 'P', 'N', 'G'};
  const auto starts_with = [&](std::span<const uint8_t> start) {
    return blob.size() >= start.size() && std::memcmp(blob.data(), start.data(), start.size()) == 0;
  };
  if (starts_with(kJpegStart)) return Codec::kJpeg;
  if (starts_with(kPngStart)) return Codec::kPng;
  std::string bytes;
  for (const uint8_t byte : blob.first(std::min<size_t>(blob.size(), 4))) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    bytes += (bytes.empty() ? "" : " ");
    bytes += kDigits[byte >> 4];
    bytes += kDigits[byte & 15];
  }
  throw FrameError("expected a JPEG (ff d8 ff) or a PNG (89 50 4e 47), got " + std::to_string(blob.size()) + " bytes" +
                   (bytes.empty() ? "" : " that begin with " + bytes));
}

FrameShape frame_shape(Codec codec, std::span<const uint8_t> blob) {
  if (codec == Codec::kJpeg) return jpeg_shape(blob);
  if (codec == Codec::kPng) return png_shape(blob);
  refuse("codec: expected jpeg or png, whose files say their shape, got raw");
}

void decode_frame(Codec codec, std::span<const uint8_t> blob, const FrameShape& expected, void* out) {
  switch (codec) {
    case Codec::kJpeg:
      return decode_jpeg_frame(blob, expected, static_cast<uint8_t*>(out));
    case Codec::kPng:
      return decode_png_frame(blob, expected, out);
    case Codec::kRaw:
      if (static_cast<int64_t>(blob.size()) != expected.bytes()) {
        throw FrameError("raw: expected " + expected.describe() + ", " + std::to_string(expected.bytes()) +
                         " bytes, got " + std::to_string(blob.size()));
      }
      std::memcpy(out, blob.data(), blob.size());
      return;
  }
}

std::vector<uint8_t> encode_frame(Codec codec, const void* pixels, const FrameShape& shape,
                                  const EncodeOptions& options) {
  if (codec == Codec::kRaw) {
    const auto* bytes = static_cast<const uint8_t*>(pixels);
    return {bytes, bytes + shape.bytes()};
  }
  check_encodable(codec, shape, options);
  if (codec == Codec::kJpeg) return encode_jpeg_frame(static_cast<const uint8_t*>(pixels), shape, options);
  return encode_png_frame(pixels, shape);
}

}  // namespace robocache
