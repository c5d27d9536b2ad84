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

TEST(TensorView, HasAnyNumberOfDimensionsUpToEight) {
  EXPECT_EQ(TensorView::contiguous(nullptr, DType::kInt64, {}).numel(), 1);
  EXPECT_EQ(TensorView::contiguous(nullptr, DType::kInt64, {3, 0, 2}).numel(), 0);
  EXPECT_THROW(TensorView::contiguous(nullptr, DType::kInt8, {1, 1, 1, 1, 1, 1, 1, 1, 1}), ArgumentError);
}

TEST(TensorView, OnlyStridesBetweenElementsMatter) {
  TensorView view = TensorView::contiguous(nullptr, DType::kFloat32, {1, 5});
  view.strides[0] = 77;
  EXPECT_TRUE(view.is_contiguous());
  view.strides[1] = 2;
  EXPECT_FALSE(view.is_contiguous());
  view = TensorView::contiguous(nullptr, DType::kFloat32, {4, 0, 3});
  view.strides = {-5, 0, 7};
  EXPECT_TRUE(view.is_contiguous());
}

TEST(TensorView, ExtentCoversAllElements) {
  std::array<int16_t, 64> memory{};
  const auto address_of = [&](int i) { return reinterpret_cast<uintptr_t>(memory.data() + i); };
  TensorView view = TensorView::contiguous(memory.data() + 32, DType::kInt16, {4, 3});
  EXPECT_EQ(view.extent(), (std::array<uintptr_t, 2>{address_of(32), address_of(44)}));
  view.strides[0] = -8;
  EXPECT_EQ(view.extent(), (std::array<uintptr_t, 2>{address_of(8), address_of(35)}));
  view.strides[0] = 0;
  EXPECT_EQ(view.extent(), (std::array<uintptr_t, 2>{address_of(32), address_of(35)}));
  view.strides = {-8, -1};
  EXPECT_EQ(view.extent(), (std::array<uintptr_t, 2>{address_of(6), address_of(33)}));
  view.shape[1] = 0;
  EXPECT_EQ(view.extent()[0], view.extent()[1]);
}

TEST(TensorView, ShapesAreWrittenAsLists) {
  const std::array<int64_t, 3> shape{2, 10, 16};
  EXPECT_EQ(shape_string({shape.data(), 3}), "[2, 10, 16]");
  EXPECT_EQ(shape_string({shape.data(), 1}), "[2]");
  EXPECT_EQ(shape_string({shape.data(), 0}), "[]");
  const TensorView view = TensorView::contiguous(nullptr, DType::kBFloat16, {4}, Device{DeviceType::kCuda, 1});
  EXPECT_EQ(view.describe(), "[4] bfloat16 on cuda:1");
}

}  // namespace
}  // namespace robocache
