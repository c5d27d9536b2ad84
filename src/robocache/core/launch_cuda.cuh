// What every launcher does around its kernel. Included by *_cuda.cu alone.
#pragma once

#include <cuda_runtime.h>

namespace robocache {

// Makes a device current and restores the caller's. Forgets an error that an earlier call has already reported, such as
// an allocation that failed: cudaGetLastError() would blame the launch that follows for it.
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

// Launches a kernel that may begin while the one before it on the stream still ends (programmatic dependent launch, from
// compute capability 9.0): it calls wait_for_work_before() before it touches memory. What the kernel before does not write
// may be read earlier where that one lets others begin only after its own wait.
template <class... Parameters>
cudaError_t launch_overlapped(void (*kernel)(Parameters...), dim3 blocks, unsigned threads, size_t shared_bytes,
                              cudaStream_t stream, const Parameters&... arguments) {
  int device = 0;
  int major = 0;
  cudaError_t code = cudaGetDevice(&device);
  if (code == cudaSuccess) code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (code != cudaSuccess) return code;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = major >= 9 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// Launches a kernel in clusters of so many blocks, which reach each other's shared memory (from compute capability 9.0). It
// may begin early, as above.
template <class... Parameters>
cudaError_t launch_clusters(void (*kernel)(Parameters...), unsigned cluster, dim3 blocks, unsigned threads,
                            size_t shared_bytes, cudaStream_t stream, const Parameters&... arguments) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster;
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// Lets the kernel after this one begin as soon as this one's last blocks run; it waits for their results all the same.
__device__ inline void let_work_after_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ inline void wait_for_work_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  let_work_after_begin();
}

}  // namespace robocache
