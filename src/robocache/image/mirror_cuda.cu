#include <cuda_runtime.h>

#include "robocache/core/launch_cuda.cuh"
#include "robocache/image/mirror_math.hpp"

namespace robocache {
namespace {

// A block mirrors a sample.
__global__ void mirror_samples(const __grid_constant__ MirrorParams p) {
  wait_for_work_before();
  const int64_t sample = blockIdx.x;
  const uint8_t flipped = flipped_axes(p, sample);
  if (flipped == 0) return;
  for (int64_t i = threadIdx.x; i < p.rows * p.features; i += blockDim.x) {
    p.wide ? mirror_number<double>(p, flipped, sample, i) : mirror_number<float>(p, flipped, sample, i);
  }
}

}  // namespace
}  // namespace robocache

extern "C" __attribute__((visibility("default"))) int robocache_cuda_mirror_values(
    const robocache::MirrorParams* params, int32_t device, void* stream) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  constexpr unsigned kThreads = 64;
  return launch_overlapped(mirror_samples, dim3(static_cast<unsigned>(params->samples)), kThreads, 0,
                           static_cast<cudaStream_t>(stream), *params);
}
