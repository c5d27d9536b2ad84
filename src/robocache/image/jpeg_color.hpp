// Converts a JPEG frame's planes to pixels: upsamples chroma by libjpeg's "fancy" triangle filter, and converts YCbCr
// to RGB in fixed point. The result has libjpeg-turbo's bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "robocache/core/host_device.hpp"
#include "robocache/image/decode_jpeg_params.hpp"
#include "robocache/image/jpeg_idct.hpp"

namespace robocache {

inline constexpr int32_t kJpegRun = 8;  // pixels of a row that are computed together

// Returns byte i of packed words; byte 0 is the lowest.
ROBOCACHE_HD int32_t packed_uint8(const uint32_t* words, int i) {
  return static_cast<int32_t>(words[i / 4] >> (8 * (i % 4)) & 255);
}

// Computes one chroma component, minus 128, for the kJpegRun pixels from (y, x) on; x is a multiple of kJpegRun.
ROBOCACHE_HD void jpeg_chroma_run(const uint8_t* plane, const JpegFrame& frame, const JpegPlanes& planes, int32_t y,
                                  int32_t x, int32_t (&out)[kJpegRun]) {
  if (frame.luma_across == 1) {
    uint32_t words[2];
    std::memcpy(words, __builtin_assume_aligned(plane + int64_t{y} * planes.chroma_pitch + x, 8), 8);
    for (int i = 0; i < kJpegRun; ++i) out[i] = packed_uint8(words, i) - 128;
    return;
  }
  // In each direction a pixel is 3/4 of its own sample and 1/4 of the next nearest one. At an edge the two are the same
  // sample. libjpeg-turbo repeats samples if a row has only one or two.
  const bool repeats = planes.chroma_width <= 2;
  const bool is_halved_down = frame.luma_down == 2;
  const int32_t row = is_halved_down ? y / 2 : y;
  int32_t far_index = row;
  if (is_halved_down && !repeats)
    far_index += y % 2 == 0 ? (row > 0 ? -1 : 0) : (row + 1 < planes.chroma_height ? 1 : 0);
  const uint8_t* const near_row = plane + int64_t{row} * planes.chroma_pitch;
  const uint8_t* const far_row = plane + int64_t{far_index} * planes.chroma_pitch;

  const int32_t first = x / 2;
  const int32_t last = planes.chroma_width - 1;
  const int32_t left = first > 0 ? first - 1 : 0;
  const int32_t right = first + 4 < last ? first + 4 : last;
  int32_t sums[6];  // columns first - 1 to first + 4: 3/4 and 1/4 of two rows, times 4, or one row alone
  uint32_t word;
  std::memcpy(&word, __builtin_assume_aligned(near_row + first, 4), 4);
  sums[0] = near_row[left];
  for (int i = 0; i < 4; ++i) sums[i + 1] = packed_uint8(&word, i);
  sums[5] = near_row[right];
  if (is_halved_down) {
    std::memcpy(&word, __builtin_assume_aligned(far_row + first, 4), 4);
    sums[0] = 3 * sums[0] + far_row[left];
    for (int i = 0; i < 4; ++i) sums[i + 1] = 3 * sums[i + 1] + packed_uint8(&word, i);
    sums[5] = 3 * sums[5] + far_row[right];
  }
  if (first + 3 > last) {  // the block extends beyond the frame
    for (int i = 1; i < 4; ++i) {
      if (first + i > last) sums[i + 1] = sums[i];
    }
  }
  if (repeats) {
    for (int i = 0; i < 4; ++i) out[2 * i] = out[2 * i + 1] = (is_halved_down ? sums[i + 1] / 4 : sums[i + 1]) - 128;
    return;
  }
  // Halves are rounded up in one column and down in the next.
  const int shift = is_halved_down ? 4 : 2;
  const int32_t left_bias = (is_halved_down ? 8 : 1) - (128 << shift);
  const int32_t right_bias = (is_halved_down ? 7 : 2) - (128 << shift);
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = (3 * sums[i + 1] + sums[i] + left_bias) >> shift;
    out[2 * i + 1] = (3 * sums[i + 1] + sums[i + 2] + right_bias) >> shift;
  }
}

// Computes the kJpegRun pixels of a grey frame from (y, x) on. x is a multiple of kJpegRun. Pixels beyond the frame's
// width are undefined.
ROBOCACHE_HD void jpeg_grey_run(const uint8_t* samples, const JpegPlanes& planes, int32_t y, int32_t x,
                                uint32_t (&grey)[2]) {
  std::memcpy(grey, __builtin_assume_aligned(samples + int64_t{y} * planes.luma_pitch + x, 8), 8);
}

