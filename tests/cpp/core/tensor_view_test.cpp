#include "robocache/core/tensor_view.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>

#include "robocache/core/error.hpp"

namespace robocache {
namespace {

TEST(TensorView, ContiguousIsRowMajor) {
  std::array<float, 24> memory{};
  const TensorView view = TensorView::contiguous(memory.data(), DType::kFloat32, {2, 3, 4});
  EXPECT_EQ(view.ndim, 3);
  EXPECT_EQ(view.strides[0], 12);
  EXPECT_EQ(view.strides[1], 4);
  EXPECT_EQ(view.strides[2], 1);
  EXPECT_EQ(view.numel(), 24);
  EXPECT_TRUE(view.is_contiguous());
  EXPECT_EQ(view.describe(), "[2, 3, 4] float32 on cpu");
}

TEST(TensorView, AScalarHasOneElementAndAnEmptyDimensionNone) {
  EXPECT_EQ(TensorView::contiguous(nullptr, DType::kInt64, {}).numel(), 1);
  EXPECT_EQ(TensorView::contiguous(nullptr, DType::kInt64, {3, 0, 2}).numel(), 0);
}

TEST(TensorView, StridesOfLengthOneDimensionsDoNotMatter) {
  TensorView view = TensorView::contiguous(nullptr, DType::kFloat32, {1, 5});
  view.strides[0] = 77;
  EXPECT_TRUE(view.is_contiguous());
  view.strides[1] = 2;
  EXPECT_FALSE(view.is_contiguous());
}

TEST(TensorView, ExtentCoversWhatStridesReach) {
  std::array<int16_t, 64> memory{};
  const auto at = [&](int i) { return reinterpret_cast<uintptr_t>(memory.data() + i); };
  TensorView view = TensorView::contiguous(memory.data() + 32, DType::kInt16, {4, 3});
  EXPECT_EQ(view.extent(), (std::array<uintptr_t, 2>{at(32), at(44)}));
  view.strides[0] = -8;
  EXPECT_EQ(view.extent(), (std::array<uintptr_t, 2>{at(8), at(35)}));
  view.strides[0] = 0;
  EXPECT_EQ(view.extent(), (std::array<uintptr_t, 2>{at(32), at(35)}));
  view.shape[1] = 0;
  EXPECT_EQ(view.extent()[0], view.extent()[1]);
}

TEST(TensorView, RefusesMoreDimensionsThanItHolds) {
  EXPECT_THROW(TensorView::contiguous(nullptr, DType::kInt8, {1, 1, 1, 1, 1, 1, 1, 1, 1}), ArgumentError);
}

TEST(DType, NamesComeBack) {
  for (int i = 0; i <= static_cast<int>(DType::kFloat64); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  }
}

TEST(DType, AnUnknownNameIsRefusedWithTheKnownOnes) {
  try {
    dtype_from_name("float8", "dtype");
    FAIL();
  } catch (const ArgumentError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("dtype"), std::string::npos);
    EXPECT_NE(text.find("bfloat16"), std::string::npos);
    EXPECT_NE(text.find("'float8'"), std::string::npos);
  }
}

TEST(Device, NamesComeBack) {
  EXPECT_EQ(device_name({}), "cpu");
  EXPECT_EQ(device_from_name("cpu"), Device{});
  EXPECT_EQ(device_from_name("cuda"), (Device{DeviceType::kCuda, 0}));
  EXPECT_EQ(device_from_name("cuda:3"), (Device{DeviceType::kCuda, 3}));
  EXPECT_EQ(device_name(device_from_name("cuda:3")), "cuda:3");
  for (const char* name : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cpu:1"}) {
    EXPECT_THROW(device_from_name(name), ArgumentError) << name;
  }
}

}  // namespace
}  // namespace robocache
