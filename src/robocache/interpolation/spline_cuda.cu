#include <cuda_runtime.h>

#include "robocache/core/launch_cuda.cuh"
#include "robocache/interpolation/spline.hpp"

namespace robocache::interpolation_cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRowsPerBlock = 32;  // few, so that a batch's rows spread over the processor

// A thread a row: the factors follow one another.
template <class Clock>
__global__ void __launch_bounds__(kRowsPerBlock) table_kernel(const __grid_constant__ SplineCall call) {
  const Segment& s = call.segment;
  for (int64_t batch = blockIdx.x * int64_t{kRowsPerBlock} + threadIdx.x; batch < call.batch;
       batch += int64_t{gridDim.x} * kRowsPerBlock) {
    const int64_t n = row_length(s, batch);
    const ClockRow<Clock> times{static_cast<const Clock*>(s.times) + batch * s.times_batch, s.times_sample};
    if (n > 0) spline_table(times, n, Clock{}, s.boundary, call.table + batch * s.samples);
  }
}

// A thread a feature of a row: neighbours read neighbours.
template <class T>
__global__ void __launch_bounds__(kThreads, 4) sweep_kernel(const __grid_constant__ SplineCall call) {
  using Work = WorkType<T>;
  const Segment& s = call.segment;
  const int64_t count = call.batch * s.features;
  for (int64_t at = blockIdx.x * int64_t{kThreads} + threadIdx.x; at < count; at += int64_t{gridDim.x} * kThreads) {
    const int64_t batch = at / s.features;
    const int64_t d = at - batch * s.features;
    const int64_t n = row_length(s, batch);
    if (n == 0) continue;
    spline_sweep<1, 6>(call.table + batch * s.samples, n,
                       static_cast<const T*>(s.values) + batch * s.values_batch + d * s.values_feature, s.values_sample,
                       s.values_feature, static_cast<Work*>(call.slopes) + batch * s.samples * s.features + d,
                       s.features);
  }
}

cudaError_t launch(const SplineCall& call, cudaStream_t stream) {
  const Segment& s = call.segment;
  if (call.batch * s.samples * s.features == 0) return cudaSuccess;
  const unsigned rows = blocks_for(call.batch, kRowsPerBlock);
  with_clock(s.clock_dtype,
             [&](auto clock) { table_kernel<decltype(clock)><<<rows, kRowsPerBlock, 0, stream>>>(call); });
  if (const cudaError_t code = cudaGetLastError(); code != cudaSuccess) return code;
  const unsigned blocks = blocks_for(call.batch * s.features, kThreads);
  with_floating(s.value_dtype,
                [&](auto element) { sweep_kernel<decltype(element)><<<blocks, kThreads, 0, stream>>>(call); });
  return cudaGetLastError();
}

}  // namespace
}  // namespace robocache::interpolation_cuda

extern "C" __attribute__((visibility("default"))) int robocache_cuda_spline(const robocache::SplineCall* call,
                                                                            int32_t device, void* stream) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  return interpolation_cuda::launch(*call, static_cast<cudaStream_t>(stream));
}
