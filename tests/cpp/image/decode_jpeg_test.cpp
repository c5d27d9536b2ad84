#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "robocache/core/error.hpp"
#include "robocache/image/codec.hpp"
#include "robocache/image/jpeg_color.hpp"
#include "robocache/image/jpeg_frames.hpp"
#include "robocache/image/jpeg_scan.hpp"
#include "robocache/image/resident_jpegs.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/image/decode_on_host.hpp"
#include "tests/cpp/image/libjpeg.hpp"
#include "tests/cpp/trials.hpp"

namespace robocache::test {
namespace {

using Bytes = std::vector<uint8_t>;

// ---- Decoding on each device ----------------------------------------------------------------------------------------

// With `fetched`, the entropy-coded data is copied to the device first.
Decoded decode_on_cuda(const JpegFrames& frames, const std::vector<int64_t>& rows, Device device, Tier tier,
                       bool fetched) {
  const auto count = static_cast<int64_t>(rows.size());
  const ResidentJpegs resident(frames, device, tier);
  const DeviceArray<int64_t> row_array(rows, DType::kInt64, {count}, device);
  const DeviceArray<uint8_t> pixels(
      Bytes(rows.size() * size_t(frames.height) * size_t(frames.width) * size_t(frames.channels), 0xaa), DType::kUInt8,
      {count, frames.height, frames.width, frames.channels}, device);
  const DeviceArray<int32_t> status(std::vector<int32_t>(rows.size(), -1), DType::kInt32, {count}, device);
  const DeviceBuffer workspace(device, size_t(resident.workspace_bytes(count)));
  const auto* const device_rows = static_cast<const int64_t*>(row_array.view().data);
  DeviceBuffer words;
  JpegMarks marks;
  if (fetched) {
    marks.fetched_stride = resident.largest_data_bytes() + 16;
    words = DeviceBuffer(device, size_t(count * marks.fetched_stride));
    resident.fetch(device_rows, count, 0, words.data(), marks.fetched_stride, {});
    marks.fetched = words.data();
  }
  resident.decode(device_rows, count, static_cast<uint8_t*>(pixels.view().data),
                  static_cast<int32_t*>(status.view().data), workspace.data(), {}, marks);
  return {pixels.read(), status.read()};
}

Decoded decode(const JpegFrames& frames, const std::vector<int64_t>& rows, Device device, Tier tier = Tier::kDevice,
               bool fetched = false) {
  return device.is_cuda() ? decode_on_cuda(frames, rows, device, tier, fetched) : decode_on_host(frames, rows);
}

// ---- Files ----------------------------------------------------------------------------------------------------------

struct Files {
  Bytes blobs;
  std::vector<int64_t> offsets{0};

