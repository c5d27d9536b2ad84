#include <cuda_runtime.h>

#include "robocache/core/launch_cuda.cuh"
#include "robocache/ops/resample/resample_math.hpp"
#include "robocache/ops/resample/resample_params.hpp"

namespace robocache {
namespace {

// Tuned on an H200: a tile of targets per block; one target's bracket per thread, then 16-byte vectors over the tile's
// features.
constexpr int kThreads = 128;
constexpr int kMaxTile = kThreads;
constexpr int kCoarse = 512;
constexpr int kBlocksWanted = 132 * 8;  // enough that every multiprocessor holds several

struct TileEntry {
  int64_t left;  // element offsets into the row's values
  int64_t right;
  double weight;  // holds a float weight exactly
  PickKind kind;
};

__device__ int64_t row_length(const ResampleParams& p, int64_t batch) {
  if (p.lengths == nullptr) return p.samples;
  const int64_t length = p.lengths_dtype == DType::kInt64
                             ? static_cast<const int64_t*>(p.lengths)[batch * p.lengths_batch]
                             : static_cast<const int32_t*>(p.lengths)[batch * p.lengths_batch];
  return length < 0 ? 0 : (length < p.samples ? length : p.samples);
}

// Every stride-th time of a row in shared memory: one round trip to main memory instead of one a bisection step.
template <class Clock>
__device__ void load_coarse(const ResampleParams& p, int64_t batch, Clock* coarse) {
  const ClockRow<Clock> times{static_cast<const Clock*>(p.times) + batch * p.times_batch, p.times_sample};
  const int64_t n = row_length(p, batch);
  const int64_t stride = (n + kCoarse - 1) / kCoarse;
#pragma unroll
  for (int i = threadIdx.x; i < kCoarse; i += kThreads) {
    if (i * stride < n) coarse[i] = times[i * stride];
  }
}

// The row that `pick` should look at first: on an ascending clock, its answer.
template <class Clock>
__device__ int64_t search(const ClockRow<Clock>& times, int64_t n, Clock target, const Clock* coarse) {
  if (n <= 0) return 0;
  const int64_t stride = (n + kCoarse - 1) / kCoarse;
  int64_t low = -1;
  int64_t high = (n + stride - 1) / stride;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (coarse[middle] <= target) {
      low = middle;
    } else {
      high = middle;
    }
  }
  if (low < 0) return 0;
  low *= stride;
  high = low + stride < n ? low + stride : n;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (times[middle] <= target) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

template <class Work, class Clock>
__device__ void find(const ResampleParams& p, int64_t batch, int64_t target_index, const void* coarse,
                     TileEntry& entry) {
  const ClockRow<Clock> times{static_cast<const Clock*>(p.times) + batch * p.times_batch, p.times_sample};
  const Clock target = static_cast<const Clock*>(p.targets)[batch * p.targets_batch + target_index * p.targets_target];
  PickRule<Clock> rule{};
  rule.has_max_gap = p.has_max_gap;
  rule.has_tolerance = p.has_tolerance;
  if constexpr (std::is_same_v<Clock, int64_t>) {
    rule.max_gap = p.max_gap_ns;
    rule.tolerance = p.tolerance_ns;
  } else {
    rule.max_gap = static_cast<Clock>(p.max_gap);
    rule.tolerance = static_cast<Clock>(p.tolerance);
  }
  rule.method = p.method;
  rule.extrapolate = p.extrapolate;
  rule.causal = p.causal;
  const int64_t n = row_length(p, batch);
  int64_t hint = search(times, n, target, static_cast<const Clock*>(coarse));
  const Pick<Work> picked = pick<Work>(times, n, target, rule, hint);
  entry = {picked.left * p.values_sample, picked.right * p.values_sample, static_cast<double>(picked.weight),
           picked.kind};
  if (p.valid != nullptr) p.valid[batch * p.valid_batch + target_index * p.valid_target] = picked.valid;
}

template <class Work, class Clock>
__device__ void find_tile(const ResampleParams& p, int64_t batch, int64_t first, int count, void* coarse,
                          TileEntry* entries) {
  load_coarse(p, batch, static_cast<Clock*>(coarse));
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kThreads) find<Work, Clock>(p, batch, first + i, coarse, entries[i]);
}

template <class T, int kVector>
struct alignas(sizeof(T) * kVector) Vector {
  T x[kVector];
};

template <class T, int kVector>
__global__ void __launch_bounds__(kThreads)
    resample_kernel(const __grid_constant__ ResampleParams p, int tile, int64_t tiles_per_row, int64_t tiles) {
  using Work = std::conditional_t<std::is_void_v<WorkType<T>>, float, WorkType<T>>;
  __shared__ TileEntry entries[kMaxTile];
  __shared__ double coarse[kCoarse];  // of the clock's type, which is 8 bytes at most
  for (int64_t block = blockIdx.x; block < tiles; block += gridDim.x) {
    const int64_t batch = block / tiles_per_row;
    const int64_t first = (block - batch * tiles_per_row) * tile;
    const int64_t left_in_row = p.targets_count - first;
    const int count = left_in_row < tile ? static_cast<int>(left_in_row) : tile;

    if (p.clock_dtype == DType::kFloat32) {
      find_tile<Work, float>(p, batch, first, count, coarse, entries);
    } else if (p.clock_dtype == DType::kFloat64) {
      find_tile<Work, double>(p, batch, first, count, coarse, entries);
    } else {
      find_tile<Work, int64_t>(p, batch, first, count, coarse, entries);
    }
    __syncthreads();

    const T* values = static_cast<const T*>(p.values) + batch * p.values_batch;
    T* out = static_cast<T*>(p.out) + batch * p.out_batch + first * p.out_target;
    using V = Vector<T, kVector>;
    const int64_t vectors = p.features > kVector ? p.features / kVector : 1;
    const int64_t work = count * (p.features / kVector);
    // Target and feature of this thread's next vector, stepped without a division.
    int64_t i = threadIdx.x / vectors;
    int64_t v = threadIdx.x - i * vectors;
    const int64_t step_i = kThreads / vectors;
    const int64_t step_v = kThreads - step_i * vectors;
#pragma unroll 4
    for (int64_t at = threadIdx.x; at < work; at += kThreads) {
      const TileEntry entry = entries[i];
      T* const to = out + i * p.out_target + v * kVector * p.out_feature;
      V a;
      V b;
      if constexpr (kVector > 1) {
        a = *reinterpret_cast<const V*>(values + entry.left + v * kVector);
        b = *reinterpret_cast<const V*>(values + entry.right + v * kVector);
      } else if (entry.kind != PickKind::kAbsent) {
        a.x[0] = values[entry.left + v * p.values_feature];
        b.x[0] = values[entry.right + v * p.values_feature];
      }
      V result;
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        if (entry.kind == PickKind::kAbsent) {
          result.x[e] = absent_value<T>();
        } else if constexpr (std::is_void_v<WorkType<T>>) {
          result.x[e] = a.x[e];
        } else {
          const T mixed =
              from_work<T>(lerp(to_work<Work>(a.x[e]), to_work<Work>(b.x[e]), static_cast<Work>(entry.weight)));
          result.x[e] = entry.kind == PickKind::kMix ? mixed : a.x[e];
        }
      }
      *reinterpret_cast<V*>(to) = result;
      i += step_i;
      v += step_v;
      if (v >= vectors) {
        v -= vectors;
        ++i;
      }
    }
    __syncthreads();
  }
}

