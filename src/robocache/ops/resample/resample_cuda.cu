#include <cuda_runtime.h>

#include "robocache/core/launch_cuda.cuh"
#include "robocache/ops/resample/resample_math.hpp"
#include "robocache/ops/resample/resample_params.hpp"

namespace robocache {
namespace {

// A block is a tile of one row's targets: a thread finds a target's samples, then all write 16-byte vectors of any
// target. Tuned on an H200.
constexpr int kThreads = 128;
constexpr int kMaxTile = kThreads;
constexpr int kVectorsPerThread = 4;  // loads in flight before the first use
constexpr int kCoarse = 1024;         // times of a row held in shared memory

template <class Work>
struct alignas(sizeof(Work) == 4 ? 16 : 8) TileEntry {
  int32_t left;
  int32_t right;
  Work weight;
  PickKind kind;
};

__device__ int32_t row_length(const ResampleParams& p, int64_t batch) {
  const auto samples = static_cast<int32_t>(p.samples);
  if (p.lengths == nullptr) return samples;
  const int64_t length = p.lengths_dtype == DType::kInt64
                             ? static_cast<const int64_t*>(p.lengths)[batch * p.lengths_batch]
                             : static_cast<const int32_t*>(p.lengths)[batch * p.lengths_batch];
  return length < 0 ? 0 : (length < samples ? static_cast<int32_t>(length) : samples);
}

template <class Clock>
__device__ PickRule<Clock> rule_of(const ResampleParams& p) {
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
  return rule;
}

// Where the last sample at or before the target lies, by every stride-th time of the row: one round trip to main memory
// for the block instead of one a bisection step. Within `stride` of the answer, and it where stride is 1.
template <class Clock>
__device__ int32_t coarse_search(const Clock* coarse, int32_t count, Clock target) {
  int32_t low = 0;
  // The same steps for every thread: `reach` halves until it covers one.
  for (int32_t reach = kCoarse / 2; reach > 0; reach /= 2) {
    if (low + reach < count && coarse[low + reach] <= target) low += reach;
  }
  return low;
}

template <class Work, class Clock>
__device__ void find_tile(const ResampleParams& p, int64_t batch, int64_t first, int32_t count, void* memory,
                          TileEntry<Work>* entries) {
  auto* const coarse = static_cast<Clock*>(memory);
  const ClockRow<Clock> row{static_cast<const Clock*>(p.times) + batch * p.times_batch, p.times_sample};
  const int32_t n = row_length(p, batch);
  const int32_t stride = (n + kCoarse - 1) / kCoarse;
  const int32_t kept = stride > 1 ? (n + stride - 1) / stride : n;
  Clock target{};
  if (threadIdx.x < count) {
    target = static_cast<const Clock*>(p.targets)[batch * p.targets_batch + (first + threadIdx.x) * p.targets_target];
  }
#pragma unroll
  for (int32_t i = 0; i < kCoarse; i += kThreads) {
    const int32_t at = i + static_cast<int32_t>(threadIdx.x);
    if (at < kept) coarse[at] = row[at * stride];
  }
  __syncthreads();
  const auto i = static_cast<int32_t>(threadIdx.x);
  if (i >= count) return;
  int32_t hint = coarse_search(coarse, kept, target);
  Pick<Work, int32_t> picked;
  if (stride <= 1) {
    picked = pick<Work>(ClockRow<Clock>{coarse, 1}, n, target, rule_of<Clock>(p), hint);
  } else {
    int32_t low = hint * stride;
    for (int32_t reach = 1 << (31 - __clz(stride - 1)); reach > 0; reach /= 2) {
      const int32_t at = low + reach;
      if (at < n && at < (hint + 1) * stride && row[at] <= target) low = at;
    }
    hint = low;
    picked = pick<Work>(row, n, target, rule_of<Clock>(p), hint);
  }
  entries[i] = {picked.left, picked.right, picked.weight, picked.kind};
  if (p.valid != nullptr) p.valid[batch * p.valid_batch + (first + i) * p.valid_target] = picked.valid;
}

template <class T, int kVector>
struct alignas(sizeof(T) * kVector) Vector {
  T x[kVector];
};

template <class T, int kVector, class Work>
__device__ Vector<T, kVector> mixed(const TileEntry<Work>& entry, const Vector<T, kVector>& a,
                                    const Vector<T, kVector>& b) {
  Vector<T, kVector> y;
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    if (entry.kind == PickKind::kAbsent) {
      y.x[e] = absent_value<T>();
    } else if constexpr (std::is_void_v<WorkType<T>>) {
      y.x[e] = a.x[e];
    } else {
      const T between = from_work<T>(lerp(to_work<Work>(a.x[e]), to_work<Work>(b.x[e]), entry.weight));
      y.x[e] = entry.kind == PickKind::kMix ? between : a.x[e];
    }
  }
  return y;
}

template <class T, int kVector>
__global__ void __launch_bounds__(kThreads) resample_kernel(const __grid_constant__ ResampleParams p, int32_t tile) {
  using Work = std::conditional_t<std::is_void_v<WorkType<T>>, float, WorkType<T>>;
  using V = Vector<T, kVector>;
  __shared__ TileEntry<Work> entries[kMaxTile];
  __shared__ double coarse[kCoarse];  // of the clock's type, which is 8 bytes at most
  const int64_t first = static_cast<int64_t>(blockIdx.x) * tile;
  const int64_t rest = p.targets_count - first;
  const auto count = static_cast<int32_t>(rest < tile ? rest : tile);
  const auto vectors = static_cast<int32_t>(p.features / kVector);
  const int32_t work = count * vectors;
  for (int64_t batch = blockIdx.y; batch < p.batch; batch += gridDim.y) {
    if (p.clock_dtype == DType::kFloat32) {
      find_tile<Work, float>(p, batch, first, count, coarse, entries);
    } else if (p.clock_dtype == DType::kFloat64) {
      find_tile<Work, double>(p, batch, first, count, coarse, entries);
    } else {
      find_tile<Work, int64_t>(p, batch, first, count, coarse, entries);
    }
    __syncthreads();

    const T* __restrict__ values = static_cast<const T*>(p.values) + batch * p.values_batch;
    T* __restrict__ out = static_cast<T*>(p.out) + batch * p.out_batch + first * p.out_target;
    for (int32_t begin = 0; begin < work; begin += kThreads * kVectorsPerThread) {
      V a[kVectorsPerThread];
      V b[kVectorsPerThread];
#pragma unroll
      for (int u = 0; u < kVectorsPerThread; ++u) {
        const int32_t at = begin + u * kThreads + static_cast<int32_t>(threadIdx.x);
        if (at >= work) continue;
        const int32_t i = at / vectors;
        const int64_t d = static_cast<int64_t>(at - i * vectors) * kVector * p.values_feature;
        const TileEntry<Work> entry = entries[i];
        if (entry.kind == PickKind::kAbsent) continue;
        a[u] = *reinterpret_cast<const V*>(values + entry.left * p.values_sample + d);
        b[u] = *reinterpret_cast<const V*>(values + entry.right * p.values_sample + d);
      }
#pragma unroll
      for (int u = 0; u < kVectorsPerThread; ++u) {
        const int32_t at = begin + u * kThreads + static_cast<int32_t>(threadIdx.x);
        if (at >= work) continue;
        const int32_t i = at / vectors;
        const int64_t d = static_cast<int64_t>(at - i * vectors) * kVector * p.out_feature;
        *reinterpret_cast<V*>(out + i * p.out_target + d) = mixed(entries[i], a[u], b[u]);
      }
    }
    __syncthreads();
  }
}

template <class T, int kVector>
cudaError_t launch(const ResampleParams& p, cudaStream_t stream) {
  // As many targets as give each thread its vectors; a tile's vectors are counted in 32 bits.
  const int64_t vectors = p.features / kVector;
  if (vectors > INT32_MAX / kMaxTile) return cudaErrorInvalidValue;
  int32_t tile = 8;
  while (tile < kMaxTile && tile * vectors < kThreads * kVectorsPerThread) tile *= 2;
  const int64_t tiles = (p.targets_count + tile - 1) / tile;
  if (tiles > INT32_MAX || p.samples > INT32_MAX) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(p.batch < 65535 ? p.batch : 65535));
  resample_kernel<T, kVector><<<grid, kThreads, 0, stream>>>(p, tile);
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
