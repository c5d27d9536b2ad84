// Compares the batches of an aligner on a device with the batches on the CPU.
#include "robocache/live/aligner.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "robocache/core/backend.hpp"
#include "robocache/image/codec.hpp"

namespace robocache {
namespace {

constexpr int64_t kMs = 1'000'000;

KeySpec camera(const std::string& name, Codec codec, const std::vector<int64_t>& frame, ImageSize size, DType dtype) {
  ImageOptions images{.size = size};
  images.dtype = dtype;
  const bool is_depth = frame[2] == 1;
  KeySpec key{.key = name,
              .stream = name,
              .dtype = dtype,
              .shape = {frame[2], size.height, size.width},
              .offsets_ns = {-100 * kMs, -40 * kMs, -35 * kMs, 0},
              .max_gap_ns = 200 * kMs,
              .images = images,
              .has_intrinsics = is_depth,
              .rows = RowsSpec{.dtype = is_depth ? DType::kUInt16 : DType::kUInt8,
                               .shape = frame,
                               .methods = {{0, 1, InterpolationMethod::kPrevious}},
                               .codec = codec}};
  if (is_depth) {
    key.rows->unit_m = 0.001;
    key.rows->intrinsics = {20, 0, 16, 0, 20, 12, 0, 0, 1};
  }
  return key;
}

BatchSpec spec() {
  BatchSpec spec{.return_age = true};
  spec.keys.push_back(
      {.key = "joint",
       .stream = "joint",
       .shape = {3},
       .offsets_ns = {-20 * kMs, -7 * kMs, 0},
       .rows = RowsSpec{.shape = {3}, .methods = {{0, 3, InterpolationMethod::kLinear}}, .affine = {}}});
  spec.keys.push_back(camera("raw", Codec::kRaw, {23, 31, 3}, {10, 14}, DType::kFloat32));
  spec.keys.push_back(camera("kept", Codec::kRaw, {24, 32, 3}, {24, 32}, DType::kUInt8));
  spec.keys.push_back(camera("jpeg", Codec::kJpeg, {24, 32, 3}, {9, 9}, DType::kBFloat16));
  spec.keys.push_back(camera("depth", Codec::kPng, {24, 32, 1}, {12, 16}, DType::kFloat32));
  return spec;
}

struct Streams {
  std::map<std::string, std::shared_ptr<Ring>> rings;

  Streams() {
    for (const KeySpec& key : spec().keys) {
      rings[key.key] = std::make_shared<Ring>(RingOptions{.dtype = key.rows->dtype,
                                                          .shape = key.rows->shape,
                                                          .span_ns = 400 * kMs,
                                                          .lateness_ns = 5 * kMs,
                                                          .codec = key.rows->codec});
    }
  }

  Rings all() const { return {rings.begin(), rings.end()}; }

  void push(const std::string& key, int64_t stamp, std::mt19937_64& random) {
    Ring& ring = *rings.at(key);
    std::vector<char> row(static_cast<size_t>(ring.row_bytes()));
    if (!ring.options().codec) {
      for (int i = 0; i < 3; ++i) {
        const auto value = static_cast<float>(random() % 1000) / 7;
        std::memcpy(row.data() + 4 * i, &value, 4);
      }
    } else {
      for (char& byte : row) byte = static_cast<char>(random());
      const std::vector<int64_t>& shape = ring.options().shape;
      if (*ring.options().codec != Codec::kRaw) {
        const auto file =
            encode_frame(*ring.options().codec, row.data(), {shape[0], shape[1], shape[2], ring.options().dtype}, {});
        row.assign(file.begin(), file.end());
        if (random() % 5 == 0) row.resize(row.size() / 3);  // does not decode
      }
    }
    ring.push(stamp, stamp, row);
  }
};

class CudaAligner : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA: " << cuda_unavailable_reason();
  }
};

TEST_F(CudaAligner, HasTheBytesOfTheCpus) {
  const Device device{DeviceType::kCuda, 0};
  Streams streams;
  Aligner on_cpu(spec(), streams.all());
  Aligner on_device(spec(), streams.all(), {}, device);
  Aligner second_aligner(spec(), streams.all(), {}, device);  // the rings page-lock their frames for it too
  ASSERT_EQ(on_cpu.batch_bytes(), on_device.batch_bytes());
  std::vector<char> expected(on_cpu.batch_bytes());
  std::vector<char> actual(on_device.batch_bytes());
  const DeviceBuffer memory(device, on_device.batch_bytes());
  const OwnedCudaStream stream(device);
  std::mt19937_64 random(3);
  int compared = 0;
  for (int64_t tick = 1; tick < 600; ++tick) {
    const int64_t now = 1000 * kMs + 2 * kMs * tick;
    streams.push("joint", now, random);
    for (const char* key : {"raw", "kept", "jpeg", "depth"}) {
      if (tick % 16 == 0 && random() % 10 != 0) streams.push(key, now - 3 * kMs, random);
    }
    const auto frontier = on_cpu.frontier();
    if (!frontier) continue;
    // Some moments are not settled, or before the first row.
    const int64_t moment = *frontier + static_cast<int64_t>(random() % 3) * 20 * kMs - (tick < 40 ? 60 * kMs : 0);
    const int64_t unsettled = on_cpu.at(moment, expected.data());
    for (Aligner* const aligner : {&on_device, &second_aligner}) {
      ASSERT_EQ(aligner->at(moment, memory.data(), stream.get()), unsettled);
      check_cuda(cuda_backend().copy_to_host(0, actual.data(), memory.data(), actual.size(), stream.get().handle),
                 "copy");
      stream.wait();
      for (const BatchArray& array : on_cpu.arrays()) {
        int64_t bytes = dtype_size(array.dtype);
        for (const int64_t extent : array.shape) bytes *= extent;
        ASSERT_EQ(std::memcmp(actual.data() + array.offset, expected.data() + array.offset, static_cast<size_t>(bytes)),
                  0)
            << array.name << " at tick " << tick;
      }
      ++compared;
    }
  }
  EXPECT_GT(compared, 800);
  EXPECT_GT(on_cpu.bad_frames(), 0);
  EXPECT_EQ(on_device.bad_frames(), on_cpu.bad_frames());
}

}  // namespace
}  // namespace robocache
