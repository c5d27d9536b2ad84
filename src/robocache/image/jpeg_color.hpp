// From a JPEG frame's planes to pixels: chroma brought to full size by libjpeg's "fancy" upsampling, a triangle filter,
// and YCbCr to RGB in fixed point. Same bits as libjpeg-turbo's.
#pragma once

#include <cstdint>
#include <cstring>

#include "robocache/core/host_device.hpp"
#include "robocache/image/decode_jpeg_params.hpp"
#include "robocache/image/jpeg_idct.hpp"

namespace robocache {

inline constexpr int32_t kJpegRun = 8;  // pixels of a row that are made at once

// Byte i of packed words, the lowest first.
ROBOCACHE_HD int32_t packed_uint8(const uint32_t* words, int i) {
  return static_cast<int32_t>(words[i / 4] >> (8 * (i % 4)) & 255);
}

// One chroma component, less 128, at the kJpegRun pixels from (y, x) on; x is a multiple of kJpegRun.
ROBOCACHE_HD void jpeg_chroma_run(const uint8_t* plane, const JpegFrame& frame, const JpegPlanes& planes, int32_t y,
                                  int32_t x, int32_t (&out)[kJpegRun]) {
  if (frame.luma_across == 1) {
    uint32_t words[2];
    std::memcpy(words, __builtin_assume_aligned(plane + y * planes.chroma_pitch + x, 8), 8);
    for (int i = 0; i < kJpegRun; ++i) out[i] = packed_uint8(words, i) - 128;
    return;
  }
  // A pixel is 3/4 the sample it lies in and 1/4 the next nearest, across and down; at the edges that is the same one.
  // libjpeg-turbo repeats samples where there are only one or two across.
  const bool repeat = planes.chroma_width <= 2;
  const bool two_down = frame.luma_down == 2;
  const int32_t row = two_down ? y / 2 : y;
  int32_t far = row;
  if (two_down && !repeat) far += y % 2 == 0 ? (row > 0 ? -1 : 0) : (row + 1 < planes.chroma_height ? 1 : 0);
  const uint8_t* const near_row = plane + row * planes.chroma_pitch;
  const uint8_t* const far_row = plane + far * planes.chroma_pitch;

  const int32_t first = x / 2;
  const int32_t last = planes.chroma_width - 1;
  const int32_t left = first > 0 ? first - 1 : 0;
  const int32_t right = first + 4 < last ? first + 4 : last;
  int32_t sums[6];  // of columns first - 1 to first + 4: 3/4 and 1/4 of two rows, times 4, or one row alone
  uint32_t word;
  std::memcpy(&word, __builtin_assume_aligned(near_row + first, 4), 4);
  sums[0] = near_row[left];
  for (int i = 0; i < 4; ++i) sums[i + 1] = packed_uint8(&word, i);
  sums[5] = near_row[right];
  if (two_down) {
    std::memcpy(&word, __builtin_assume_aligned(far_row + first, 4), 4);
    sums[0] = 3 * sums[0] + far_row[left];
    for (int i = 0; i < 4; ++i) sums[i + 1] = 3 * sums[i + 1] + packed_uint8(&word, i);
    sums[5] = 3 * sums[5] + far_row[right];
  }
  if (first + 3 > last) {  // the block goes on behind the frame
    for (int i = 1; i < 4; ++i) {
      if (first + i > last) sums[i + 1] = sums[i];
    }
  }
  if (repeat) {
    for (int i = 0; i < 4; ++i) out[2 * i] = out[2 * i + 1] = (two_down ? sums[i + 1] / 4 : sums[i + 1]) - 128;
    return;
  }
  // Halves are rounded up and down in turn.
  const int shift = two_down ? 4 : 2;
  const int32_t left_bias = (two_down ? 8 : 1) - (128 << shift);
  const int32_t right_bias = (two_down ? 7 : 2) - (128 << shift);
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = (3 * sums[i + 1] + sums[i] + left_bias) >> shift;
    out[2 * i + 1] = (3 * sums[i + 1] + sums[i + 2] + right_bias) >> shift;
  }
}

// The kJpegRun pixels from (y, x) on: 8 bytes of a grey frame, 24 of an RGB one. x is a multiple of kJpegRun; pixels
// past the frame's width hold anything.
ROBOCACHE_HD void jpeg_grey_run(const uint8_t* samples, const JpegPlanes& planes, int32_t y, int32_t x,
                                uint32_t (&grey)[2]) {
  std::memcpy(grey, __builtin_assume_aligned(samples + y * planes.luma_pitch + x, 8), 8);
}

ROBOCACHE_HD void jpeg_rgb_run(const uint8_t* samples, const JpegFrame& frame, const JpegPlanes& planes, int32_t y,
                               int32_t x, uint32_t (&rgb)[6]) {
  uint32_t luma[2];
  jpeg_grey_run(samples, planes, y, x, luma);
  int32_t blue[kJpegRun], red[kJpegRun];
  jpeg_chroma_run(samples + planes.chroma_begin, frame, planes, y, x, blue);
  jpeg_chroma_run(samples + planes.chroma_begin + planes.chroma_bytes, frame, planes, y, x, red);
  int32_t bytes[3 * kJpegRun];
  for (int i = 0; i < kJpegRun; ++i) {
    // constants: round(c * 2^16)
#ifdef __CUDA_ARCH__
    const auto y_half = static_cast<int32_t>(__byte_perm(luma[i / 4], 0x8000, 0x4054 | (i % 4) << 8));
#else
    const int32_t y_half = (packed_uint8(luma, i) << 16) + 32768;
#endif
    bytes[3 * i] = (y_half + 91881 * red[i]) >> 16;                        // 1.40200
    bytes[3 * i + 1] = (y_half - 22554 * blue[i] - 46802 * red[i]) >> 16;  // 0.34414, 0.71414
    bytes[3 * i + 2] = (y_half + 116130 * blue[i]) >> 16;                  // 1.77200
  }
  for (int i = 0; i < 6; ++i) {
    rgb[i] = pack_uint8(bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]);
  }
}

}  // namespace robocache
