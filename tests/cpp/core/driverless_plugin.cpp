// A CUDA plugin of this build as on a machine without a driver. backend_test.cpp opens it and expects a plain message.
#include <cstdint>

#include "robocache/core/backend.hpp"

extern "C" __attribute__((visibility("default"))) const char* robocache_cuda_abi() { return ROBOCACHE_BACKEND_ABI; }

extern "C" __attribute__((visibility("default"))) const robocache::CudaBackend* robocache_cuda_backend() {
  static const robocache::CudaBackend table = [] {
    robocache::CudaBackend backend{};
    backend.device_count = [](int* count) {
      *count = 0;
      return 35;  // cudaErrorInsufficientDriver; the runtime also returns it if there is no driver
    };
    backend.driver_version = [](int32_t* version) {
      *version = 0;
      return 0;
    };
    backend.error_text = [](int) -> const char* {
      return "CUDA driver version is insufficient for CUDA runtime version";
    };
    return backend;
  }();
  return &table;
}
