#include "robocache/core/tensor_view.hpp"

#include "robocache/core/error.hpp"

namespace robocache {

TensorView TensorView::contiguous(void* data, DType dtype, std::initializer_list<int64_t> shape, Device device) {
  if (shape.size() > kMaxDims) throw ArgumentError("shape: expected at most 8 dimensions");
  TensorView view{.data = data, .dtype = dtype, .device = device, .ndim = static_cast<int>(shape.size())};
  int d = 0;
  for (const int64_t extent : shape) view.shape[d++] = extent;
  int64_t stride = 1;
  for (d = view.ndim - 1; d >= 0; --d) {
    view.strides[d] = stride;
    stride *= view.shape[d];
  }
  return view;
}

int64_t TensorView::numel() const {
  int64_t n = 1;
  for (int d = 0; d < ndim; ++d) n *= shape[d];
  return n;
}

bool TensorView::is_contiguous() const {
  if (numel() == 0) return true;
  int64_t expected = 1;
  for (int d = ndim - 1; d >= 0; --d) {
    if (shape[d] != 1 && strides[d] != expected) return false;
    expected *= shape[d];
  }
  return true;
}

std::array<uintptr_t, 2> TensorView::extent() const {
  const auto base = reinterpret_cast<uintptr_t>(data);
  int64_t low = 0;
  int64_t high = 0;
  for (int d = 0; d < ndim; ++d) {
    if (shape[d] == 0) return {base, base};
    (strides[d] < 0 ? low : high) += (shape[d] - 1) * strides[d];
  }
  const int64_t size = dtype_size(dtype);
  return {base + static_cast<uintptr_t>(low * size), base + static_cast<uintptr_t>((high + 1) * size)};
}

std::string TensorView::describe() const {
  return concat(shape_string(*this), " ", dtype_name(dtype), " on ", device_name(device));
}

std::string shape_string(std::span<const int64_t> shape) {
  std::string text;
  for (const int64_t extent : shape) text += (text.empty() ? "[" : ", ") + std::to_string(extent);
  return text.empty() ? "[]" : text + "]";
}

std::string shape_string(const TensorView& view) {
  return shape_string({view.shape.data(), static_cast<size_t>(view.ndim)});
}

}  // namespace robocache
