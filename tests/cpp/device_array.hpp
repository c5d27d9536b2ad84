// Arrays that a test fills on the host, hands to the library on a device, and reads back.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "robocache/core/backend.hpp"
#include "robocache/core/tensor_view.hpp"

namespace robocache::test {

// A contiguous tensor with memory of exactly its size, so that a sanitizer sees the first byte past it.
template <class T>
class DeviceArray {
 public:
  DeviceArray(const std::vector<T>& values, DType dtype, std::initializer_list<int64_t> shape, Device device)
      : buffer_(device, values.size() * sizeof(T)),
        view_(TensorView::contiguous(buffer_.data(), dtype, shape, device)) {
    EXPECT_EQ(view_.numel() * dtype_size(dtype), static_cast<int64_t>(values.size() * sizeof(T)));
    buffer_.fill_from_host(values.data(), values.size() * sizeof(T));
  }

  const TensorView& view() const { return view_; }

  std::vector<T> read() const {
    std::vector<T> values(buffer_.bytes() / sizeof(T));
    if (values.empty()) return values;
    if (buffer_.device().is_cuda()) {
      const int32_t device = buffer_.device().index;
      check_cuda(cuda_backend().copy_to_host(device, values.data(), buffer_.data(), buffer_.bytes(), nullptr), "read");
      check_cuda(cuda_backend().synchronize(device, nullptr), "read");
    } else {
      const T* from = static_cast<const T*>(buffer_.data());
      values.assign(from, from + values.size());
    }
    return values;
  }

 private:
  DeviceBuffer buffer_;
  TensorView view_;
};

// A test body that runs on each device; skipped, with the reason, where there is none.
class OnDevice : public testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override {
    if (device().is_cuda() && cuda_device_count() == 0) GTEST_SKIP() << cuda_unavailable_reason();
  }
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
