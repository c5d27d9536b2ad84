// Arrays that a test fills on the host, passes to the library on a device, and reads back.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "robocache/core/backend.hpp"
#include "robocache/core/tensor_view.hpp"

namespace robocache::test {

// An array whose memory has exactly the bytes that the strides reach, so that a sanitizer sees the first byte outside.
template <class T>
class DeviceArray {
 public:
  // `values` is row-major; `strides` counts elements and is C-contiguous by default. Memory between the elements is
  // filled with kGap. If strides let elements share memory, the last one written stays.
  DeviceArray(const std::vector<T>& values, DType dtype, const std::vector<int64_t>& shape, Device device,
              const std::vector<int64_t>& strides = {}) {
    view_.dtype = dtype;
    view_.device = device;
    view_.ndim = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), view_.shape.begin());
    int64_t stride = 1;
    for (int d = view_.ndim - 1; d >= 0; --d) {
      view_.strides[d] = stride;
      stride *= view_.shape[d];
    }
    std::copy(strides.begin(), strides.end(), view_.strides.begin());
    EXPECT_EQ(view_.numel(), static_cast<int64_t>(values.size())) << view_.describe();

    const auto [low, high] = view_.extent();  // the extent of a view at address 0
    const auto elements = (high - low) / sizeof(T);
    first_ = static_cast<int64_t>((0 - low) / sizeof(T));
    std::vector<T> storage(elements);
    if (elements > 0) std::memset(static_cast<void*>(storage.data()), kGap, elements * sizeof(T));
    for_each_run([&](int64_t i, int64_t offset, int64_t count, int64_t step) {
      if (step == 1) return static_cast<void>(std::copy_n(values.data() + i, count, storage.data() + offset));
      for (int64_t k = 0; k < count; ++k)
        storage[static_cast<size_t>(offset + k * step)] = values[static_cast<size_t>(i + k)];
    });
    buffer_ = DeviceBuffer(device, elements * sizeof(T));
    buffer_.fill_from_host(storage.data(), elements * sizeof(T));
    view_.data = elements > 0 ? static_cast<T*>(buffer_.data()) + first_ : nullptr;
  }

  const TensorView& view() const { return view_; }

  // Returns the present elements, row-major.
  std::vector<T> read() const {
    const std::vector<T> storage = read_memory();
    std::vector<T> values(static_cast<size_t>(view_.numel()));
    for_each_run([&](int64_t i, int64_t offset, int64_t count, int64_t step) {
      if (step == 1) return static_cast<void>(std::copy_n(storage.data() + offset, count, values.data() + i));
      for (int64_t k = 0; k < count; ++k)
        values[static_cast<size_t>(i + k)] = storage[static_cast<size_t>(offset + k * step)];
    });
    return values;
  }

  // Whether every byte between the elements is unchanged.
  bool gaps_are_untouched() const {
    const std::vector<T> storage = read_memory();
    std::string is_gap(storage.size(), 1);
    for_each_run([&](int64_t, int64_t offset, int64_t count, int64_t step) {
      if (step == 1) return static_cast<void>(std::memset(is_gap.data() + offset, 0, static_cast<size_t>(count)));
      for (int64_t k = 0; k < count; ++k) is_gap[static_cast<size_t>(offset + k * step)] = 0;
    });
    for (size_t offset = is_gap.find(1); offset != std::string::npos; offset = is_gap.find(1, offset + 1)) {
      const auto* bytes = reinterpret_cast<const unsigned char*>(&storage[offset]);
      if (std::any_of(bytes, bytes + sizeof(T), [](unsigned char b) { return b != kGap; })) return false;
    }
    return true;
  }

 private:
  static constexpr unsigned char kGap = 0xa5;

  // Calls visit(row-major index, offset in memory, count, step) for all elements. One call covers all that lie one step
  // apart, in most arrays all elements: a sanitizer slows down many short copies.
  template <class Visit>
  void for_each_run(const Visit& visit) const {
    const int64_t elements = view_.numel();
    int64_t count = 1;
    int64_t step = 1;
    int outer = view_.ndim;
    while (outer > 0 && (count == 1 || view_.strides[outer - 1] == step * count)) {
      --outer;
      if (count == 1) step = view_.strides[outer];
      count *= view_.shape[outer];
    }
    for (int64_t i = 0; i < elements; i += count) {
      int64_t rest = i / count;
      int64_t offset = first_;
      for (int d = outer - 1; d >= 0; --d) {
        offset += rest % view_.shape[d] * view_.strides[d];
        rest /= view_.shape[d];
      }
      visit(i, offset, count, step);
    }
  }

  std::vector<T> read_memory() const {
    std::vector<T> storage(buffer_.bytes() / sizeof(T));
    if (storage.empty()) return storage;
    if (buffer_.device().is_cuda()) {
      const int32_t device = buffer_.device().index;
      check_cuda(cuda_backend().copy_to_host(device, storage.data(), buffer_.data(), buffer_.bytes(), nullptr), "read");
      check_cuda(cuda_backend().synchronize(device, nullptr), "read");
    } else {
      std::memcpy(static_cast<void*>(storage.data()), buffer_.data(), buffer_.bytes());
    }
    return storage;
  }

  DeviceBuffer buffer_;
  TensorView view_;
  int64_t first_ = 0;  // offset of element 0, which is not the lowest if strides are negative
};

// Skips the test, with the reason, if it needs a GPU and there is none. Fails it if ROBOCACHE_REQUIRE_CUDA=1 requires
// one.
inline void skip_unless_usable(Device device) {
  if (!device.is_cuda() || cuda_device_count() > 0) return;
  const char* required = std::getenv("ROBOCACHE_REQUIRE_CUDA");
  if (required != nullptr && std::string(required) == "1") FAIL() << cuda_unavailable_reason();
  GTEST_SKIP() << cuda_unavailable_reason();
}

// A test whose body runs on each device.
class OnDevice : public testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override { skip_unless_usable(device()); }
  static Device device() { return {GetParam(), 0}; }
};

inline std::string device_test_name(const testing::TestParamInfo<DeviceType>& info) {
  return info.param == DeviceType::kCuda ? "cuda" : "cpu";
}

}  // namespace robocache::test

#define ROBOCACHE_ON_EACH_DEVICE(suite)                                                                    \
  INSTANTIATE_TEST_SUITE_P(Device, suite,                                                                  \
                           testing::Values(::robocache::DeviceType::kCpu, ::robocache::DeviceType::kCuda), \
                           ::robocache::test::device_test_name)
