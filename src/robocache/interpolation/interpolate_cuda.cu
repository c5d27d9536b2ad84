#include <cuda_runtime.h>

#include "robocache/core/launch_cuda.cuh"
#include "robocache/ops/resample/resample_params.hpp"

namespace robocache {
namespace {

// A block is a tile of one row's targets: a thread finds a target's samples, then all write 16-byte vectors of any
// target. Tuned on an H200.
constexpr int kThreads = 256;
constexpr int kMaxTile = kThreads;
constexpr int kVectorsPerThread = 2;  // pairs of loads in flight before the first use
constexpr int kCoarse = kThreads;     // times of a row in shared memory, one a thread
constexpr int64_t kBlocksWanted = 132 * 3;

template <class Work>
struct alignas(16) TileEntry {
  int64_t left;  // element offsets into the row's values
  int64_t right;
  Work weight;
  PickKind kind;
};

__device__ int32_t row_length(const ResampleParams& p, int64_t batch) {
  const int64_t length = length_at(p.lengths, p.lengths_dtype, batch * p.lengths_batch, p.samples);
  return static_cast<int32_t>(length < 0 ? 0 : (length < p.samples ? length : p.samples));
}

// A clock of stride 1: a multiplication less on every access.
template <class Clock>
struct DenseRow {
  const Clock* data;

  __device__ Clock operator[](int32_t i) const { return data[i]; }
};

// The row that `pick` should look at first: on an ascending clock, its answer. Bisection waits for memory at every step,
// so its first steps go over `coarse`, every stride-th time of the row, fetched by the whole block at once.
template <class Row, class Clock>
__device__ int32_t search(const Row& row, int32_t n, int32_t stride, const Clock* coarse, Clock target) {
  const int32_t kept = (n + stride - 1) / stride;
  int32_t low = 0;
#pragma unroll
  for (int32_t reach = kCoarse / 2; reach > 0; reach /= 2) {
    if (low + reach < kept && coarse[low + reach] <= target) low += reach;
  }
  low *= stride;
  int32_t high = low + stride < n ? low + stride : n;
  // Then seven probes at once: a round trip for three bisection steps.
  while (high - low > 1) {
    const int32_t step = (high - low + 7) / 8;
    int32_t passed = 0;
#pragma unroll
    for (int32_t k = 1; k < 8; ++k) {
      const int32_t at = low + k * step;
      passed += at < high && row[at < high ? at : low] <= target;
    }
    low += passed * step;
    high = low + step < high ? low + step : high;
  }
  return low;
}

template <class Work, class Clock, class Row>
__device__ void find_in(const ResampleParams& p, const Row& row, int64_t batch, int64_t first, int32_t count,
                        Clock* coarse, TileEntry<Work>* entries) {
  const auto i = static_cast<int32_t>(threadIdx.x);
  const int32_t n = row_length(p, batch);
  const int32_t stride = n > kCoarse ? (n + kCoarse - 1) / kCoarse : 1;
  const int64_t target_index = first + (i < count ? i : count - 1);
  const Clock target = static_cast<const Clock*>(p.targets)[batch * p.targets_batch + target_index * p.targets_target];
  if (i * stride < n) coarse[i] = row[i * stride];
  __syncthreads();
  if (i >= count) return;
  const int32_t low = n > 0 ? search(row, n, stride, coarse, target) : 0;
  // Between two samples and nothing asked for but linear: what nearly every target is. All else by the general rule.
  Pick<Work, int32_t> picked;
  bool common = n >= 2 && p.method == InterpolationMethod::kLinear && !p.causal && !p.has_max_gap;
  if (common) {
    const int32_t left = low < n - 2 ? low : n - 2;
    const Clock before = row[left];
    const Clock after = row[left + 1];
    const Clock beyond = row[left + 2 < n ? left + 2 : left + 1];
    common = before < target && target < after && (left + 2 >= n || after < beyond);
    picked = {left, left + 1,
              weight_of<Clock, Work>(later_minus_earlier(target, before), later_minus_earlier(after, before)),
              PickKind::kMix, true};
  }
  if (!common) {
    int32_t hint = low;
    picked = pick<Work>(row, n, target, rule_of<Clock>(p), hint);
  }
  entries[i] = {picked.left * p.values_sample, picked.right * p.values_sample, picked.weight, picked.kind};
  if (p.valid != nullptr) p.valid[batch * p.valid_batch + target_index * p.valid_target] = picked.valid;
}

// Called by the whole block.
template <class Work, class Clock>
__device__ void find(const ResampleParams& p, int64_t batch, int64_t first, int32_t count, void* coarse,
                     TileEntry<Work>* entries) {
  const Clock* times = static_cast<const Clock*>(p.times) + batch * p.times_batch;
  if (p.times_sample == 1) {
    find_in(p, DenseRow<Clock>{times}, batch, first, count, static_cast<Clock*>(coarse), entries);
  } else {
    find_in(p, ClockRow<Clock>{times, p.times_sample}, batch, first, count, static_cast<Clock*>(coarse), entries);
  }
}

template <class T, int kVector>
struct alignas(sizeof(T) * kVector) Vector {
  T x[kVector];
};

template <class T>
__device__ void round_pair(float low, float high, T* out) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    uint32_t packed;  // one instruction for two values
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    *reinterpret_cast<uint32_t*>(out) = packed;
  } else if constexpr (std::is_same_v<T, Float16>) {
    uint32_t packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    *reinterpret_cast<uint32_t*>(out) = packed;
  }
}

