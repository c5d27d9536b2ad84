#include "robocache/batch/layout.hpp"

#include <algorithm>
#include <utility>

#include "robocache/core/arguments.hpp"

namespace robocache {
namespace {

// More bytes than a processor can address, and few enough that offsets do not overflow.
constexpr int64_t kMostBytes = int64_t{1} << 56;

int64_t multiplied(int64_t bytes, int64_t count) {
  int64_t product = 0;
  if (__builtin_mul_overflow(bytes, count, &product) || product > kMostBytes) {
    refuse("batch_size: expected a batch of at most 2^56 bytes, got ", count, " times ", bytes);
  }
  return product;
}

}  // namespace

int64_t BatchLayout::add(std::string name, DType dtype, std::vector<int64_t> shape, const std::string& description) {
  for (size_t i = 0; i < arrays_.size(); ++i) {
    if (arrays_[i].name != name) continue;
    refuse("delta_timestamps: the batch's key '", name, "' would be both ", descriptions_[i], " and ", description,
           "; expected one of them, or rename to give a stream another key");
  }
  int64_t sample_bytes = dtype_size(dtype);
  for (const int64_t extent : shape) sample_bytes = multiplied(sample_bytes, extent);
  const int64_t offset = add_scratch(sample_bytes);
  arrays_.push_back({std::move(name), dtype, std::move(shape), offset});
  descriptions_.push_back(description);
  return offset;
}

int64_t BatchLayout::add_scratch(int64_t sample_bytes) { return add_room(multiplied(sample_bytes, batch_size_)); }

int64_t BatchLayout::add_room(int64_t bytes) {
  constexpr int64_t kAlignment = 256;
  const int64_t offset = bytes_;
  if (bytes > kMostBytes - offset) refuse("batch_size: expected a batch of at most 2^56 bytes, got more");
  bytes_ = (offset + bytes + kAlignment - 1) / kAlignment * kAlignment;
  return offset;
}

TensorView BatchLayout::view(const BatchArray& array, int64_t samples, void* memory, Device device) {
  TensorView view{.data = static_cast<char*>(memory) + array.offset, .dtype = array.dtype, .device = device};
  view.ndim = static_cast<int>(array.shape.size()) + 1;
  view.shape[0] = samples;
  std::copy(array.shape.begin(), array.shape.end(), view.shape.begin() + 1);
  int64_t stride = 1;
  for (int d = view.ndim - 1; d >= 0; --d) {
    view.strides[d] = stride;
    stride *= view.shape[d];
  }
  return view;
}

}  // namespace robocache
