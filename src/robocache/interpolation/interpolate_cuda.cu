#include <cuda_runtime.h>

#include "robocache/core/launch_cuda.cuh"
#include "robocache/interpolation/interpolate_cuda.cuh"

extern "C" __attribute__((visibility("default"))) int robocache_cuda_interpolate(const robocache::Interpolation* call,
                                                                                 int32_t device, void* stream) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  return launch_any(*call, static_cast<cudaStream_t>(stream));
}