// Whether jpeg_halved_chroma_run can replace jpeg_chroma_run; nearly always true.
ROBOCACHE_HD bool jpeg_chroma_is_halved(const JpegFrame& frame, const JpegPlanes& planes, int32_t x) {
  return frame.luma_across == 2 && frame.luma_down == 2 && planes.chroma_width > 2 && x / 2 + 3 < planes.chroma_width;
}

// Returns bytes 2 kPair and 2 kPair + 1 of a word, as two halves of 16 bits.
template <int kPair>
ROBOCACHE_HD uint32_t packed_halves(uint32_t word) {
#ifdef __CUDA_ARCH__
  return __byte_perm(word, 0, kPair == 0 ? 0x4140 : 0x4342);
#else
  const uint32_t pair = word >> (16 * kPair);
  return (pair & 255) | (pair & 0xff00) << 8;
#endif
}

// Computes both chroma components at half size in both directions, like jpeg_chroma_run. All loads come first, so that
// they overlap. No branch depends on the frame.
ROBOCACHE_HD void jpeg_halved_chroma_run(const uint8_t* chroma, const JpegPlanes& planes, int32_t y, int32_t x,
                                         int32_t (&blue)[kJpegRun], int32_t (&red)[kJpegRun]) {
  const int32_t row = y / 2, first = x / 2;
  const int32_t above = row > 0 ? row - 1 : 0;
  const int32_t below = row + 1 < planes.chroma_height ? row + 1 : row;
  const uint8_t* const near_row = chroma + int64_t{row} * planes.chroma_pitch + first;
  const uint8_t* const far_row = chroma + int64_t{y % 2 == 0 ? above : below} * planes.chroma_pitch + first;
  const int32_t left = first > 0 ? -1 : 0;
  const int32_t right = first + 4 < planes.chroma_width ? 4 : 3;
  uint32_t near_word[2], far_word[2], near_ends[2], far_ends[2];
  for (int i = 0; i < 2; ++i) {
    const uint8_t* const near_samples = near_row + i * planes.chroma_bytes;
    const uint8_t* const far_samples = far_row + i * planes.chroma_bytes;
    std::memcpy(&near_word[i], __builtin_assume_aligned(near_samples, 4), 4);
    std::memcpy(&far_word[i], __builtin_assume_aligned(far_samples, 4), 4);
    near_ends[i] = near_samples[left] | static_cast<uint32_t>(near_samples[right]) << 16;
    far_ends[i] = far_samples[left] | static_cast<uint32_t>(far_samples[right]) << 16;
  }
  for (int i = 0; i < 2; ++i) {
    // A word holds two sums, each at most 4 * 255.
    const uint32_t ends = 3 * near_ends[i] + far_ends[i];
    const uint32_t low = 3 * packed_halves<0>(near_word[i]) + packed_halves<0>(far_word[i]);
    const uint32_t high = 3 * packed_halves<1>(near_word[i]) + packed_halves<1>(far_word[i]);
    const auto lower = [](uint32_t word) { return static_cast<int32_t>(word & 0xffff); };
    const auto upper = [](uint32_t word) { return static_cast<int32_t>(word >> 16); };
    const int32_t sums[6] = {lower(ends), lower(low), upper(low), lower(high), upper(high), upper(ends)};
    int32_t(&out)[kJpegRun] = i == 0 ? blue : red;
    for (int k = 0; k < 4; ++k) {
      const int32_t middle = 3 * sums[k + 1] + (8 - (128 << 4));
      out[2 * k] = (middle + sums[k]) >> 4;
      out[2 * k + 1] = (middle + sums[k + 2] - 1) >> 4;
    }
  }
}

// Computes the pixels of an RGB frame; see jpeg_grey_run.
ROBOCACHE_HD void jpeg_rgb_run(const uint8_t* samples, const JpegFrame& frame, const JpegPlanes& planes, int32_t y,
                               int32_t x, uint32_t (&rgb)[6]) {
  uint32_t luma[2];
  jpeg_grey_run(samples, planes, y, x, luma);
  int32_t blue[kJpegRun], red[kJpegRun];
  if (const uint8_t* const chroma = samples + planes.chroma_begin; jpeg_chroma_is_halved(frame, planes, x)) {
    jpeg_halved_chroma_run(chroma, planes, y, x, blue, red);
  } else {
    jpeg_chroma_run(chroma, frame, planes, y, x, blue);
    jpeg_chroma_run(chroma + planes.chroma_bytes, frame, planes, y, x, red);
  }
  int32_t bytes[3 * kJpegRun];
  for (int i = 0; i < kJpegRun; ++i) {
    // The integer factors are round(c * 2^16) for the c at the end of each line.
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
