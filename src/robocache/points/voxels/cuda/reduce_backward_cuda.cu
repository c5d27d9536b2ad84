#include <cuda_runtime.h>

#include "robocache/points/voxels/cuda/rows_cuda.cuh"
#include "robocache/points/voxels/reduce_backward.hpp"

namespace robocache::voxels_cuda {
namespace {

constexpr unsigned kThreads = 256;

// A thread handles one feature of one row. So neighbouring threads access neighbouring elements and often share a
// voxel.
struct FeatureIndex {
  int64_t row;   // index in its cloud; for ragged clouds in the whole array
  int64_t cell;  // index among the cells of all clouds, or -1
  int64_t feature;
  int64_t offset;  // in elements from the start of the features
};

__device__ FeatureIndex index_of(const VoxelGradient& call, int64_t i) {
  const int64_t flat = i / call.features.count;
  const int64_t f = i - flat * call.features.count;
  const RowIndex index = index_of_row(call.clouds, flat);
  if (!index.is_point) return {index.row, -1, f, 0};
  const int64_t cell = cell_of_point(call.clouds, call.grid, index);
  return {index.row, cell, f, index.cloud * call.features.cloud_stride + index.row * call.features.row_stride + f};
}

__global__ void clear_chosen(const __grid_constant__ VoxelGradient call) {
  const int64_t total = call.cells * call.features.count;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < total; i += int64_t{gridDim.x} * blockDim.x) {
    call.chosen[i] = no_row(call.mode);
  }
}

template <class T>
__global__ void choose_rows(const __grid_constant__ VoxelGradient call, int64_t total) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < total; i += int64_t{gridDim.x} * blockDim.x) {
    const FeatureIndex index = index_of(call, i);
    if (index.cell < 0) continue;
    const int64_t entry = index.cell * call.features.count + index.feature;
    if (!may_take(call, static_cast<const T*>(call.features.data)[index.offset], entry)) continue;
    const auto row = static_cast<int32_t>(index.row);
    if (call.mode == VoxelMode::kLast) {
      atomicMax(call.chosen + entry, row);
    } else {
      atomicMin(call.chosen + entry, row);
    }
  }
}

template <class T>
__global__ void add_gradients(const __grid_constant__ VoxelGradient call, int64_t total) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < total; i += int64_t{gridDim.x} * blockDim.x) {
    const FeatureIndex index = index_of(call, i);
    if (index.cell < 0) continue;
    const int64_t entry = index.cell * call.features.count + index.feature;
    static_cast<FeatureGradient<T>*>(call.features_gradient)[i] += gradient_of<T>(call, index.row, index.cell, entry);
  }
}

unsigned blocks_of(int64_t total) { return blocks_for(total, kThreads, 65536); }

template <class T>
cudaError_t launch_backward(const VoxelGradient& call, cudaStream_t stream) {
  const int64_t total = row_count(call.clouds) * call.features.count;
  if (goes_to_one(call.mode)) {
    clear_chosen<<<blocks_of(call.cells * call.features.count), kThreads, 0, stream>>>(call);
    choose_rows<T><<<blocks_of(total), kThreads, 0, stream>>>(call, total);
  }
  add_gradients<T><<<blocks_of(total), kThreads, 0, stream>>>(call, total);
  return cudaGetLastError();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int robocache_cuda_reduce_into_voxels_backward(
    const VoxelGradient* call, int32_t device, void* stream_handle) {
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  return with_feature_type(call->features.dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (std::is_integral_v<T>) {
      return cudaErrorInvalidValue;  // integers have no gradient; the caller has refused them
    } else {
      return launch_backward<T>(*call, stream);
    }
  });
}

}  // namespace robocache::voxels_cuda
