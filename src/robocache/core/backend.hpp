// The CUDA plugin, librobocache_cuda.so: opened when first asked for, so that the CPU library needs no driver.
//
// The boundary is plain C: this table, and one launcher a kernel found by name. No C++ type crosses it. Both libraries
// hold a hash of all that crosses, made by the build (cmake/RobocacheBackendAbi.cmake); a plugin of another hash, so of
// another build, is refused before anything of it is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "robocache/core/device.hpp"

namespace robocache {

struct CudaDeviceInfo {
  char name[256];
  int32_t compute_major;
  int32_t compute_minor;
  int32_t multiprocessors;
  uint64_t memory_total_bytes;
  uint64_t memory_free_bytes;
};

// Every function returns 0 or a cudaError_t; error_text explains it. `device` is made current only for the call.
struct CudaBackend {
  int32_t runtime_version;  // CUDA runtime the plugin was built with, as 13000
  int (*driver_version)(int32_t* version);
  int (*device_count)(int32_t* count);
  int (*device_info)(int32_t device, CudaDeviceInfo* info);
  int (*allocate)(int32_t device, size_t bytes, void** memory);
  int (*release)(int32_t device, void* memory);
  int (*copy_from_host)(int32_t device, void* to, const void* from, size_t bytes, void* stream);
  int (*copy_to_host)(int32_t device, void* to, const void* from, size_t bytes, void* stream);
  int (*synchronize)(int32_t device, void* stream);
  const char* (*error_text)(int code);
};

// The plugin's table, or null; the reason why not is in cuda_unavailable_reason(). Looked for beside this library and
// at $ROBOCACHE_CUDA_LIBRARY, once.
const CudaBackend* cuda_backend_or_null();
const std::string& cuda_unavailable_reason();

// Number of usable CUDA devices; 0 without plugin, driver or device (the reason as above).
int cuda_device_count();

// The table; throws DeviceError with the reason.
const CudaBackend& cuda_backend();

// Throws DeviceError "WHAT: TEXT" if code is not 0.
void check_cuda(int code, const char* what);

// A launcher the plugin exports as `name`; throws DeviceError.
void* cuda_symbol(const char* name);

// Memory on a device that this object owns; CPU memory is 64-byte aligned. Freed with it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Device device, size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  Device device() const { return device_; }
  size_t bytes() const { return bytes_; }
  void* data() const { return data_; }

  // Copies host memory to the start of this buffer and returns when it is there.
  void fill_from_host(const void* from, size_t bytes);

 private:
  Device device_;
  size_t bytes_ = 0;
  void* data_ = nullptr;
};

}  // namespace robocache
