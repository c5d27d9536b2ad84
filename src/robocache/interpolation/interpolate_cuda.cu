#include <cuda_runtime.h>

#include <algorithm>

#include "robocache/core/launch_cuda.cuh"
#include "robocache/interpolation/interpolate_cuda.cuh"

namespace robocache {
namespace {

// A block is a tile of one row's targets. It expects their samples where they would be if both clocks ran evenly, and
// copies that window of the row's clock to shared memory; each thread finds a target's samples there, or in the row itself
// where the window missed them; then all write vectors of any target. So a value waits for two trips to memory. For most
// calls the kernel is over before its instructions have all been fetched: what is rare stands apart. Tuned on an H200.
constexpr int kThreads = 256;
constexpr int kMaxTile = kThreads;
constexpr int kTimesPerThread = 4;    // of the window
constexpr int32_t kMostTimes = kThreads * kTimesPerThread;
constexpr int64_t kBlocksWanted = 132 * 3;
constexpr int64_t kMostVectors = kThreads * 8;  // of a tile: blocks of even length end together
constexpr int64_t kMargin = 32;  // samples that a window reaches beyond the even place, and 1/32 of the row

template <class Work>
struct alignas(16) TileEntry {
  int32_t left;  // samples of the row
  int32_t right;
  Work weight;
  int32_t kind;  // of PickKind; 32 bits wide, so that a float entry is one load
};

// A call as the kernel gets it.
struct TiledCall {
  const void* targets;
  int64_t targets_batch, targets_target;
  int64_t targets_count;
  int64_t batch;
  int32_t tile;    // targets
  int32_t times;   // of the window
  int32_t margin;  // of those, before the even place of the tile's first target
  float samples_per_target;
  int32_t vectors;  // of a row
  int32_t width;    // threads side by side on a row
  int32_t groups;   // of so many threads, each on a row of its own
  int32_t value_sample, value_vector;  // strides in bytes
  int32_t out_target, out_vector;
  bool only_mix;  // linear and nothing else asked for: a target between two samples is their mixture
  Segment segment;
};

template <class Clock>
__device__ Clock latest() {
  if constexpr (std::is_same_v<Clock, int64_t>) {
    return INT64_MAX;
  } else {
    return static_cast<Clock>(__builtin_huge_val());
  }
}

// The last of kMostTimes ascending times at or before `target`, or 0. Few instructions: the steps are constants.
template <class Clock>
__device__ int32_t search(const Clock* times, Clock target) {
  int32_t low = 0;
#pragma unroll
  for (int32_t step = kMostTimes / 2; step > 0; step /= 2) {
    if (times[low + step] <= target) low += step;
  }
  return low;
}

// By the general rule, on the row itself. Seven probes at once: a trip to memory for three steps of bisection.
template <class Work, class Clock>
__device__ __noinline__ Pick<Work, int32_t> pick_from_row(const Segment& s, const Clock* row, int32_t n, Clock target) {
  int32_t low = 0;
  int32_t high = n;
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
  return pick<Work>(ClockRow<Clock>{row, 1}, n, target, rule_of<Clock>(s), low);
}

// Nearly always the target's samples lie inside the window and it is their mixture or a hit.
template <class Work, class Clock>
__device__ Pick<Work, int32_t> pick_from_window(const TiledCall& call, const Clock* row, int32_t n, const Clock* window,
                                                int32_t begin, int32_t size, Clock target) {
  if (size >= 2) {
    const int32_t found = search(window, target);
    const int32_t low = found < size ? found : size - 1;
    const Clock before = window[low];
    const bool last = begin + low + 1 == n;
    if (before == target && (last || low + 1 < size)) return pick_one<Work>(begin + low, true);
    if (call.only_mix && low + 1 < size) {
      const Clock after = window[low + 1];
      const bool single = low + 2 < size ? after < window[low + 2] : begin + low + 2 == n;
      if (before < target && target < after && single) {
        return {begin + low, begin + low + 1,
                weight_of<Clock, Work>(later_minus_earlier(target, before), later_minus_earlier(after, before)),
                PickKind::kMix, true};
      }
    }
  }
  return pick_from_row<Work>(call.segment, row, n, target);
}

// By the whole block: fills the tile's entries.
template <class Work, class Clock>
__device__ void find(const TiledCall& call, int64_t batch, int64_t first, int32_t count, Clock* window,
                     TileEntry<Work>* entries) {
  const Segment& s = call.segment;
  const auto i = static_cast<int32_t>(threadIdx.x);
  const auto n = static_cast<int32_t>(row_length(s, batch));
  const Clock* const row = static_cast<const Clock*>(s.times) + batch * s.times_batch;
  int32_t begin = 0;
  int32_t size = call.times;
  if (size < n) {
    const auto even = static_cast<int32_t>(static_cast<float>(first) * call.samples_per_target) - call.margin;
    begin = even < 0 ? 0 : (even < n - size ? even : n - size);
  } else {
    size = n;
  }
  Clock target{};
  if (i < count) {
    target = static_cast<const Clock*>(call.targets)[batch * call.targets_batch + (first + i) * call.targets_target];
  }
  Clock kept[kTimesPerThread];
#pragma unroll
  for (int u = 0; u < kTimesPerThread; ++u) {
    const int32_t at = i + u * kThreads;
    kept[u] = at < size ? row[begin + at] : latest<Clock>();
  }
#pragma unroll
  for (int u = 0; u < kTimesPerThread; ++u) window[i + u * kThreads] = kept[u];
  __syncthreads();
  if (i < count) {
    const Pick<Work, int32_t> picked = pick_from_window<Work>(call, row, n, window, begin, size, target);
    entries[i] = {picked.left, picked.right, picked.weight, static_cast<int32_t>(picked.kind)};
    if (s.valid != nullptr) s.valid[batch * s.valid_batch + (first + i) * s.valid_target] = picked.valid;
  }
  __syncthreads();
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
  if (entry.kind == static_cast<int32_t>(PickKind::kOne)) return a;
  if constexpr (kVector % 2 == 0 && sizeof(T) == 2 && !std::is_void_v<WorkType<T>>) {
    if (entry.kind == static_cast<int32_t>(PickKind::kMix)) {
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
      y.x[e] = entry.kind == static_cast<int32_t>(PickKind::kMix) ? between : absent_value<T>();
    }
  }
  return y;
}

// `at` + index * stride bytes: one instruction.
template <class V>
__device__ V* stepped(V* at, int32_t index, int32_t stride_bytes) {
  return reinterpret_cast<V*>(reinterpret_cast<uintptr_t>(at) +
                              static_cast<uintptr_t>(int64_t{index} * int64_t{stride_bytes}));
}

// The tile's targets. A thread keeps its place in the rows and goes from target to target, `groups` of them abreast.
template <class T, int kVector, class Work>
__device__ void write_tile(const TiledCall& call, const T* values, const TileEntry<Work>* entries, int32_t count,
                           T* out) {
  using V = Vector<T, kVector>;
  constexpr int kAtOnce = sizeof(V) == 16 ? 4 : 8;  // pairs of loads in flight before the first use
  const auto group = static_cast<int32_t>(threadIdx.x / static_cast<uint32_t>(call.width));
  const int32_t first = static_cast<int32_t>(threadIdx.x) - group * call.width;
  if (group >= call.groups) return;
  for (int32_t v = first; v < call.vectors; v += call.width) {
    const auto* const from = reinterpret_cast<const V*>(stepped(values, v, call.value_vector));
    auto* const to = reinterpret_cast<V*>(stepped(out, v, call.out_vector));
    for (int32_t i = group; i < count; i += kAtOnce * call.groups) {
      V a[kAtOnce];
      V b[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int32_t at = i + u * call.groups;
        if (at < count && entries[at].kind != static_cast<int32_t>(PickKind::kAbsent)) {
          a[u] = *stepped(from, entries[at].left, call.value_sample);
          b[u] = *stepped(from, entries[at].right, call.value_sample);
        }
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int32_t at = i + u * call.groups;
        if (at < count) *stepped(to, at, call.out_target) = mixed(entries[at], a[u], b[u]);
      }
    }
  }
}

template <class T, int kVector, class Clock>
__global__ void __launch_bounds__(kThreads, 4) tile_kernel(const __grid_constant__ TiledCall call) {
  using Work = std::conditional_t<std::is_void_v<WorkType<T>>, float, WorkType<T>>;
  __shared__ TileEntry<Work> entries[kMaxTile];
  __shared__ Clock window[kMostTimes];
  const Segment& s = call.segment;
  const int64_t first = int64_t{blockIdx.x} * call.tile;
  const auto count = static_cast<int32_t>(call.targets_count - first < call.tile ? call.targets_count - first : call.tile);
  wait_for_work_before();
  for (int64_t batch = blockIdx.y; batch < call.batch; batch += gridDim.y) {
    find(call, batch, first, count, window, entries);
    write_tile<T, kVector>(call, static_cast<const T*>(s.values) + batch * s.values_batch, entries, count,
                           static_cast<T*>(s.out) + batch * s.out_batch + first * s.out_target);
    __syncthreads();
  }
}

// Threads side by side on a row of so many vectors: a divisor of the row in passes, so that few stay idle.
int32_t width_of(int64_t vectors) {
  if (vectors <= kThreads / 4) return static_cast<int32_t>(std::max<int64_t>(1, vectors));
  int32_t best = 1;
  double best_busy = 0;
  for (int32_t width = kThreads / 8; width <= kThreads; ++width) {
    const int64_t passes = (vectors + width - 1) / width;
    const double busy = static_cast<double>(vectors * (kThreads / width)) / static_cast<double>(passes * kThreads);
    if (busy < best_busy) continue;
    best = width;
    best_busy = busy;
  }
  return best;
}

template <class T, int kVector, class Clock>
cudaError_t launch(const Interpolation& call, const Segment& s, cudaStream_t stream) {
  const int64_t vectors = s.features / kVector;
  TiledCall tiled{};
  tiled.vectors = static_cast<int32_t>(vectors);
  tiled.width = width_of(vectors);
  tiled.groups = kThreads / tiled.width;
  constexpr int64_t kSize = sizeof(T);
  tiled.value_sample = static_cast<int32_t>(s.values_sample * kSize);
  tiled.value_vector = static_cast<int32_t>(s.values_feature * kVector * kSize);
  tiled.out_target = static_cast<int32_t>(s.out_target * kSize);
  tiled.out_vector = static_cast<int32_t>(s.out_feature * kVector * kSize);
  tiled.targets = call.targets;
  tiled.targets_batch = call.targets_batch;
  tiled.targets_target = call.targets_target;
  tiled.targets_count = call.targets_count;
  tiled.batch = call.batch;
  tiled.segment = s;
  tiled.only_mix = s.method == InterpolationMethod::kLinear && !s.causal && !s.has_max_gap;
  tiled.samples_per_target = static_cast<float>(s.samples) / static_cast<float>(call.targets_count);
  const int64_t margin = kMargin + s.samples / 32;
  const auto times = [&](int64_t tile) {
    return std::min(s.samples, static_cast<int64_t>(static_cast<float>(tile) * tiled.samples_per_target) + 2 * margin);
  };
  // Smaller tiles until a window fits and every multiprocessor has several, but not so small that threads have nothing
  // to copy.
  int64_t tile = kMaxTile;
  const auto blocks_of = [&](int64_t size) { return call.batch * ((call.targets_count + size - 1) / size); };
  const bool wide = kVector * sizeof(T) == 16;
  while (tile > 8 && ((blocks_of(tile) < kBlocksWanted && tile / 2 * vectors >= kThreads * 2) ||
                      (wide && tile * vectors > kMostVectors) || times(tile) > kMostTimes)) {
    tile /= 2;
  }
  // A window that does not fit is none: every target is then looked up in the row itself.
  tiled.times = times(tile) <= kMostTimes ? static_cast<int32_t>(times(tile)) : 0;
  tiled.margin = static_cast<int32_t>(margin);
  tiled.tile = static_cast<int32_t>(tile);
  const int64_t tiles = (call.targets_count + tile - 1) / tile;
  if (tiles > INT32_MAX) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(std::min<int64_t>(call.batch, 65535)));
  return launch_overlapped(tile_kernel<T, kVector, Clock>, grid, kThreads, 0, stream, tiled);
}

template <class T, int kVector>
cudaError_t launch_of_clock(const Interpolation& call, const Segment& s, cudaStream_t stream) {
  switch (s.clock_dtype) {
    case DType::kFloat32:
      return launch<T, kVector, float>(call, s, stream);
    case DType::kFloat64:
      return launch<T, kVector, double>(call, s, stream);
    default:
      return launch<T, kVector, int64_t>(call, s, stream);
  }
}

template <class T>
bool fits_vectors(const Segment& s, int count) {
  const auto whole = [count](int64_t elements) { return elements % count == 0; };
  const auto aligned = [count](const void* at) { return reinterpret_cast<uintptr_t>(at) % (count * sizeof(T)) == 0; };
  return s.samples > 0 && s.values_feature == 1 && s.out_feature == 1 && whole(s.features) && whole(s.values_batch) &&
         whole(s.values_sample) && whole(s.out_batch) && whole(s.out_target) && aligned(s.values) && aligned(s.out);
}

template <class T>
cudaError_t launch_widest(const Interpolation& call, const Segment& s, cudaStream_t stream) {
  constexpr int kWidest = 16 / sizeof(T);
  if (s.features == 0 && s.valid == nullptr) return cudaSuccess;
  if constexpr (kWidest >= 2) {
    if (s.features > 0 && fits_vectors<T>(s, kWidest)) return launch_of_clock<T, kWidest>(call, s, stream);
  }
  if constexpr (kWidest >= 4) {
    if (s.features > 0 && fits_vectors<T>(s, 2)) return launch_of_clock<T, 2>(call, s, stream);
  }
  return launch_of_clock<T, 1>(call, s, stream);
}

cudaError_t launch_of_dtype(const Interpolation& call, const Segment& s, cudaStream_t stream) {
  switch (s.value_dtype) {
    case DType::kFloat64:
      return launch_widest<double>(call, s, stream);
    case DType::kFloat32:
      return launch_widest<float>(call, s, stream);
    case DType::kFloat16:
      return launch_widest<Float16>(call, s, stream);
    case DType::kBFloat16:
      return launch_widest<BFloat16>(call, s, stream);
    case DType::kBool:
    case DType::kInt8:
    case DType::kUInt8:
      return launch_widest<uint8_t>(call, s, stream);
    case DType::kInt16:
    case DType::kUInt16:
      return launch_widest<uint16_t>(call, s, stream);
    case DType::kInt32:
    case DType::kUInt32:
      return launch_widest<uint32_t>(call, s, stream);
    default:
      return launch_widest<uint64_t>(call, s, stream);
  }
}

// What the kernel above is for: one segment as resample asks for it, by the line or a step.
bool is_plain(const Interpolation& call) {
  const Segment& s = call.segments[0];
  return call.segment_count == 1 && (s.method == InterpolationMethod::kLinear || is_step(s.method)) &&
         s.value_dtype == s.out_dtype && !s.scaled && s.age == nullptr && s.offset == 0 && s.offset_ns == 0 &&
         s.clock_dtype == call.target_dtype && call.target_lengths == nullptr && (s.times_sample == 1 || s.samples <= 1);
}

}  // namespace
}  // namespace robocache

extern "C" __attribute__((visibility("default"))) int robocache_cuda_interpolate(
    const robocache::Interpolation* call, int32_t device, void* stream) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  if (!is_plain(*call)) return launch_any(*call, static_cast<cudaStream_t>(stream));
  return launch_of_dtype(*call, call->segments[0], static_cast<cudaStream_t>(stream));
}
