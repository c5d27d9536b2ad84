// Memory for operations that allocate their results.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "robocache/core/allocate.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/core/dtype.hpp"
#include "robocache/core/tensor_view.hpp"

namespace robocache::test {

// The memory of a call; every byte is 0xa5 until it is written.
class Poisoned {
 public:
  explicit Poisoned(Device device) : device_(device) {}

  Allocate allocate() {
    return [this](DType dtype, std::initializer_list<int64_t> shape) {
      TensorView view = TensorView::contiguous(nullptr, dtype, shape, device_);
      const auto bytes = static_cast<size_t>(view.numel() * dtype_size(dtype));
      memory_.emplace_back(device_, bytes);
      memory_.back().fill_from_host(std::vector<uint8_t>(bytes, 0xa5).data(), bytes);
      view.data = memory_.back().data();
      return view;
    };
  }

  template <class T>
  std::vector<T> read(const TensorView& view) const {
    std::vector<T> values(static_cast<size_t>(view.numel()));
    const size_t bytes = values.size() * sizeof(T);
    if (bytes == 0) return values;
    if (device_.is_cuda()) {
      check_cuda(cuda_backend().copy_to_host(device_.index, values.data(), view.data, bytes, nullptr), "read");
      check_cuda(cuda_backend().synchronize(device_.index, nullptr), "read");
    } else {
      std::memcpy(values.data(), view.data, bytes);
    }
    return values;
  }

 private:
  Device device_;
  std::vector<DeviceBuffer> memory_;
};

}  // namespace robocache::test
