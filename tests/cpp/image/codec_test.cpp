#include "robocache/image/codec.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "robocache/core/error.hpp"
#include "robocache/image/frames.hpp"
#include "tests/cpp/expect_refused.hpp"
#include "tests/cpp/image/libjpeg.hpp"
#include "tests/cpp/image/picture.hpp"
#include "tests/cpp/trials.hpp"

namespace robocache {
namespace {

using test::expect_refused;
using test::jpeg;
using test::JpegOptions;
using test::marker;
using test::picture;
using Bytes = std::vector<uint8_t>;

constexpr int kSizes[][2] = {{1, 1}, {1, 65}, {7, 9}, {8, 8}, {16, 16}, {17, 33}, {31, 2}, {100, 75}, {224, 224}};

Bytes decoded(Codec codec, const Bytes& file, const FrameShape& shape) {
  Bytes out(static_cast<size_t>(shape.bytes()), 0xa5);
  decode_frame(codec, file, shape, out.data());
  return out;
}

int count_markers(const Bytes& file, uint8_t first, uint8_t last) {
  int count = 0;
  for (size_t i = 0; i + 1 < file.size(); ++i) count += file[i] == 0xff && file[i + 1] >= first && file[i + 1] <= last;
  return count;
}

constexpr uint8_t kSof0 = 0xc0, kDht = 0xc4, kSoi = 0xd8, kEoi = 0xd9, kSos = 0xda, kDqt = 0xdb, kDri = 0xdd;

// Expects a file as segment_jpeg promises it, with `across` x `down` luma samples per chroma sample.
void expect_segmented(const Bytes& file, int height, int width, int channels, int across, int down) {
  EXPECT_EQ(file[0] << 8 | file[1], 0xff00 | kSoi);
  EXPECT_EQ(count_markers(file, kSof0, 0xcf), 1 + count_markers(file, kDht, kDht));  // one frame header
  const size_t frame = marker(file, kSof0);
  ASSERT_LT(frame, file.size());
  EXPECT_EQ(file[frame + 4], 8);
  ASSERT_EQ(file[frame + 9], channels);
  EXPECT_EQ(file[frame + 11], across << 4 | down);
  for (int c = 1; c < channels; ++c) EXPECT_EQ(file[frame + 11 + 3 * static_cast<size_t>(c)], 0x11);
  EXPECT_EQ(count_markers(file, kSos, kSos), 1);
  EXPECT_EQ(file[marker(file, kSos) + 4], channels);
  const size_t restart = marker(file, kDri);
  ASSERT_LT(restart, file.size());
  const int restart_interval = across * down == 4 ? 1 : 2;  // in MCUs
  EXPECT_EQ(file[restart + 4] << 8 | file[restart + 5], restart_interval);
  const int mcus = ((width + 8 * across - 1) / (8 * across)) * ((height + 8 * down - 1) / (8 * down));
  EXPECT_EQ(count_markers(file, 0xd0, 0xd7), (mcus - 1) / restart_interval);
  int number = 0;
  for (size_t i = 0; i + 1 < file.size(); ++i) {
    if (file[i] == 0xff && file[i + 1] >= 0xd0 && file[i + 1] <= 0xd7) {
      EXPECT_EQ(file[i + 1] & 7, number++ & 7);
    }
  }
}

TEST(Codec, RecognisesFilesByTheirFirstBytes) {
  EXPECT_EQ(codec_of(jpeg(8, 8, 3, {})), Codec::kJpeg);
  EXPECT_EQ(codec_of(encode_frame(Codec::kPng, picture(8, 8, 3).data(), {8, 8, 3})), Codec::kPng);
  expect_refused<FrameError>([] { codec_of({}); }, "expected a JPEG (ff d8 ff) or a PNG (89 50 4e 47), got 0 bytes");
  expect_refused<FrameError>([] { codec_of(Bytes{'G', 'I', 'F', '8', '9'}); }, "expected a JPEG", "47 49 46 38");
}

TEST(Codec, JpegsDecodeToLibjpegsPixels) {
  for (const auto& [height, width] : kSizes) {
    for (const int channels : {1, 3}) {
      for (const auto& [across, down] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
        if (channels == 1 && across * down > 1) continue;
        for (const bool progressive : {false, true}) {
          const Bytes file =
              jpeg(height, width, channels, {.luma_across = across, .luma_down = down, .progressive = progressive});
          const auto oracle = test::decode_by_libjpeg(file.data(), file.size());
          const FrameShape shape{height, width, channels};
          EXPECT_EQ(frame_shape(Codec::kJpeg, file), shape);
          EXPECT_EQ(decoded(Codec::kJpeg, file, shape), oracle.pixels) << shape.describe() << across << down;
        }
      }
    }
  }
}

TEST(Codec, SegmentingIsLossless) {
  for (const auto& [height, width] : kSizes) {
    for (const int channels : {1, 3}) {
      // Grey with a sampling of 2 x 2 means the same as 1 x 1, and some encoders write it.
      for (const auto& [across, down] : {std::pair{1, 1}, {2, 1}, {2, 2}}) {
        for (JpegOptions options : {JpegOptions{}, JpegOptions{.restart_mcus = 0}, JpegOptions{.restart_mcus = 7},
                                    JpegOptions{.optimised = true}, JpegOptions{.interleaved = channels == 1},
                                    JpegOptions{.quality = 30, .progressive = true}}) {
          options.luma_across = across;
          options.luma_down = down;
          const Bytes file = jpeg(height, width, channels, options);
          const Segmented segmented = segment_jpeg(file);
          EXPECT_FALSE(segmented.reencoded) << segmented.why;
          EXPECT_EQ(segmented.why, "");
          const bool is_grey = channels == 1;
          expect_segmented(segmented.blob, height, width, channels, is_grey ? 1 : across, is_grey ? 1 : down);
          const FrameShape shape{height, width, channels};
          EXPECT_EQ(decoded(Codec::kJpeg, segmented.blob, shape), decoded(Codec::kJpeg, file, shape));
          EXPECT_EQ(segment_jpeg(segmented.blob).blob, segmented.blob);
        }
      }
    }
  }
}

TEST(Codec, SegmentingKeepsTheLargestCoefficients) {
  Bytes pixels;  // blocks of black, of white, and of stripes of both
  for (int i = 0; i < 32 * 32; ++i) pixels.push_back(i % 32 < 16 ? (i / 8 % 2 == 0 ? 0 : 255) : (i % 2 == 0 ? 0 : 255));
  const Bytes file = test::encode_jpeg(pixels, 32, 32, 1, {.quality = 100, .luma_across = 1, .luma_down = 1});
  const Segmented segmented = segment_jpeg(file);
  EXPECT_FALSE(segmented.reencoded) << segmented.why;
  EXPECT_EQ(decoded(Codec::kJpeg, segmented.blob, {32, 32, 1}), decoded(Codec::kJpeg, file, {32, 32, 1}));
}

TEST(Codec, RefusesUnsupportedJpegs) {
  const auto expect_fault = [](const Bytes& file, const std::string& why) {
    const std::string start = "JPEG of " + std::to_string(file.size()) + " bytes: ";
    expect_refused<FrameError>([&] { frame_shape(Codec::kJpeg, file); }, start, why);
    expect_refused<FrameError>([&] { decoded(Codec::kJpeg, file, {16, 16, 3}); }, start, why);
    expect_refused<FrameError>([&] { segment_jpeg(file); }, start, why);
  };
  expect_fault(jpeg(16, 16, 4, {.luma_across = 1, .luma_down = 1}), "expected grey, YCbCr or RGB, got CMYK");
  Bytes ycck = jpeg(16, 16, 4, {.luma_across = 1, .luma_down = 1});
  const size_t adobe = marker(ycck, 0xee);
  ASSERT_LT(adobe, ycck.size());
  ycck[adobe + 15] = 2;
  expect_fault(ycck, "got YCCK");

  const Bytes good = jpeg(16, 16, 3, {});
  const size_t frame = marker(good, kSof0);
  const auto with_bytes = [&](size_t offset, std::initializer_list<uint8_t> bytes) {
    Bytes file = good;
    std::copy(bytes.begin(), bytes.end(), file.begin() + static_cast<std::ptrdiff_t>(offset));
    return file;
  };
  expect_fault(with_bytes(frame + 4, {12}), "precision");
  expect_fault(with_bytes(frame + 5, {0, 0}), "Empty");
  expect_fault(with_bytes(frame + 7, {0, 0}), "Empty");
  expect_fault(with_bytes(frame + 5, {0xff, 0xff, 0xff, 0xff}), "65500");
  expect_fault(with_bytes(frame + 5, {0xff, 0xdc, 0xff, 0xdc}),
               "[65500, 65500, 3] uint8, more than the file's bytes can hold");
  expect_fault(with_bytes(0, {0xff, 0xd9}), "0xd9");
  expect_fault({}, "");
}

TEST(Codec, RefusesDamagedJpegs) {
  const int height = 40, width = 56;
  const FrameShape shape{height, width, 3};
  const Bytes good = encode_frame(Codec::kJpeg, picture(height, width, 3).data(), shape);
  const auto expect_fault = [&](const Bytes& file, const std::string& why) {
    expect_refused<FrameError>([&] { decoded(Codec::kJpeg, file, shape); }, "JPEG of ", why);
    expect_refused<FrameError>([&] { segment_jpeg(file); }, "JPEG of ", why);
  };
  // Cuts the file at any byte.
  for (size_t bytes = 0; bytes < good.size(); bytes += test::kDamageStep) {
    SCOPED_TRACE(bytes);
    const Bytes cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(bytes));
    expect_fault(cut, ", near byte ");
  }
  // Restart markers that are out of order, missing, or one too many.
  const size_t restart = marker(good, 0xd2);
  ASSERT_LT(restart, good.size());
  Bytes file = good;
  file[restart + 1] = 0xd5;
  expect_fault(file, "Corrupt JPEG data");
  file = good;
  file.erase(file.begin() + static_cast<std::ptrdiff_t>(restart),
             file.begin() + static_cast<std::ptrdiff_t>(restart) + 2);
  expect_fault(file, "Corrupt JPEG data");
  file = good;
  file.insert(file.begin() + static_cast<std::ptrdiff_t>(restart), {0xff, 0xd2});
  expect_fault(file, "Corrupt JPEG data");
  // More codes of a length than can exist.
  file = good;
  const size_t table = marker(good, kDht);
  for (size_t length = 1; length <= 16; ++length) file[table + 4 + length] = 0xff;
  expect_fault(file, "Bogus Huffman table definition");
  file = good;
  file[table + 4 + 1] = 3;  // there are only two codes of one bit
  file[table + 4 + 16] = 0;
  expect_fault(file, "Bogus Huffman table definition");
  // A component has no data.
  const Bytes scan_each = jpeg(height, width, 3, {.restart_mcus = 0, .interleaved = false});
  const size_t first = marker(scan_each, kSos, 0), second = marker(scan_each, kSos, 1),
               third = marker(scan_each, kSos, 2);
  file = scan_each;
  file.resize(third);
  file.insert(file.end(), {0xff, kEoi});
  expect_fault(file, "component 2 has no data");
  // The same scan repeats. A file may have at most 100 scans.
  const auto with_scans = [&](int times) {
    const Bytes scan(scan_each.begin() + static_cast<std::ptrdiff_t>(first),
                     scan_each.begin() + static_cast<std::ptrdiff_t>(second));
    Bytes repeated = scan_each;
    for (int i = 0; i < times; ++i) {
      repeated.insert(repeated.begin() + static_cast<std::ptrdiff_t>(second), scan.begin(), scan.end());
    }
    return repeated;
  };
  EXPECT_EQ(decoded(Codec::kJpeg, with_scans(97), shape), decoded(Codec::kJpeg, scan_each, shape));
  expect_fault(with_scans(98), "more than 100 scans");
}

TEST(Frames, RawFramesNeedNoOffsets) {
  const FrameShape shape{2, 3, 1, DType::kUInt16};
  const Bytes bytes = picture(4, 12, 1);
  Bytes out(24);
  const std::vector<int64_t> rows{3, 0};
  decode_frames(Codec::kRaw, bytes, {}, shape, rows, out.data());
  EXPECT_TRUE(std::equal(out.begin(), out.begin() + 12, bytes.begin() + 36));
  EXPECT_TRUE(std::equal(out.begin() + 12, out.end(), bytes.begin()));
  expect_refused<ArgumentError>([&] { decode_frames(Codec::kJpeg, bytes, {}, shape, rows, out.data()); }, "offsets");
}

}  // namespace
}  // namespace robocache
