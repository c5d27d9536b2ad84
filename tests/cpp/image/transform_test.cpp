#include "robocache/image/transform.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "robocache/core/cpu_isa.hpp"
#include "robocache/image/image_batch.hpp"
#include "robocache/image/transform_cpu.hpp"
#include "tests/cpp/device_array.hpp"

namespace robocache {
namespace {

using Bytes = std::vector<uint8_t>;

Bytes random_bytes(size_t count) {
  std::minstd_rand random(7);
  Bytes bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() >> 8);
  return bytes;
}

constexpr FrameShape kColour{37, 53, 3, DType::kUInt8};

ImageOptions options_of(const char* json) { return image_options_from_json(json); }

Bytes run(const ImageTransform& transform, const void* frame, const ImageDraw& draw, int64_t step = 0) {
  Bytes out(static_cast<size_t>(transform.bytes()), 0xa5);
  transform.run(frame, draw, step, out.data());
  return out;
}

// ---- The builds for each instruction set ----------------------------------------------------------------------------

struct Build {
  const char* name;
  TransformFrame* transform;
};

std::vector<Build> vector_builds() {
  std::vector<Build> all;
#if ROBOCACHE_ISA_COUNT >= 2
  if (__builtin_cpu_supports("x86-64-v3")) all.push_back({"v3", v3::transform_frame});
#endif
#if ROBOCACHE_ISA_COUNT >= 3
  if (__builtin_cpu_supports("x86-64-v4")) all.push_back({"v4", v4::transform_frame});
#endif
  return all;
}

TEST(Transform, GivesTheSameBitsForEveryInstructionSet) {
  const char* const cases[] = {
      R"({"crop": [31, 29]})",
      R"({"crop": [31, 29], "layout": "hwc", "mean": "imagenet", "std": "imagenet"})",
      R"({"shift": 5, "brightness": 0.4})",
      R"({"size": [20, 47], "crop_scale": [0.5, 1.0]})",
      R"({"size": [20, 47], "crop_scale": [0.5, 1.0], "interpolation": "bicubic"})",
      R"({"size": [30, 40], "flip_vertical": 1, "rotation": 30, "blur": [0.1, 3], "blur_kernel": 7, "hue": 0.2})",
      R"({"flip_horizontal": 1, "blur": 2, "blur_kernel": 37, "erase": 1, "erase_value": 0.5})",
      R"({"size": [60, 17], "interpolation": "area", "hue": 0.5})",
      R"({"size": [20, 67], "interpolation": "nearest", "contrast": 0.5})",
      R"({"size": [64, 80], "fit": "pad", "contrast": 0.5, "saturation": 0.9, "hue": 0.5})",
      R"({"size": [16, 16], "fit": "crop", "brightness": 0.9, "contrast": 0.9, "saturation": 5, "hue": 0.2})",
  };
  for (const char* const json : cases) {
    for (const int64_t channels : {1, 3}) {
      for (const DType dtype : {DType::kUInt8, DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
        ImageOptions options = options_of(json);
        options.dtype = dtype;
        if (dtype == DType::kUInt8) options.mean = options.stddev = {};
        if (channels == 1) {
          options.saturation = options.hue = {};
          if (!options.mean.empty()) options.mean = options.stddev = {0.5};
        }
        const ImageTransform transform({37, 53, channels, DType::kUInt8}, options, "camera");
        const Bytes frame = random_bytes(static_cast<size_t>(37 * 53 * channels));
        const TransformParams& p = transform.params();
        const std::vector<char> scratch(static_cast<size_t>(transform_scratch(p).end) + 64);
        char* const aligned_scratch =
            const_cast<char*>(scratch.data()) + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64);
        for (int64_t sample = 0; sample < 8; ++sample) {
          const FramePlan plan = frame_plan(p, {1, 2, sample}, 0);
          const Augments augments = frame_augments(p, {1, 2, sample}, 0);
          Bytes expected(static_cast<size_t>(transform.bytes()));
          baseline::transform_frame(p, plan, augments, frame.data(), aligned_scratch, expected.data());
          for (const Build& build : vector_builds()) {
            Bytes actual(expected.size());
            build.transform(p, plan, augments, frame.data(), aligned_scratch, actual.data());
            EXPECT_EQ(actual, expected) << build.name << " " << json << " " << dtype_name(dtype) << " " << channels;
          }
        }
      }
    }
  }
}

// ---- Intrinsics -----------------------------------------------------------------------------------------------------

// The frame is a ramp, so each output pixel shows its position in the frame. The matrices must give the same position.
void expect_intrinsics_follow(const char* json, bool along_rows) {
  const ImageOptions options = options_of(json);
  const ImageTransform transform({180, 240, 1, DType::kUInt8}, options, "camera");
  Bytes frame(180 * 240);
  for (size_t i = 0; i < frame.size(); ++i) frame[i] = static_cast<uint8_t>(along_rows ? i / 240 : i % 240);
  const double in[9] = {210, 0.5, 117.25, 0, 190, 80.5, 0, 0, 1};
  const int64_t h = transform.shape()[0];
  const int64_t w = transform.shape()[1];
  int compared = 0;
  for (int64_t sample = 0; sample < 5; ++sample) {
    const Bytes out = run(transform, frame.data(), {3, 0, sample});
    double matrix[9];
    transform.intrinsics(in, {3, 0, sample}, 0, matrix);
    EXPECT_EQ(matrix[6], 0);
    EXPECT_EQ(matrix[7], 0);
    EXPECT_EQ(matrix[8], 1);
    const int row = along_rows ? 1 : 0;
    const double scale = matrix[4 * row] / in[4 * row];
    EXPECT_NEAR(matrix[1] / in[1], matrix[0] / in[0], 1e-12);
    for (int64_t y = 3; y < h - 3; ++y) {
      for (int64_t x = 3; x < w - 3; ++x) {
        const double position = out[static_cast<size_t>(y * w + x)];
        // Skips pixels near the frame's edges, where pixels are repeated or black.
        if (position < 8 || position > (along_rows ? 171 : 231)) continue;
        // The ray through that pixel of the frame.
        const double direction = (position - in[3 * row + 2]) / in[4 * row];
        const double projected = matrix[4 * row] * direction + matrix[3 * row + 2];
        EXPECT_NEAR(projected, static_cast<double>(along_rows ? y : x), 0.5 * scale + 1e-9)
            << json << " " << y << " " << x;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 1000) << json;
}

TEST(Transform, IntrinsicsFollowTheFrame) {
  for (const bool along_rows : {false, true}) {
    for (const char* const json : {
             R"({"dtype": "uint8", "layout": "hwc", "crop": [100, 110]})",
             R"({"dtype": "uint8", "layout": "hwc", "shift": 20})",
             R"({"dtype": "uint8", "layout": "hwc", "size": [90, 200]})",
             R"({"dtype": "uint8", "layout": "hwc", "size": [90, 90], "fit": "pad"})",
             R"({"dtype": "uint8", "layout": "hwc", "size": [90, 90], "fit": "crop"})",
             R"({"dtype": "uint8", "layout": "hwc", "size": [300, 300], "fit": "crop", "crop": [211, 190]})",
             R"({"dtype": "uint8", "layout": "hwc", "crop_scale": [0.3, 0.9]})",
             R"({"dtype": "uint8", "layout": "hwc", "crop_scale": 0.9, "crop_at": "center", "size": [100, 100]})",
         }) {
      expect_intrinsics_follow(json, along_rows);
    }
  }
}

TEST(Transform, CroppingMovesThePrincipalPointByWholePixels) {
  const ImageTransform transform(kColour, options_of(R"({"crop": [17, 13], "crop_at": "center"})"), "");
  const double in[9] = {100, 0, 26, 0, 101, 18, 0, 0, 1};
  double out[9];
  transform.intrinsics(in, {}, 0, out);
  const double expected[9] = {100, 0, 26 - 20, 0, 101, 18 - 10, 0, 0, 1};
  for (int i = 0; i < 9; ++i) EXPECT_EQ(out[i], expected[i]) << i;
}

// ---- Draws ----------------------------------------------------------------------------------------------------------

TEST(Transform, DrawsAreTheSameInEveryVersion) {
  const ImageTransform transform(kColour, options_of(R"({"crop": [9, 9]})"), "camera");
  const FramePlan plan = frame_plan(transform.params(), {1, 2, 3}, 0);
  EXPECT_EQ(plan.rows.first, 24);
  EXPECT_EQ(plan.columns.first, 33);
  const ImageTransform augmenting(
      kColour, options_of(R"({"flip_horizontal": 0.5, "rotation": 90, "blur": [1, 3], "blur_kernel": 5, "erase": 1})"),
      "camera");
  const Augments augments = frame_augments(augmenting.params(), {1, 2, 3}, 0);
  EXPECT_FALSE(augments.warp.flipped[1]);
  EXPECT_EQ(augments.warp.sine, -588190641);
  EXPECT_EQ(augments.blur.by_distance[1], 25035);
  EXPECT_EQ(augments.erased.first[0], 5);
  EXPECT_EQ(augments.erased.size[1], 6);
}

// ---- Missing frames, refusals ---------------------------------------------------------------------------------------

TEST(Transform, ReadsAndWritesNothingOutside) {
  // The memory has exactly the needed bytes, so that a sanitizer sees an access outside.
  for (
      const char* const json :
      {R"({"crop": [30, 50]})", R"({"shift": 60})", R"({"size": [70, 90]})", R"({"size": [5, 5]})",
       R"({"crop_scale": [0.01, 1]})", R"({"size": [30, 90], "fit": "pad", "crop": [29, 89]})",
       R"({"size": [30, 90], "fit": "crop", "hue": 0.5, "contrast": 1})",
       R"({"flip_vertical": 0.5, "rotation": 180, "blur": 9, "blur_kernel": 63, "erase": 1, "erase_scale": [0.1, 1]})"}) {
    const ImageTransform transform(kColour, options_of(json), "camera");
    const Bytes frame = random_bytes(37 * 53 * 3);
    for (int64_t sample = 0; sample < 20; ++sample) EXPECT_FALSE(run(transform, frame.data(), {0, 0, sample}).empty());
  }
}

// ---- CPU and CUDA ---------------------------------------------------------------------------------------------------

class ImageBatchTest : public test::OnDevice {};

TEST_P(ImageBatchTest, GivesTheBitsOfTheTransform) {
  const Bytes pixels = random_bytes(5 * 37 * 53 * 3);
  const std::vector<int64_t> rows = {4, 0, -1, 2, 2, 1};
  for (
      const char* const json :
      {R"({"crop": [31, 29], "dtype": "bfloat16"})", R"({"size": [24, 40], "crop_scale": [0.2, 1]})",
       R"({"shift": 4, "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.3})",
       R"({"size": [40, 70], "flip_horizontal": 0.5, "rotation": 180, "blur": [0.1, 4], "blur_kernel": 63, "erase": 0.9})"}) {
    const ImageOptions options = options_of(json);
    const ImageTransform transform(kColour, options, "");
    const test::DeviceArray<uint8_t> frames(pixels, DType::kUInt8, {5, 37, 53, 3}, device());
    const test::DeviceArray<int64_t> chosen(rows, DType::kInt64, {3, 2}, device());
    const ImageBatch batch(frames.view(), chosen.view(), options);
    const size_t bytes = static_cast<size_t>(transform.bytes());
    const DeviceBuffer memory(device(), 6 * bytes);
    TensorView out = batch.output();
    out.data = memory.data();
    const DeviceBuffer workspace(device(), static_cast<size_t>(batch.workspace_bytes()));
    batch.run({9, 8, 7}, out, workspace.data(), {});
    Bytes actual(6 * bytes);
    if (device().is_cuda()) {
      check_cuda(cuda_backend().copy_to_host(0, actual.data(), memory.data(), actual.size(), nullptr), "read");
      check_cuda(cuda_backend().synchronize(0, nullptr), "read");
    } else {
      std::memcpy(actual.data(), memory.data(), actual.size());
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      const void* const frame = rows[i] < 0 ? nullptr : pixels.data() + rows[i] * 37 * 53 * 3;
      const Bytes expected =
          run(transform, frame, {9, 8, 7 + static_cast<int64_t>(i) / 2}, static_cast<int64_t>(i) % 2);
      EXPECT_EQ(std::memcmp(actual.data() + i * bytes, expected.data(), bytes), 0) << json << " " << i;
    }
  }
}

ROBOCACHE_ON_EACH_DEVICE(ImageBatchTest);

}  // namespace
}  // namespace robocache
