// A view of an n-dimensional array. It does not own the memory.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "robocache/core/device.hpp"
#include "robocache/core/dtype.hpp"

namespace robocache {

inline constexpr int kMaxDims = 8;

// The memory must outlive every use. Strides count elements and may be 0 or negative.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  Device device;
  int ndim = 0;
  std::array<int64_t, kMaxDims> shape{};
  std::array<int64_t, kMaxDims> strides{};

  // Returns a C-contiguous view.
  static TensorView contiguous(void* data, DType dtype, std::initializer_list<int64_t> shape, Device device = {});

  int64_t numel() const;
  bool is_contiguous() const;

  // Returns the addresses that this view can touch: [first byte, one past the last byte); equal if it has no elements.
  std::array<uintptr_t, 2> extent() const;

  // Returns text like "[2, 10, 16] float32 on cpu", for error messages.
  std::string describe() const;
};

// Returns text like "[2, 10, 16]".
std::string shape_string(std::span<const int64_t> shape);
std::string shape_string(const TensorView& view);

}  // namespace robocache
