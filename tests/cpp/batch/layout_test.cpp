#include "robocache/batch/layout.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "robocache/batch/loader.hpp"
#include "robocache/core/error.hpp"
#include "tests/cpp/batch/loader_reference.hpp"

namespace robocache::test {
namespace {

TEST(BatchLayout, PutsArraysBehindEachOther) {
  BatchLayout layout(10);
  EXPECT_EQ(layout.bytes(), 0);
  EXPECT_EQ(layout.add("a", DType::kFloat32, {3, 7}, "a"), 0);
  EXPECT_EQ(layout.bytes(), 1024);  // 840 bytes
  EXPECT_EQ(layout.add("b", DType::kBool, {}, "b"), 1024);
  EXPECT_EQ(layout.add("c", DType::kInt64, {0}, "c"), 1280);
  EXPECT_EQ(layout.bytes(), 1280);
}

TEST(BatchLayout, RefusesASecondArrayOfAName) {
  BatchLayout layout(1);
  layout.add("a_is_pad", DType::kBool, {1}, "the padding of stream 'a'");
  EXPECT_THROW(layout.add("a_is_pad", DType::kFloat32, {1}, "stream 'a_is_pad'"), ArgumentError);
}

TEST(BatchLayout, RefusesMoreBytesThanThereAreAddresses) {
  constexpr int64_t kSteps = int64_t{1} << 18;
  BatchLayout layout(int64_t{1} << 30);  // 2^64 bytes, which wrap to 0
  EXPECT_THROW(layout.add("a", DType::kFloat32, {kSteps, 1 << 14}, "a"), ArgumentError);
  EXPECT_THROW(layout.add("a", DType::kFloat64, {kSteps, int64_t{1} << 32, int64_t{1} << 11}, "a"), ArgumentError);
  EXPECT_EQ(layout.bytes(), 0);
  layout.add("a", DType::kUInt8, {1 << 26}, "a");
  EXPECT_THROW(layout.add("b", DType::kUInt8, {1}, "b"), ArgumentError);
}

class BatchArrays : public OnDeviceOfLoader {};
ROBOCACHE_ON_EACH_DEVICE(BatchArrays);

TEST_P(BatchArrays, ArraysDescribeTheBatch) {
  const auto dataset = every_type();
  LoaderOptions asked = options();
  asked.batch_size = 10;
  asked.dtype = DType::kBFloat16;
  asked.streams = {{.stream = stream_name(DType::kFloat32, 6), .delta_timestamps = {0.0, 0.1, 0.2}},
                   {.stream = stream_name(DType::kInt16, 2), .delta_timestamps = {0.0}},
                   {.stream = stream_name(DType::kFloat64, 1), .delta_timestamps = {0.0, 1.0}}};
  const Loader loader(dataset, asked);
  const std::vector<BatchArray>& arrays = loader.arrays();
  ASSERT_EQ(arrays.size(), 8u);
  const auto expect_array = [&](size_t i, const std::string& name, DType dtype, const std::vector<int64_t>& shape) {
    EXPECT_EQ(arrays[i].name, name);
    EXPECT_EQ(arrays[i].dtype, dtype) << name;
    EXPECT_EQ(arrays[i].shape, shape) << name;
  };
  expect_array(0, "float32.6", DType::kBFloat16, {3, 2, 3});
  expect_array(1, "float32.6_is_pad", DType::kBool, {3});
  expect_array(2, "int16.2", DType::kInt16, {1, 2});
  expect_array(3, "int16.2_is_pad", DType::kBool, {1});
  expect_array(4, "float64.1", DType::kBFloat16, {2});
  expect_array(5, "float64.1_is_pad", DType::kBool, {2});
  expect_array(6, "time_ns", DType::kInt64, {});
  expect_array(7, "episode_index", DType::kInt64, {});
  char* const memory = reinterpret_cast<char*>(uintptr_t{1} << 20);
  uintptr_t end = uintptr_t{1} << 20;
  for (const BatchArray& array : arrays) {
    EXPECT_EQ(array.offset % 256, 0);
    const TensorView view = loader.view(array, 10, memory);
    EXPECT_TRUE(view.is_contiguous());
    EXPECT_EQ(view.device, device());
    EXPECT_EQ(view.shape[0], 10);
    EXPECT_EQ(view.ndim, static_cast<int>(array.shape.size()) + 1);
    EXPECT_GE(view.extent()[0], end) << "no two arrays share memory";
    end = view.extent()[1];
  }
  EXPECT_LE(end, (uintptr_t{1} << 20) + loader.batch_bytes());
}

TEST_P(BatchArrays, TheLastBatchIsWhatIsLeft) {
  CacheWriter writer;
  writer.begin_episode();
  writer.append("x", F32{}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, std::vector<float>(11, 1));
  writer.end_episode();
  const auto dataset = writer.dataset();
  LoaderOptions asked = options();
  asked.batch_size = 4;
  asked.streams = {{.stream = "x", .delta_timestamps = {0.0}}};
  const Loader whole(dataset, asked);
  EXPECT_EQ(whole.anchors(), 11);
  EXPECT_EQ(whole.steps_per_epoch(), 3);
  EXPECT_EQ(whole.samples_at({.samples = 4}), 4);
  EXPECT_EQ(whole.samples_at({.samples = 8}), 3);
  EXPECT_EQ(whole.view(whole.arrays()[0], 3, nullptr).shape[0], 3);
  expect_every_batch(*dataset, whole);  // also that nothing past the third sample is written
  asked.drop_last = true;
  const Loader full(dataset, asked);
  EXPECT_EQ(full.steps_per_epoch(), 2);
  expect_every_batch(*dataset, full);
  asked.batch_size = 11;
  EXPECT_EQ(Loader(dataset, asked).steps_per_epoch(), 1);
  asked.drop_last = false;
  asked.batch_size = 1000;
  const Loader large(dataset, asked);
  EXPECT_EQ(large.steps_per_epoch(), 1);
  expect_every_batch(*dataset, large);
}

}  // namespace
}  // namespace robocache::test
