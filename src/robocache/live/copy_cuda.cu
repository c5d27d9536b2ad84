#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "robocache/core/launch_cuda.cuh"
#include "robocache/live/copy_params.hpp"

namespace robocache {
namespace {

constexpr unsigned kThreads = 256;

// A row of blocks makes one copy.
__global__ void __launch_bounds__(kThreads) copy_pinned(const __grid_constant__ PinnedCopies copies) {
  wait_for_work_before();
  const PinnedCopy& copy = copies.entries[blockIdx.y];
  const int64_t first = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  const int64_t threads = gridDim.x * int64_t{kThreads};
  const auto addresses = reinterpret_cast<uintptr_t>(copy.to) | reinterpret_cast<uintptr_t>(copy.from);
  const int64_t vectors = addresses % sizeof(uint4) == 0 ? copy.bytes / int64_t{sizeof(uint4)} : 0;
  for (int64_t i = first; i < vectors; i += threads) {
    static_cast<uint4*>(copy.to)[i] = static_cast<const uint4*>(copy.from)[i];
  }
  for (int64_t i = vectors * int64_t{sizeof(uint4)} + first; i < copy.bytes; i += threads) {
    static_cast<uint8_t*>(copy.to)[i] = static_cast<const uint8_t*>(copy.from)[i];
  }
}

}  // namespace
}  // namespace robocache

extern "C" __attribute__((visibility("default"))) int robocache_cuda_copy_pinned(const robocache::PinnedCopies* copies,
                                                                                 int32_t device, void* stream) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  int64_t largest_bytes = 1;
  for (int32_t i = 0; i < copies->count; ++i) largest_bytes = std::max(largest_bytes, copies->entries[i].bytes);
  const dim3 blocks(blocks_for(largest_bytes, kThreads * sizeof(uint4)), static_cast<unsigned>(copies->count));
  return launch_overlapped(copy_pinned, blocks, kThreads, 0, static_cast<cudaStream_t>(stream), *copies);
}