template <class T, int kVector>
cudaError_t launch(const ResampleParams& p, cudaStream_t stream) {
  // Tiles as large as still leave work for every multiprocessor.
  int tile = kMaxTile;
  while (tile > 8 && p.batch * ((p.targets_count + tile - 1) / tile) < kBlocksWanted) tile /= 2;
  const int64_t tiles_per_row = (p.targets_count + tile - 1) / tile;
  const int64_t tiles = p.batch * tiles_per_row;
  const auto blocks = static_cast<unsigned>(tiles < INT32_MAX ? tiles : INT32_MAX);
  resample_kernel<T, kVector><<<blocks, kThreads, 0, stream>>>(p, tile, tiles_per_row, tiles);
  return cudaGetLastError();
}

template <class T>
bool fits_vectors(const ResampleParams& p, int count) {
  const auto whole = [count](int64_t elements) { return elements % count == 0; };
  const auto aligned = [count](const void* at) { return reinterpret_cast<uintptr_t>(at) % (count * sizeof(T)) == 0; };
  return p.samples > 0 && p.values_feature == 1 && p.out_feature == 1 && whole(p.features) && whole(p.values_batch) &&
         whole(p.values_sample) && whole(p.out_batch) && whole(p.out_target) && aligned(p.values) && aligned(p.out);
}

