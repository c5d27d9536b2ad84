#include <cuda_runtime.h>

#include "robocache/actions/convert_math.hpp"
#include "robocache/core/launch_cuda.cuh"

namespace robocache {
namespace {

template <class Scalar, class Out>
__global__ void convert_actions_kernel(const __grid_constant__ ConvertActionsParams p) {
  for (int64_t at = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; at < p.samples * p.steps;
       at += int64_t{gridDim.x} * blockDim.x) {
    Base<Scalar> base;
    load_base(p, at / p.steps, base);
    if (at % p.steps == 0) store_base(p, at / p.steps, base);
    convert_step<Scalar, Out>(p, at / p.steps, at % p.steps, base, nullptr);
  }
}

}  // namespace
}  // namespace robocache

extern "C" __attribute__((visibility("default"))) int robocache_cuda_convert_actions(
    const robocache::ConvertActionsParams* params, int32_t device, void* stream_handle) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  constexpr int kThreads = 64;
  with_action_types(*params, [&](auto work, auto out) {
    convert_actions_kernel<decltype(work), decltype(out)>
        <<<blocks_for(params->samples * params->steps, kThreads), kThreads, 0,
           static_cast<cudaStream_t>(stream_handle)>>>(*params);
  });
  return cudaGetLastError();
}
