// Decodes JPEG files, converts them to the stored form, and decodes that by the kernels' loops on the host.
#include <string>
#include <vector>

#include "robocache/image/codec.hpp"
#include "robocache/image/jpeg.hpp"
#include "robocache/image/jpeg_frames.hpp"
#include "tests/cpp/image/decode_on_host.hpp"
#include "tests/cpp/image/libjpeg.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace robocache;

namespace {

using Bytes = std::vector<uint8_t>;

test::Decoded decoded_on_host(const Bytes& file) {
  const std::vector<int64_t> offsets{0, std::ssize(file)}, rows{0};
  return test::decode_on_host(prepare_jpeg_frames(file, offsets, rows), rows);
}

}  // namespace

std::vector<std::string> seeds() {
  std::vector<std::string> inputs;
  const auto add = [&](int64_t height, int64_t width, int64_t channels, const test::JpegOptions& options) {
    const Bytes file = test::encode_jpeg(test::picture(height, width, channels), static_cast<int>(height),
                                         static_cast<int>(width), static_cast<int>(channels), options);
    inputs.emplace_back(file.begin(), file.end());
    const Bytes segmented = segment_jpeg(file).blob;
    inputs.emplace_back(segmented.begin(), segmented.end());
  };
  add(16, 24, 3, {});
  add(17, 18, 3, {.luma_across = 2, .luma_down = 1, .restart_mcus = 0, .optimised = true});
  add(16, 16, 3, {.luma_across = 1, .luma_down = 1, .restart_mcus = 1});
  add(16, 17, 3, {.restart_mcus = 0, .progressive = true});
  add(15, 15, 1, {.luma_across = 1, .luma_down = 1});
  return inputs;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Bytes file(data, data + size);
  FrameShape shape;
  if (!fuzz::refusal([&] { shape = frame_shape(Codec::kJpeg, file); }).empty() || shape.bytes() > (1 << 20)) return 0;
  Bytes pixels(static_cast<size_t>(shape.bytes()));
  const bool is_whole = fuzz::refusal([&] { decode_frame(Codec::kJpeg, file, shape, pixels.data()); }).empty();
  const std::string refusal = fuzz::refusal([&] {
    const Segmented segmented = segment_jpeg(file);
    Bytes stored_pixels(pixels.size());
    decode_frame(Codec::kJpeg, segmented.blob, shape, stored_pixels.data());
    const test::Decoded decoded = decoded_on_host(segmented.blob);
    fuzz::expect(decoded.status[0] == 0 && decoded.pixels == stored_pixels,
                 "the kernels' loops give other pixels than libjpeg");
    fuzz::expect(segmented.reencoded || !is_whole || stored_pixels == pixels,
                 "the form that is stored has other pixels");
  });
  if (refusal.find("inverse DCT") != std::string::npos) return 0;  // rule 40: decoders differ
  fuzz::expect(refusal.empty() || !is_whole, "decodes, but cannot be stored: " + refusal);
  fuzz::refusal([&] {
    const test::Decoded decoded = decoded_on_host(file);
    if (is_whole && decoded.status[0] == 0) {
      fuzz::expect(decoded.pixels == pixels,
                   "the kernels' loops give other pixels than libjpeg of the file as it came");
    }
  });
  return 0;
}