template <class T, int kVector, class Work>
__device__ Vector<T, kVector> mixed(const TileEntry<Work>& entry, const Vector<T, kVector>& a,
                                    const Vector<T, kVector>& b) {
  Vector<T, kVector> y;
  if (entry.kind == PickKind::kOne) return a;
  if constexpr (kVector % 2 == 0 && sizeof(T) == 2 && !std::is_void_v<WorkType<T>>) {
    if (entry.kind == PickKind::kMix) {
#pragma unroll
      for (int e = 0; e < kVector; e += 2) {
        round_pair<T>(lerp(to_float(a.x[e]), to_float(b.x[e]), entry.weight),
                      lerp(to_float(a.x[e + 1]), to_float(b.x[e + 1]), entry.weight), y.x + e);
      }
      return y;
    }
  }
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    if constexpr (std::is_void_v<WorkType<T>>) {
      y.x[e] = absent_value<T>();
    } else {
      const T between = from_work<T>(lerp(to_work<Work>(a.x[e]), to_work<Work>(b.x[e]), entry.weight));
      y.x[e] = entry.kind == PickKind::kMix ? between : absent_value<T>();
    }
  }
  return y;
}

template <class T, int kVector>
__global__ void __launch_bounds__(kThreads, 4)
    resample_kernel(const __grid_constant__ ResampleParams p, int32_t tile, uint32_t tiles_per_row, int64_t tiles) {
  using Work = std::conditional_t<std::is_void_v<WorkType<T>>, float, WorkType<T>>;
  using V = Vector<T, kVector>;
  __shared__ TileEntry<Work> entries[kMaxTile];
  __shared__ double coarse[kCoarse];  // of the clock's type, which is 8 bytes at most
  const auto vectors = static_cast<int32_t>(p.features / kVector);
  const int32_t step_i = vectors > 0 ? kThreads / vectors : 0;
  const int32_t step_v = kThreads - step_i * vectors;
  for (int64_t block = blockIdx.x; block < tiles; block += gridDim.x) {
    // gridDim.x is below 2^31, so but for the largest calls this is a division of 32 bits.
    const int64_t batch = tiles <= INT32_MAX ? static_cast<uint32_t>(block) / tiles_per_row : block / tiles_per_row;
    const int64_t first = (block - batch * tiles_per_row) * tile;
    const auto count = static_cast<int32_t>(p.targets_count - first < tile ? p.targets_count - first : tile);
    if (p.clock_dtype == DType::kFloat32) {
      find<Work, float>(p, batch, first, count, coarse, entries);
    } else if (p.clock_dtype == DType::kFloat64) {
      find<Work, double>(p, batch, first, count, coarse, entries);
    } else {
      find<Work, int64_t>(p, batch, first, count, coarse, entries);
    }
    __syncthreads();

    const T* __restrict__ values = static_cast<const T*>(p.values) + batch * p.values_batch;
    T* const out = static_cast<T*>(p.out) + batch * p.out_batch + first * p.out_target;
    // Target and vector of this thread, stepped without a division.
    int32_t i = vectors > 0 ? static_cast<int32_t>(threadIdx.x) / vectors : count;
    int32_t v = static_cast<int32_t>(threadIdx.x) - i * vectors;
    while (i < count) {
      V a[kVectorsPerThread];
      V b[kVectorsPerThread];
      int32_t of[kVectorsPerThread];
      int32_t at[kVectorsPerThread];
#pragma unroll
      for (int u = 0; u < kVectorsPerThread; ++u) {
        of[u] = i;
        at[u] = v;
        if (i < count) {
          const int64_t d = static_cast<int64_t>(v) * kVector * p.values_feature;
          if (entries[i].kind != PickKind::kAbsent) {
            a[u] = *reinterpret_cast<const V*>(values + entries[i].left + d);
            b[u] = *reinterpret_cast<const V*>(values + entries[i].right + d);
          }
        }
        i += step_i;
        v += step_v;
        if (v >= vectors) {
          v -= vectors;
          ++i;
        }
      }
#pragma unroll
      for (int u = 0; u < kVectorsPerThread; ++u) {
        if (of[u] >= count) continue;
        T* const to = out + of[u] * p.out_target + static_cast<int64_t>(at[u]) * kVector * p.out_feature;
        *reinterpret_cast<V*>(to) = mixed(entries[of[u]], a[u], b[u]);
      }
    }
    __syncthreads();
  }
}

template <class T, int kVector>
cudaError_t launch(const ResampleParams& p, cudaStream_t stream) {
  // Smaller tiles until every multiprocessor has several, but not so small that threads have nothing to copy.
  const int64_t vectors = p.features / kVector;
  int32_t tile = kMaxTile;
  const auto blocks_of = [&](int32_t size) { return p.batch * ((p.targets_count + size - 1) / size); };
  while (tile > 8 && blocks_of(tile) < kBlocksWanted && tile / 2 * vectors >= kThreads * 2) tile /= 2;
  const int64_t tiles_per_row = (p.targets_count + tile - 1) / tile;
  if (tiles_per_row > INT32_MAX) return cudaErrorInvalidValue;
  const int64_t tiles = p.batch * tiles_per_row;
  const auto blocks = static_cast<unsigned>(tiles < INT32_MAX ? tiles : INT32_MAX);
  resample_kernel<T, kVector><<<blocks, kThreads, 0, stream>>>(p, tile, static_cast<uint32_t>(tiles_per_row), tiles);
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
