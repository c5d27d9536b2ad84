// Decodes PNG files. The checksums of their chunks are corrected first, so that damaged chunks reach the decoder.
#include <string>
#include <vector>

#include "robocache/image/codec.hpp"
#include "robocache/image/png.hpp"
#include "tests/cpp/image/picture.hpp"
#include "tests/cpp/image/png_checksums.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace robocache;

std::vector<std::string> seeds() {
  std::vector<std::string> inputs;
  for (const FrameShape& shape : {FrameShape{9, 7, 3, DType::kUInt8}, FrameShape{6, 5, 1, DType::kUInt8},
                                  FrameShape{8, 5, 1, DType::kUInt16}, FrameShape{4, 4, 3, DType::kUInt16}}) {
    const auto pixels = test::picture(shape.height, shape.width, shape.channels * dtype_size(shape.dtype));
    const std::vector<uint8_t> file = encode_frame(Codec::kPng, pixels.data(), shape);
    inputs.emplace_back(file.begin(), file.end());
  }
  return inputs;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint8_t> file(data, data + size);
  test::mend_checksums(&file);
  FrameShape shape;
  if (!fuzz::refusal([&] { shape = png_shape(file); }).empty() || shape.bytes() > (1 << 24)) return 0;
  std::vector<uint8_t> pixels(static_cast<size_t>(shape.bytes()));
  const std::string decoding = fuzz::refusal([&] { decode_png_frame(file, shape, pixels.data()); });
  const std::string checking = fuzz::refusal([&] { check_png_frame(file, shape); });
  fuzz::expect(decoding == checking, "decoding says '" + decoding + "', checking '" + checking + "'");
  if (!decoding.empty()) return 0;
  const std::vector<uint8_t> encoded = encode_frame(Codec::kPng, pixels.data(), shape);
  std::vector<uint8_t> decoded(pixels.size());
  decode_png_frame(encoded, shape, decoded.data());
  fuzz::expect(decoded == pixels, "pixels that are encoded and decoded change");
  return 0;
}