  void add(const Bytes& file) {
    blobs.insert(blobs.end(), file.begin(), file.end());
    offsets.push_back(static_cast<int64_t>(blobs.size()));
  }
  int64_t count() const { return static_cast<int64_t>(offsets.size()) - 1; }
  Bytes file(int64_t i) const { return {blobs.begin() + offsets[size_t(i)], blobs.begin() + offsets[size_t(i) + 1]}; }
  std::vector<int64_t> rows() const {
    std::vector<int64_t> all(offsets.size() - 1);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  JpegFrames prepare() const { return prepare_jpeg_frames(blobs, offsets, rows()); }
};

enum class Content { kNoise, kExtremes, kSmooth };

Bytes draw(Content content, int height, int width, int channels, std::mt19937& random) {
  Bytes pixels(size_t(height) * size_t(width) * size_t(channels));
  const double phase = std::uniform_real_distribution<>(0, 6)(random);
  for (size_t i = 0; i < pixels.size(); ++i) {
    const double x = double(i / size_t(channels) % size_t(width)), y = double(i / size_t(channels * width));
    const double channel = double(i % size_t(channels));
    pixels[i] = content == Content::kNoise      ? uint8_t(random() & 255)
                : content == Content::kExtremes ? (random() & 1 ? 255 : 0)
                                                : uint8_t(127.5 + 127 * std::sin(phase + x / 9 + y / 7 + channel));
  }
  return pixels;
}

constexpr std::pair<int, int> kSampling[] = {{1, 1}, {2, 1}, {2, 2}};
constexpr Content kContents[] = {Content::kNoise, Content::kExtremes, Content::kSmooth};

// Expects the pixels of every file to be libjpeg-turbo's.
void expect_decoded(const Files& files, Device device, const std::string& what, Tier tier = Tier::kDevice,
                    bool fetched = false) {
  const JpegFrames frames = files.prepare();
  const Decoded decoded = decode(frames, files.rows(), device, tier, fetched);
  const size_t frame_bytes = decoded.pixels.size() / size_t(files.count());
  for (int64_t i = 0; i < files.count(); ++i) {
    const Bytes file = files.file(i);
    const DecodedJpeg expected = decode_by_libjpeg(file.data(), file.size());
    ASSERT_EQ(frames.height, expected.height);
    ASSERT_EQ(frames.width, expected.width);
    ASSERT_EQ(frames.channels, expected.channels);
    ASSERT_EQ(decoded.status[size_t(i)], 0) << what << ", file " << i;
    const auto* const actual = decoded.pixels.data() + size_t(i) * frame_bytes;
    const auto differs = std::mismatch(expected.pixels.begin(), expected.pixels.end(), actual);
    ASSERT_EQ(differs.first, expected.pixels.end())
        << what << ", file " << i << ", byte " << differs.first - expected.pixels.begin() << ": " << int(*differs.first)
        << " and " << int(*differs.second);
  }
}

class DecodeJpeg : public OnDevice {};
ROBOCACHE_ON_EACH_DEVICE(DecodeJpeg);

// ---- Pixels ---------------------------------------------------------------------------------------------------------

TEST_P(DecodeJpeg, PixelsAreLibjpegTurbosAtEverySizeAndSampling) {
  std::mt19937 random(1);
  for (int height = 1; height <= 40; ++height) {
    for (int width = 1; width <= 40; ++width) {
      Files grey, color;
      for (const auto& [across, down] : kSampling) {
        JpegOptions options{.quality = int(random() % 100) + 1, .luma_across = across, .luma_down = down};
        options.restart_mcus = int(random() % 6);
        options.optimised = random() % 2 == 0;
        color.add(encode_jpeg(draw(kContents[random() % 3], height, width, 3, random), height, width, 3, options));
        grey.add(encode_jpeg(draw(kContents[random() % 3], height, width, 1, random), height, width, 1, options));
      }
      const std::string what = std::to_string(height) + " x " + std::to_string(width);
      expect_decoded(color, device(), what + " RGB");
      expect_decoded(grey, device(), what + " grey");
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(DecodeJpeg, PixelsAreLibjpegTurbosAtEveryQuality) {
  std::mt19937 random(2);
  for (const auto& [across, down] : kSampling) {
    for (const Content content : kContents) {
      Files files;
      for (int quality = 1; quality <= 100; ++quality) {
        files.add(encode_jpeg(draw(content, 50, 70, 3, random), 50, 70, 3,
                              {.quality = quality, .luma_across = across, .luma_down = down}));
      }
      expect_decoded(files, device(), "sampling " + std::to_string(across) + "x" + std::to_string(down));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(DecodeJpeg, PixelsAreLibjpegTurbosAtEveryRestartInterval) {
  std::mt19937 random(3);
  const int height = 100, width = 150;
  Files files;
  for (const auto& [across, down] : kSampling) {
    const int row = (width + 8 * across - 1) / (8 * across);
    for (const int restart_mcus : {0, 1, 2, 5, row - 1, row, row + 1, 3 * row, 60000}) {
      for (const bool optimised : {false, true}) {
        JpegOptions options{.luma_across = across, .luma_down = down, .restart_mcus = restart_mcus};
        options.optimised = optimised;
        files.add(encode_jpeg(draw(Content::kSmooth, height, width, 3, random), height, width, 3, options));
        files.add(encode_jpeg(draw(Content::kNoise, height, width, 3, random), height, width, 3, options));
      }
    }
  }
  expect_decoded(files, device(), "intervals");
}

// ---- Damage ---------------------------------------------------------------------------------------------------------

// Returns a file in which some bytes are changed, removed or added, or the end is cut off.
Bytes mutated(Bytes file, size_t from, std::mt19937& random) {
  const int changes = 1 + int(random() % 4);
  for (int i = 0; i < changes; ++i) {
    const size_t offset = from + random() % (file.size() - from);
    switch (random() % 8) {
      case 0:
        file.erase(file.begin() + int64_t(offset),
                   file.begin() + int64_t(std::min(file.size(), offset + random() % 9)));
        break;
      case 1:
        file.insert(file.begin() + int64_t(offset), random() % 9, uint8_t(random()));
        break;
      case 2:
        if (random() % 8 == 0) file.resize(std::max(offset, from + 1));
        break;
      case 3:
        std::fill(file.begin() + int64_t(offset), file.begin() + int64_t(std::min(file.size(), offset + 40)),
                  uint8_t(random() % 2 ? 0 : 0xfe));
        break;
      default:
        file[offset] = uint8_t(random());
    }
  }
  return file;
}

// Returns the result of pack_jpegs in the form of prepare_jpeg_frames.
JpegFrames unpacked(const PackedJpegs& packed, const std::vector<uint64_t>& memory, const FrameShape& shape,
                    size_t count) {
  const auto* const begin = reinterpret_cast<const char*>(memory.data());
  const auto copy_part = [begin](auto& to, int64_t from, int64_t end) {
    to.resize(size_t(end - from) / sizeof(to[0]));
    std::memcpy(to.data(), begin + from, to.size() * sizeof(to[0]));
  };
  JpegFrames frames;
  frames.height = int32_t(shape.height);
  frames.width = int32_t(shape.width);
  frames.channels = int32_t(shape.channels);
  copy_part(frames.frames, 0, int64_t(count * sizeof(JpegFrame)));
  copy_part(frames.words, packed.words, packed.segments);
  copy_part(frames.segments, packed.segments, packed.tables);
  copy_part(frames.tables, packed.tables, packed.long_entries);
  copy_part(frames.long_entries, packed.long_entries, packed.bytes);
  return frames;
}

TEST_P(DecodeJpeg, PackedFramesDecodeToTheSamePixels) {
  std::mt19937 random(9);
  const int height = 45, width = 61;
  const FrameShape shape{height, width, 3};
  for (const bool one_table : {true, false}) {
    Files files;
    for (int i = 0; i < 9; ++i) {
      const auto [across, down] = kSampling[i % 3];
      files.add(encode_jpeg(
          draw(i % 2 == 0 ? Content::kNoise : Content::kSmooth, height, width, 3, random), height, width, 3,
          {.quality = one_table ? 90 : 30 + 8 * i, .luma_across = across, .luma_down = down, .restart_mcus = i % 4}));
    }
    Decoded expected = decode_on_host(files.prepare(), files.rows());
    const size_t frame_bytes = size_t(shape.bytes());
    std::vector<int64_t> bytes, rows;  // file 4 is empty, file 7 cut off; a row below first_row, here 1, is black
    for (int64_t i = 0; i < files.count(); ++i) {
      bytes.push_back(i == 4 ? 0 : int64_t(files.file(i).size()));
      rows.push_back(i == 4 || i == 7 ? 0 : 100 + i);
    }
    std::vector<int64_t> refused;
    const int64_t capacity = packed_jpegs_bytes(shape, files.count(), *std::max_element(bytes.begin(), bytes.end()));
    std::vector<uint64_t> memory(size_t(capacity) / 8, 0xaaaaaaaaaaaaaaaaU);
    const PackedJpegs packed = pack_jpegs(
        shape, bytes,
        [&](int64_t i, Bytes& blob) {
          blob = files.file(i);
          if (i == 7) blob.resize(blob.size() / 2);
          return std::span<const uint8_t>(blob);
        },
        [&](int64_t i, const FrameError&) { refused.push_back(i); }, memory.data());
    EXPECT_EQ(refused, std::vector<int64_t>{7});
    EXPECT_LE(packed.bytes, capacity);
    EXPECT_EQ(packed.one_table, one_table);
    for (const size_t missing_frame : {4, 7})
      std::fill_n(expected.pixels.begin() + int64_t(missing_frame * frame_bytes), frame_bytes, 0);
    Bytes actual;
    if (device().is_cuda()) {
      DeviceBuffer on_device(device(), size_t(packed.bytes));
      on_device.fill_from_host(memory.data(), on_device.bytes());
      const DeviceArray<int64_t> row_array(rows, DType::kInt64, {files.count()}, device());
      const DeviceArray<uint8_t> pixels(Bytes(rows.size() * frame_bytes, 0xaa), DType::kUInt8,
                                        {files.count(), height, width, 3}, device());
      const DeviceBuffer workspace(device(), size_t(packed_jpegs_workspace_bytes(shape, files.count())));
      decode_packed_jpegs(packed, on_device.data(), shape, static_cast<const int64_t*>(row_array.view().data),
                          files.count(), static_cast<uint8_t*>(pixels.view().data), workspace.data(), device(), {},
                          {.first_row = 1});
      actual = pixels.read();
    } else {
      std::vector<int64_t> present = files.rows();
      for (const size_t missing_frame : {4, 7}) present[missing_frame] = -1;
      actual = decode_on_host(unpacked(packed, memory, shape, present.size()), present).pixels;
    }
    EXPECT_EQ(actual, expected.pixels) << one_table;
  }
}

// A damaged frame is refused, or marked and black, or decoded as libjpeg-turbo decodes it without a warning. The frames
// beside it are unchanged.
TEST_P(DecodeJpeg, DamageHarmsNoOtherFrame) {
  std::mt19937 random(6);
  const int height = 45, width = 61;
  Files whole;
  for (int i = 0; i < 6; ++i) {
    const auto [across, down] = kSampling[i % 3];
    whole.add(encode_jpeg(draw(i % 2 == 0 ? Content::kNoise : Content::kSmooth, height, width, 3, random), height,
                          width, 3, {.luma_across = across, .luma_down = down, .restart_mcus = i % 3}));
  }
  const Decoded expected = decode_on_host(whole.prepare(), whole.rows());
  const size_t frame_bytes = size_t(height) * size_t(width) * 3;
  const int attempts = device().is_cuda() ? 1000 : damaged_trials(4000);
  int refused = 0, marked = 0, decoded = 0, different = 0;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    const int64_t victim = attempt % whole.count();
    Files files;
    for (int64_t i = 0; i < whole.count(); ++i) {
      // Most of the damage is after the header, of which 600 bytes are tables.
      files.add(i == victim ? mutated(whole.file(i), attempt % 4 == 0 ? 2 : 620, random) : whole.file(i));
    }
    Decoded result;
    JpegFrames frames;
    try {
      frames = files.prepare();
    } catch (const FrameError& error) {
      ASSERT_NE(std::string(error.what()).find("row "), std::string::npos) << error.what();
      ++refused;
      continue;
    }
    if (frames.height != height || frames.width != width) continue;  // the first file was damaged
    result = decode(frames, files.rows(), device());
    for (int64_t i = 0; i < files.count(); ++i) {
      const auto* const actual = result.pixels.data() + size_t(i) * frame_bytes;
      if (i != victim) {
        ASSERT_EQ(result.status[size_t(i)], 0);
        ASSERT_EQ(std::memcmp(actual, expected.pixels.data() + size_t(i) * frame_bytes, frame_bytes), 0) << attempt;
      } else if (result.status[size_t(i)] != 0) {
        ASSERT_TRUE(std::all_of(actual, actual + frame_bytes, [](uint8_t byte) { return byte == 0; }));
        ++marked;
      } else {
        ++decoded;
        Bytes pixels(frame_bytes);
        decode_frame(Codec::kJpeg, files.file(i), {height, width, 3}, pixels.data());  // libjpeg-turbo accepts it too
        different += std::memcmp(actual, pixels.data(), frame_bytes) != 0;
      }
    }
    if (device().is_cuda()) {
      const Decoded on_host = decode_on_host(frames, files.rows());
      ASSERT_EQ(result.status, on_host.status) << attempt;
      ASSERT_EQ(result.pixels, on_host.pixels) << attempt;
    }
  }
  EXPECT_GT(refused, attempts / 20);
  EXPECT_GT(marked, attempts / 4);
  EXPECT_GT(decoded, attempts / 10);        // some changes leave the file valid
  EXPECT_LE(different, 1 + decoded / 100);  // if sums overflow 16 bits, the order of additions matters
}

// ---- Refused files --------------------------------------------------------------------------------------------------

class PrepareJpegFrames : public testing::Test {
 protected:
  static constexpr int kHeight = 40, kWidth = 56;

  static Bytes encode(const JpegOptions& options, int channels = 3, int height = kHeight) {
    std::mt19937 random(7);
    return encode_jpeg(draw(Content::kNoise, height, kWidth, channels, random), height, kWidth, channels, options);
  }
  static void expect_refused(const Bytes& file, const std::string& text) {
    Files files;
    files.add(encode({}));
    files.add(file);
    try {
      files.prepare();
      FAIL() << "not refused: " << text;
    } catch (const FrameError& error) {
      EXPECT_NE(std::string(error.what()).find("row 1: JPEG"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  }
  // Returns the offset of the first occurrence of `bytes`.
  static size_t find(const Bytes& file, const Bytes& bytes) {
    return size_t(std::search(file.begin(), file.end(), bytes.begin(), bytes.end()) - file.begin());
  }
};

TEST_F(PrepareJpegFrames, RefusesBrokenHeaders) {
  const Bytes whole = encode({});
  const auto changed_file = [&](const Bytes& marker, size_t offset, uint8_t to) {
    Bytes file = whole;
    file[find(file, marker) + offset] = to;
    return file;
  };
  expect_refused(changed_file({0xff, 0xc0}, 4, 12), "expected 8 bits a sample, got 12");
  expect_refused(changed_file({0xff, 0xc0}, 6, 0), "expected a frame with pixels, got 0 x 56");
  expect_refused(changed_file({0xff, 0xc0}, 12, 7), "there is no quantisation table 7");
  expect_refused(changed_file({0xff, 0xc0}, 12, 2), "there is no quantisation table 2");
  expect_refused(changed_file({0xff, 0xc4}, 5, 3), "more codes of 1 bits than there can be");
  expect_refused(changed_file({0xff, 0xc4}, 4, 0x20), "there is no Huffman table 0x20");
  expect_refused(changed_file({0xff, 0xda}, 6, 0x33), "there are no Huffman tables 3 and 3");
  expect_refused(changed_file({0xff, 0xda}, 12, 62), "expected all coefficients in one scan");
  expect_refused(changed_file({0xff, 0xdd}, 3, 5), "expected a restart interval of 4 bytes, got 5");
  expect_refused(changed_file({0xff, 0xdd}, 5, 3), "segments of 3 MCUs, got 6");
  for (size_t bytes = 0; bytes < whole.size(); bytes += 1 + bytes / 100) {
    expect_refused({whole.begin(), whole.begin() + int64_t(bytes)}, bytes < 2 ? "expected" : "");
  }
  Bytes huge = changed_file({0xff, 0xc0}, 5, 0xff);  // a header of 65,320 rows
  huge[find(huge, {0xff, 0xdd}) + 4] = 0;
  huge[find(huge, {0xff, 0xdd}) + 5] = 0;
  expect_refused(huge, "");
}

TEST_F(PrepareJpegFrames, RefusesRestartMarkersOutOfOrder) {
  const Bytes whole = encode({});
  Bytes file = whole;
  file[find(file, {0xff, 0xd1}) + 1] = 0xd2;
  expect_refused(file, "expected restart marker 0xd1 or the end of the image, 0xd9, got marker 0xd2");
  file = whole;
  file.erase(file.begin() + int64_t(find(file, {0xff, 0xd0})) + 2, file.begin() + int64_t(find(file, {0xff, 0xd1})));
  expect_refused(file, "segment 1 is empty");
  file = whole;
  file.erase(file.begin() + int64_t(find(file, {0xff, 0xd4})), file.begin() + int64_t(find(file, {0xff, 0xd9})));
  expect_refused(file, "expected 6 segments of 2 MCUs, got 5");
}

TEST_F(PrepareJpegFrames, AcceptsFilesOfSegmentJpeg) {
  const JpegOptions kinds[] = {{},
                               {.progressive = true},
                               {.luma_across = 1, .luma_down = 2},
                               {.luma_across = 2, .luma_down = 1, .restart_mcus = 0, .optimised = true},
                               {.luma_across = 1, .luma_down = 1, .stored = JCS_RGB}};
  Files files;
  for (const JpegOptions& options : kinds) files.add(segment_jpeg(encode(options)).blob);
  files.add(encode_frame(Codec::kJpeg, Bytes(kHeight * kWidth * 3, 90).data(), {kHeight, kWidth, 3}));
  expect_decoded(files, Device{}, "segmented");
}

// Fill bytes before a marker and data after the end have no meaning.
TEST_F(PrepareJpegFrames, AcceptsFillBytes) {
  Bytes file = encode({});
  const auto restart = int64_t(find(file, {0xff, 0xd0}));
  file.insert(file.begin() + restart, 3, 0xff);
  file.insert(file.begin() + int64_t(find(file, {0xff, 0xda})), 5, 0xff);
  file.insert(file.end(), {1, 2, 3});
  Files files;
  files.add(file);
  expect_decoded(files, Device{}, "fill bytes");
}

TEST_F(PrepareJpegFrames, RefusesUnsupportedJpegs) {
  expect_refused({}, "expected a JPEG file's ff d8");
  expect_refused({0x89, 'P', 'N', 'G'}, "expected a JPEG file's ff d8");
  expect_refused(encode({.progressive = true}), "got progressive");
  expect_refused(encode({.luma_across = 1, .luma_down = 2}), "expected sampling of 4:4:4, 4:2:2 or 4:2:0, got 1x2");
  expect_refused(encode({.luma_across = 4, .luma_down = 1}), "got 4x1, 1x1, 1x1");
  expect_refused(encode({.luma_across = 1, .luma_down = 1, .stored = JCS_RGB}), "expected YCbCr, got RGB");
  expect_refused(encode({.luma_across = 1, .luma_down = 1}, 4), "expected 1 or 3 components, got 4");
  expect_refused(encode({}, 1), "expected [40, 56, 3] uint8 like row 0, got [40, 56, 1] uint8");
  expect_refused(encode({}, 3, 41), "expected [40, 56, 3] uint8 like row 0, got [41, 56, 3] uint8");
}

}  // namespace
}  // namespace robocache::test
