// Decodes JPEGs on the host with the functions of the kernels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "robocache/image/decode_jpeg_params.hpp"
#include "robocache/image/jpeg_color.hpp"
#include "robocache/image/jpeg_frames.hpp"
#include "robocache/image/jpeg_scan.hpp"

namespace robocache::test {

struct Decoded {
  std::vector<uint8_t> pixels;  // [rows, height, width, channels]
  std::vector<int32_t> status;  // [rows]
};

// A block's coefficients, in the form that decode_jpeg_segment needs.
class BlockCoefficients {
 public:
  void set(uint32_t index, int16_t value) { values_[index] = value; }
  void take(uint32_t (&words)[32]) {
    std::memcpy(words, values_, sizeof(values_));
    std::memset(values_, 0, sizeof(values_));
  }

 private:
  int16_t values_[64]{};
};

// Copies the words of each segment first, so that a sanitizer sees a read past them.
inline Decoded decode_on_host(const JpegFrames& frames, const std::vector<int64_t>& rows) {
  const size_t frame_bytes = size_t(frames.height) * size_t(frames.width) * size_t(frames.channels);
  Decoded decoded{std::vector<uint8_t>(rows.size() * frame_bytes), std::vector<int32_t>(rows.size())};
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0 || rows[i] >= int64_t(frames.frames.size())) continue;
    const JpegFrame& frame = frames.frames[size_t(rows[i])];
    const JpegPlanes planes = jpeg_planes(frame, frames.height, frames.width, frames.channels);
    std::vector<uint64_t> samples(size_t(planes.bytes) / 8);  // aligned to 8 bytes
    auto* const bytes = reinterpret_cast<uint8_t*>(samples.data());
    for (int32_t segment = 0; segment < frame.segment_count; ++segment) {
      const uint32_t* const begins = frames.segments.data() + frame.segments + segment;
      const uint32_t first_byte = begins[0] % 4, count = begins[1] - begins[0];
      const uint32_t* const from = frames.words.data() + frame.words + begins[0] / 4;
      const std::vector<uint32_t> words(from, from + JpegBits::word_count(first_byte, count));
      BlockCoefficients coefficients;
      if (!decode_jpeg_segment(frame, planes, frames.tables[size_t(frame.tables)], frames.long_entries.data(),
                               frames.channels, segment, words.data(), first_byte, count, coefficients, bytes)) {
        decoded.status[i] = 1;
      }
    }
    if (decoded.status[i] != 0) continue;
    for (int32_t y = 0; y < frames.height; ++y) {
      for (int32_t x = 0; x < frames.width; x += kJpegRun) {
        uint32_t run[6];
        if (frames.channels == 3) {
          jpeg_rgb_run(bytes, frame, planes, y, x, run);
        } else {
          uint32_t grey[2];
          jpeg_grey_run(bytes, planes, y, x, grey);
          std::copy(grey, grey + 2, run);
        }
        std::memcpy(decoded.pixels.data() + i * frame_bytes + size_t((y * frames.width + x) * frames.channels), run,
                    size_t(std::min(kJpegRun, frames.width - x) * frames.channels));
      }
    }
  }
  return decoded;
}

}  // namespace robocache::test
