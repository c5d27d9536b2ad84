// What every launcher does around its kernel. Included by *_cuda.cu alone.
#pragma once

#include <cuda_runtime.h>

namespace robocache {

// Makes a device current and restores the caller's.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    code_ = cudaGetDevice(&previous_);
    if (code_ == cudaSuccess && previous_ != device) {
      code_ = cudaSetDevice(device);
      changed_ = code_ == cudaSuccess;
    }
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  cudaError_t code() const { return code_; }

 private:
  cudaError_t code_ = cudaSuccess;
  int previous_ = 0;
  bool changed_ = false;
};

}  // namespace robocache
