// Every launcher uses this code around its kernel. Only *_cuda.cu files include it.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>

namespace robocache {

using Word = unsigned long long;  // the type of 64-bit atomic operations

// Returns an attribute of a device, or 0 if it is unknown.
inline int device_attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess ? value : 0;
}

// Returns the number of multiprocessors, which determines the size of launches. The runtime caches it. If it is
// unknown, the launch reports why.
inline int multiprocessors(int device) { return std::max(1, device_attribute(cudaDevAttrMultiProcessorCount, device)); }

// Returns how many blocks of `items_per_block` items hold `items`, but at most `most`.
inline unsigned blocks_for(int64_t items, int64_t items_per_block, int64_t most = INT32_MAX) {
  return static_cast<unsigned>(std::min((items + items_per_block - 1) / items_per_block, most));
}

// Makes a device current and restores the caller's. Clears an error that an earlier call has already reported, such as
// a failed allocation; otherwise cudaGetLastError() would report it for the launch that follows.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    cudaGetLastError();
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

// Whether the current device runs code compiled for compute capability 9.0 or later. A later GPU may run code for an
// earlier one, which has no programmatic dependent launch and no clusters. All kernels are compiled for the same GPUs,
// so the answer for one `kernel` holds for all.
inline bool runs_code_for_90(const void* kernel, int device) {
  enum : uint8_t { kNotAsked, kNo, kYes };
  static std::atomic<uint8_t> answers[64]{};
  const bool has_entry = device < static_cast<int>(std::size(answers));
  const uint8_t known = has_entry ? answers[device].load(std::memory_order_relaxed) : uint8_t{kNotAsked};
  if (known != kNotAsked) return known == kYes;
  cudaFuncAttributes built{};
  if (cudaFuncGetAttributes(&built, kernel) != cudaSuccess) return false;  // the launch will report the reason
  const bool yes = built.ptxVersion >= 90;
  if (has_entry) answers[device].store(yes ? kYes : kNo, std::memory_order_relaxed);
  return yes;
}

// Launches a kernel that may begin before the previous kernel on the stream has ended (programmatic dependent launch,
// in code for 9.0 and later). The kernel must call wait_for_work_before() before it touches memory. Earlier it may only
// read, and only what the previous kernel does not write; that kernel must then call let_work_after_begin() after its
// own wait, so that the kernels before it have ended. Blocks of a cluster (also 9.0 and later) can access each other's
// shared memory.
template <class... Parameters>
cudaError_t launch_clusters(void (*kernel)(Parameters...), unsigned cluster, dim3 blocks, unsigned threads,
                            size_t shared_bytes, cudaStream_t stream, const Parameters&... arguments) {
  int device = 0;
  if (const cudaError_t code = cudaGetDevice(&device); code != cudaSuccess) return code;
  cudaLaunchAttribute attributes[2]{};
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  if (runs_code_for_90(reinterpret_cast<const void*>(kernel), device)) {
    cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    cudaLaunchAttribute& clusters = attributes[config.numAttrs++];
    clusters.id = cudaLaunchAttributeClusterDimension;
    clusters.val.clusterDim = {cluster, 1, 1};
  }
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <class... Parameters>
cudaError_t launch_overlapped(void (*kernel)(Parameters...), dim3 blocks, unsigned threads, size_t shared_bytes,
                              cudaStream_t stream, const Parameters&... arguments) {
  return launch_clusters(kernel, 1, blocks, threads, shared_bytes, stream, arguments...);
}

// Lets the next kernel begin as soon as this one's last blocks run. The next kernel still waits for their results.
__device__ inline void let_work_after_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until the previous kernel has ended, and lets the next one begin.
__device__ inline void wait_for_work_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  let_work_after_begin();
}

}  // namespace robocache
