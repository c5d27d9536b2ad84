// The CUDA plugin, librobocache_cuda.so. It is opened when CUDA is first used, so the CPU library needs no driver.
//
// The boundary is plain C: this table, and one launcher per kernel, found by name. No C++ type crosses it. Both
// libraries contain a hash of everything that crosses, which the build computes (cmake/RobocacheBackendAbi.cmake). A
// plugin with another hash comes from another build and is refused before it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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

// Every function returns 0 or a cudaError_t; error_text explains it. A function makes `device` current only for its
// duration.
struct CudaBackend {
  int32_t runtime_version;  // of CUDA, with which the plugin was built: 13000 is 13.0
  int32_t out_of_memory;    // the code of the error "out of memory"
  int (*driver_version)(int32_t* version);
  int (*device_count)(int32_t* count);
  int (*device_info)(int32_t device, CudaDeviceInfo* info);
  int (*allocate)(int32_t device, size_t bytes, void** memory);
  int (*release)(int32_t device, void* memory);
  int (*copy_from_host)(int32_t device, void* to, const void* from, size_t bytes, void* stream);
  int (*copy_to_host)(int32_t device, void* to, const void* from, size_t bytes, void* stream);
  int (*synchronize)(int32_t device, void* stream);
  // Host memory that every device can access: newly allocated, or the caller's.
  int (*allocate_pinned)(int32_t device, size_t bytes, void** memory);
  int (*release_pinned)(int32_t device, void* memory);
  int (*register_host)(int32_t device, void* memory, size_t bytes);
  int (*unregister_host)(int32_t device, void* memory);
  int (*pinned_on_device)(int32_t device, void* memory, void** on_device);
  // A stream that does not wait for the default stream. Its kernels take precedence over others that have not begun.
  int (*create_stream)(int32_t device, void** stream);
  int (*destroy_stream)(int32_t device, void* stream);
  int (*create_event)(int32_t device, void** event);
  int (*destroy_event)(int32_t device, void* event);
  int (*record_event)(int32_t device, void* event, void* stream);
  int (*stream_wait_event)(int32_t device, void* stream, void* event);
  int (*synchronize_event)(int32_t device, void* event);
  const char* (*error_text)(int code);
};

// Returns the plugin's table, or null; cuda_unavailable_reason() then gives the reason. The plugin is searched for
// once: at $ROBOCACHE_CUDA_LIBRARY if that is set, else beside this library.
const CudaBackend* cuda_backend_or_null();
const std::string& cuda_unavailable_reason();

// Returns the number of usable CUDA devices; 0 without plugin, driver or device.
int cuda_device_count();

// Returns the table. Throws DeviceError with the reason if there is none.
const CudaBackend& cuda_backend();

// Throws DeviceError "WHAT: TEXT" if `code` is not 0; OutOfMemory if it is out_of_memory.
void check_cuda(int code, const char* what);

// Returns the launcher that the plugin exports as `name`. Throws DeviceError.
void* cuda_symbol(const char* name);

// A device's memory, stream or event, which is released with its owner.
struct DeviceDeleter {
  int32_t device = 0;
  int (*release)(int32_t device, void* resource) = nullptr;

  void operator()(void* resource) const { release(device, resource); }
};
using DeviceResource = std::unique_ptr<void, DeviceDeleter>;

// Owns memory on a device; CPU memory is 64-byte aligned.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Device device, size_t bytes);  // throws DeviceError, OutOfMemory

  Device device() const { return device_; }
  size_t bytes() const { return bytes_; }
  void* data() const { return data_.get(); }

  // Copies host memory to the start of this buffer and returns when the copy is complete.
  void fill_from_host(const void* from, size_t bytes);

 private:
  Device device_;
  size_t bytes_ = 0;
  DeviceResource data_;
};

// Owns pinned host memory. The kernels of `device` access it directly, and copies to the device need no staging. It is
// pinned for every other CUDA device too. On the CPU it is plain memory. 64-byte aligned.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(Device device, size_t bytes);  // throws DeviceError, OutOfMemory

  size_t bytes() const { return bytes_; }
  void* data() const { return data_.get(); }      // for the host
  void* on_device() const { return on_device_; }  // for a kernel

 private:
  size_t bytes_ = 0;
  DeviceResource data_;
  void* on_device_ = nullptr;
};

// Pins the caller's host memory, such as a mapped file of /dev/shm, as long as this object lives. Does nothing for the
// CPU.
class HostRegistration {
 public:
  HostRegistration() = default;
  HostRegistration(Device device, void* memory, size_t bytes);  // throws DeviceError, OutOfMemory

  void* on_device() const { return on_device_; }  // for a kernel

 private:
  DeviceResource memory_;
  void* on_device_ = nullptr;
};

// Owns a CUDA stream that does not synchronise with the default stream. Destroying the object does not cancel work that
// is queued on the stream. On the CPU it owns nothing.
class OwnedCudaStream {
 public:
  OwnedCudaStream() = default;
  explicit OwnedCudaStream(Device device);  // throws DeviceError

  CudaStream get() const { return {stream_.get()}; }
  void wait() const;  // until everything queued on it is done

 private:
  DeviceResource stream_;
};

// A mark in a CUDA stream. A mark that was never recorded counts as reached, and so do all marks on the CPU.
class CudaEvent {
 public:
  CudaEvent() = default;
  explicit CudaEvent(Device device);  // throws DeviceError

  void record(CudaStream stream);           // after the work that is queued on it; replaces the earlier mark
  void make_wait(CudaStream stream) const;  // work queued on it from now on runs after the mark
  void wait() const;                        // blocks the calling thread

 private:
  DeviceResource event_;
};

}  // namespace robocache
