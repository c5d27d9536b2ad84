#include <cstring>

#include "robocache/core/backend.hpp"
#include "robocache/core/launch_cuda.cuh"

namespace robocache {
namespace {

template <class Call>
int on_device(int32_t device, Call call) {
  const DeviceGuard guard(device);
  return guard.code() != cudaSuccess ? guard.code() : call();
}

int driver_version(int32_t* version) { return cudaDriverGetVersion(version); }

int device_count(int32_t* count) { return cudaGetDeviceCount(count); }

int device_info(int32_t device, CudaDeviceInfo* info) {
  cudaDeviceProp properties;
  if (const cudaError_t code = cudaGetDeviceProperties(&properties, device); code != cudaSuccess) return code;
  static_assert(sizeof(info->name) >= sizeof(properties.name));
  std::memcpy(info->name, properties.name, sizeof(properties.name));
  info->compute_major = properties.major;
  info->compute_minor = properties.minor;
  info->multiprocessors = properties.multiProcessorCount;
  return on_device(device, [&] {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    const cudaError_t code = cudaMemGetInfo(&free_bytes, &total_bytes);
    info->memory_free_bytes = free_bytes;
    info->memory_total_bytes = total_bytes;
    return code;
  });
}

int allocate(int32_t device, size_t bytes, void** memory) {
  return on_device(device, [&] { return cudaMalloc(memory, bytes); });
}

int release(int32_t device, void* memory) {
  return on_device(device, [&] { return cudaFree(memory); });
}

int copy(int32_t device, void* to, const void* from, size_t bytes, cudaMemcpyKind kind, void* stream) {
  return on_device(device, [&] { return cudaMemcpyAsync(to, from, bytes, kind, static_cast<cudaStream_t>(stream)); });
}

int copy_from_host(int32_t device, void* to, const void* from, size_t bytes, void* stream) {
  return copy(device, to, from, bytes, cudaMemcpyHostToDevice, stream);
}

int copy_to_host(int32_t device, void* to, const void* from, size_t bytes, void* stream) {
  return copy(device, to, from, bytes, cudaMemcpyDeviceToHost, stream);
}

int synchronize(int32_t device, void* stream) {
  return on_device(device, [&] { return cudaStreamSynchronize(static_cast<cudaStream_t>(stream)); });
}

int allocate_pinned(int32_t device, size_t bytes, void** memory) {
  return on_device(device, [&] { return cudaHostAlloc(memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped); });
}

int release_pinned(int32_t device, void* memory) {
  return on_device(device, [&] { return cudaFreeHost(memory); });
}

int register_host(int32_t device, void* memory, size_t bytes) {
  return on_device(device,
                   [&] { return cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped); });
}

int unregister_host(int32_t device, void* memory) {
  return on_device(device, [&] { return cudaHostUnregister(memory); });
}

int pinned_on_device(int32_t device, void* memory, void** on_device_pointer) {
  return on_device(device, [&] { return cudaHostGetDevicePointer(on_device_pointer, memory, 0); });
}

int create_stream(int32_t device, void** stream) {
  return on_device(device, [&] {
    int least = 0, greatest = 0;
    if (const cudaError_t code = cudaDeviceGetStreamPriorityRange(&least, &greatest); code != cudaSuccess) return code;
    return cudaStreamCreateWithPriority(reinterpret_cast<cudaStream_t*>(stream), cudaStreamNonBlocking, greatest);
  });
}

int destroy_stream(int32_t device, void* stream) {
  return on_device(device, [&] { return cudaStreamDestroy(static_cast<cudaStream_t>(stream)); });
}

int create_event(int32_t device, void** event) {
  return on_device(
      device, [&] { return cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event), cudaEventDisableTiming); });
}

int destroy_event(int32_t device, void* event) {
  return on_device(device, [&] { return cudaEventDestroy(static_cast<cudaEvent_t>(event)); });
}

int record_event(int32_t device, void* event, void* stream) {
  return on_device(device,
                   [&] { return cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<cudaStream_t>(stream)); });
}

int stream_wait_event(int32_t device, void* stream, void* event) {
  return on_device(device, [&] {
    return cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event), 0);
  });
}

int synchronize_event(int32_t device, void* event) {
  return on_device(device, [&] { return cudaEventSynchronize(static_cast<cudaEvent_t>(event)); });
}

const char* error_text(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }

constexpr CudaBackend kBackend{.runtime_version = CUDART_VERSION,
                               .out_of_memory = cudaErrorMemoryAllocation,
                               .driver_version = driver_version,
                               .device_count = device_count,
                               .device_info = device_info,
                               .allocate = allocate,
                               .release = release,
                               .copy_from_host = copy_from_host,
                               .copy_to_host = copy_to_host,
                               .synchronize = synchronize,
                               .allocate_pinned = allocate_pinned,
                               .release_pinned = release_pinned,
                               .register_host = register_host,
                               .unregister_host = unregister_host,
                               .pinned_on_device = pinned_on_device,
                               .create_stream = create_stream,
                               .destroy_stream = destroy_stream,
                               .create_event = create_event,
                               .destroy_event = destroy_event,
                               .record_event = record_event,
                               .stream_wait_event = stream_wait_event,
                               .synchronize_event = synchronize_event,
                               .error_text = error_text};

}  // namespace
}  // namespace robocache

extern "C" __attribute__((visibility("default"))) const char* robocache_cuda_abi() { return ROBOCACHE_BACKEND_ABI; }

extern "C" __attribute__((visibility("default"))) const robocache::CudaBackend* robocache_cuda_backend() {
  return &robocache::kBackend;
}