template <class T>
cudaError_t launch_widest(const ResampleParams& p, cudaStream_t stream) {
  constexpr int kWidest = 16 / sizeof(T);
  if (p.features == 0 && p.valid == nullptr) return cudaSuccess;
  if constexpr (kWidest >= 2) {
    if (p.features > 0 && fits_vectors<T>(p, kWidest)) return launch<T, kWidest>(p, stream);
  }
  if constexpr (kWidest >= 4) {
    if (p.features > 0 && fits_vectors<T>(p, 2)) return launch<T, 2>(p, stream);
  }
  return launch<T, 1>(p, stream);
}

template <class Clock>
__global__ void check_times_kernel(const __grid_constant__ CheckTimesParams p, unsigned long long* first_bad) {
  const int64_t total = p.batch * p.samples;
  for (int64_t flat = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; flat < total;
       flat += int64_t{gridDim.x} * blockDim.x) {
    const int64_t batch = flat / p.samples;
    const int64_t i = flat - batch * p.samples;
    int64_t n = p.samples;
    if (p.lengths != nullptr) {
      n = p.lengths_dtype == DType::kInt64 ? static_cast<const int64_t*>(p.lengths)[batch * p.lengths_batch]
                                           : static_cast<const int32_t*>(p.lengths)[batch * p.lengths_batch];
    }
    if (i >= n) continue;
    const Clock* times = static_cast<const Clock*>(p.times) + batch * p.times_batch;
    const Clock t = times[i * p.times_sample];
    if (t != t || (i > 0 && t < times[(i - 1) * p.times_sample])) {
      atomicMin(first_bad, static_cast<unsigned long long>(flat));
    }
  }
}

}  // namespace
}  // namespace robocache

extern "C" __attribute__((visibility("default"))) int robocache_cuda_resample(const robocache::ResampleParams* params,
                                                                              int32_t device, void* stream_handle) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  const ResampleParams& p = *params;
  switch (p.value_dtype) {
    case DType::kFloat64:
      return launch_widest<double>(p, stream);
    case DType::kFloat32:
      return launch_widest<float>(p, stream);
    case DType::kFloat16:
      return launch_widest<Float16>(p, stream);
    case DType::kBFloat16:
      return launch_widest<BFloat16>(p, stream);
    case DType::kBool:
    case DType::kInt8:
    case DType::kUInt8:
      return launch_widest<uint8_t>(p, stream);
    case DType::kInt16:
    case DType::kUInt16:
      return launch_widest<uint16_t>(p, stream);
    case DType::kInt32:
    case DType::kUInt32:
      return launch_widest<uint32_t>(p, stream);
    default:
      return launch_widest<uint64_t>(p, stream);
  }
}

// Writes the flat index of the first bad time, or -1, and waits for it.
extern "C" __attribute__((visibility("default"))) int robocache_cuda_check_times(
    const robocache::CheckTimesParams* params, int64_t* flat, int32_t device, void* stream_handle) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  *flat = -1;
  if (params->batch * params->samples == 0) return cudaSuccess;
  unsigned long long* found = nullptr;
  cudaError_t code = cudaMallocAsync(&found, sizeof(*found), stream);
  if (code != cudaSuccess) return code;
  code = cudaMemsetAsync(found, 0xff, sizeof(*found), stream);
  if (code == cudaSuccess) {
    const int64_t blocks = (params->batch * params->samples + 255) / 256;
    const auto grid = static_cast<unsigned>(blocks < 4096 ? blocks : 4096);
    if (params->clock_dtype == DType::kFloat32) {
      check_times_kernel<float><<<grid, 256, 0, stream>>>(*params, found);
    } else if (params->clock_dtype == DType::kFloat64) {
      check_times_kernel<double><<<grid, 256, 0, stream>>>(*params, found);
    } else {
      check_times_kernel<int64_t><<<grid, 256, 0, stream>>>(*params, found);
    }
    code = cudaGetLastError();
  }
  if (code == cudaSuccess) code = cudaMemcpyAsync(flat, found, sizeof(*found), cudaMemcpyDeviceToHost, stream);
  if (code == cudaSuccess) code = cudaStreamSynchronize(stream);
  const cudaError_t freed = cudaFreeAsync(found, stream);
  return code != cudaSuccess ? code : freed;
}
