#include <cuda_runtime.h>

#include "robocache/core/launch_cuda.cuh"
#include "robocache/interpolation/segment.hpp"
#include "robocache/ops/resample/check_times_params.hpp"

namespace robocache {
namespace {

template <class Clock>
__global__ void check_times_kernel(const __grid_constant__ CheckTimesParams p, unsigned long long* first_bad) {
  const int64_t total = p.batch * p.samples;
  for (int64_t flat = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; flat < total;
       flat += int64_t{gridDim.x} * blockDim.x) {
    const int64_t batch = flat / p.samples;
    const int64_t i = flat - batch * p.samples;
    if (i >= length_at(p.lengths, p.lengths_dtype, batch * p.lengths_batch, p.samples)) continue;
    const Clock* times = static_cast<const Clock*>(p.times) + batch * p.times_batch;
    const Clock t = times[i * p.times_sample];
    if (t != t || (i > 0 && t < times[(i - 1) * p.times_sample])) {
      atomicMin(first_bad, static_cast<unsigned long long>(flat));
    }
  }
}

}  // namespace
}  // namespace robocache

// Writes the flat index of the first bad time, or -1, to `flat`, and waits for it.
extern "C" __attribute__((visibility("default"))) int robocache_cuda_check_times(
    const robocache::CheckTimesParams* params, int64_t* flat, int32_t device, void* stream_handle) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  *flat = -1;
  if (params->batch * params->samples == 0) return cudaSuccess;
  unsigned long long* least_bad = nullptr;
  cudaError_t code = cudaMallocAsync(&least_bad, sizeof(*least_bad), stream);
  if (code != cudaSuccess) return code;
  code = cudaMemsetAsync(least_bad, 0xff, sizeof(*least_bad), stream);
  if (code == cudaSuccess) {
    with_clock(params->clock_dtype, [&](auto clock) {
      check_times_kernel<decltype(clock)>
          <<<blocks_for(params->batch * params->samples, 256, 4096), 256, 0, stream>>>(*params, least_bad);
    });
    code = cudaGetLastError();
  }
  if (code == cudaSuccess) code = cudaMemcpyAsync(flat, least_bad, sizeof(*least_bad), cudaMemcpyDeviceToHost, stream);
  if (code == cudaSuccess) code = cudaStreamSynchronize(stream);
  const cudaError_t freed = cudaFreeAsync(least_bad, stream);
  return code != cudaSuccess ? code : freed;
}
