#include <cuda_runtime.h>

#include "robocache/align/moments_params.hpp"
#include "robocache/core/launch_cuda.cuh"

namespace robocache {
namespace {

__global__ void draw_moments_kernel(const __grid_constant__ MomentBatch batch) {
  for (int64_t sample = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; sample < batch.batch.count;
       sample += int64_t{gridDim.x} * blockDim.x) {
    draw_moment(batch, sample);
  }
}

}  // namespace
}  // namespace robocache

extern "C" __attribute__((visibility("default"))) int robocache_cuda_draw_moments(const robocache::MomentBatch* batch,
                                                                                  int32_t device, void* stream) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  constexpr int kThreads = 64;
  draw_moments_kernel<<<blocks_for(batch->batch.count, kThreads), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      *batch);
  return cudaGetLastError();
}
