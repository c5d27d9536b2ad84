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
constexpr int kTimesPerThread = 4;  // of the window
static_assert(kMostTimes == kThreads * kTimesPerThread);
constexpr int64_t kBlocksAtOnce = 132 * 4;
constexpr int64_t kMostWork = kThreads * 8;  // of a tile, in vectors of 16 bytes: blocks of even length end together
constexpr int64_t kLeastWork = kThreads * 2;
constexpr int32_t kMostTiledCalls = 8;  // segments of a call

template <class Work>
struct alignas(16) TileEntry {
  int32_t left;  // samples of the row
  int32_t right;
  Work weight;
  int32_t kind;  // of PickKind; 32 bits wide, so that a float entry is one load
};

// A segment as the kernel gets it: what every block reads stands together.
struct TiledCall {
  const void* targets;
  const void* times;
  const void* values;
  void* out;
  const void* lengths;
  bool* valid;
  int64_t targets_batch, targets_target, times_batch, values_batch, out_batch;
  int64_t targets_count;
  int64_t batch;
  int32_t samples;
  uint32_t blocks;
  int32_t tiles;
  int32_t tile;                        // targets
  int32_t rows;                        // of a block: of short rows it takes several, which lie one after the other
  int32_t log2_span;                   // room for the clock of a row
  int32_t window;                      // samples
  int32_t margin;                      // of those, before the even place of the tile's first target
  int32_t vectors;                     // of a row
  int32_t width;                       // threads side by side on a row
  int32_t groups;                      // of so many threads, each on a row of its own
  int32_t value_sample, value_vector;  // strides in bytes
  int32_t out_target, out_vector;
  float samples_per_target;
  bool only_mix;  // linear and nothing else asked for: a target between two samples is their mixture
  Segment segment;
};

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
    const int32_t found = search(window, 1 << call.log2_span, target);
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
  const auto i = static_cast<int32_t>(threadIdx.x);
  const int32_t n = call.lengths == nullptr ? call.samples : static_cast<int32_t>(row_length(call.segment, batch));
  const Clock* const times = static_cast<const Clock*>(call.times) + batch * call.times_batch;
  int32_t begin = 0;
  int32_t size = call.window;
  if (size < n) {
    const auto even = static_cast<int32_t>(static_cast<float>(first) * call.samples_per_target) - call.margin;
    begin = even < 0 ? 0 : (even < n - size ? even : n - size);
  } else {
    size = n;
  }
  // The thread's row, of the block's, and its target in it.
  const int32_t r = call.rows > 1 ? static_cast<int32_t>(threadIdx.x / static_cast<uint32_t>(call.tile)) : 0;
  const int64_t index = first + (i - r * call.tile);
  Clock target{};
  if (i < count) {
    target = static_cast<const Clock*>(call.targets)[(batch + r) * call.targets_batch + index * call.targets_target];
  }
  Clock kept[kTimesPerThread];
#pragma unroll
  for (int u = 0; u < kTimesPerThread; ++u) {
    const int32_t of_row = (i + u * kThreads) >> call.log2_span;
    const int32_t at = (i + u * kThreads) & ((1 << call.log2_span) - 1);
    const bool exists = at < size && of_row < call.rows && batch + of_row < call.batch;
    kept[u] = exists ? times[of_row * call.times_batch + begin + at] : latest<Clock>();
  }
#pragma unroll
  for (int u = 0; u < kTimesPerThread; ++u) window[i + u * kThreads] = kept[u];
  __syncthreads();
  if (i < count) {
    const Pick<Work, int32_t> picked = pick_from_window<Work>(call, times + r * call.times_batch, n,
                                                              window + (r << call.log2_span), begin, size, target);
    const int32_t row = r * call.samples;
    entries[i] = {row + picked.left, row + picked.right, picked.weight, static_cast<int32_t>(picked.kind)};
    if (call.valid != nullptr) {
      call.valid[(batch + r) * call.segment.valid_batch + index * call.segment.valid_target] = picked.valid;
    }
  }
  __syncthreads();
}

template <class T, int kVector, class Work>
__device__ Vector<T, kVector> mixed(const TileEntry<Work>& entry, const Vector<T, kVector>& a,
                                    const Vector<T, kVector>& b) {
  Vector<T, kVector> y;
  if (entry.kind == static_cast<int32_t>(PickKind::kOne)) return a;
  if constexpr (kVector % 2 == 0 && sizeof(T) == 2) {
    if (entry.kind == static_cast<int32_t>(PickKind::kMix)) {
#pragma unroll
      for (int e = 0; e < kVector; e += 2) {
        const float low = lerp(to_float(a.x[e]), to_float(b.x[e]), entry.weight);
        const float high = lerp(to_float(a.x[e + 1]), to_float(b.x[e + 1]), entry.weight);
        *reinterpret_cast<uint32_t*>(y.x + e) = packed_pair(low, high, T{});
      }
      return y;
    }
  }
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    const T between = from_work<T>(lerp(to_work<Work>(a.x[e]), to_work<Work>(b.x[e]), entry.weight));
    y.x[e] = entry.kind == static_cast<int32_t>(PickKind::kMix) ? between : absent_value<T>();
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

template <class T, class Clock>
struct TileMemory {
  using Work = WorkType<T>;
  TileEntry<Work> entries[kMaxTile];
  Clock window[kMostTimes];
};

// A tile of the rows from `batch` on, as many as a block takes.
template <class T, int kVector, class Clock>
__device__ void run_tile(const TiledCall& call, int32_t tile, int64_t batch, TileMemory<T, Clock>& memory) {
  const int64_t first = int64_t{tile} * call.tile;
  const int64_t left = call.rows > 1 ? (call.batch - batch) * call.tile : call.targets_count - first;
  const int32_t most = call.rows * call.tile;
  const auto count = static_cast<int32_t>(left < most ? left : most);
  find(call, batch, first, count, memory.window, memory.entries);
  const T* const values = static_cast<const T*>(call.values) + batch * call.values_batch;
  T* const out = static_cast<T*>(call.out) + batch * call.out_batch;
  write_tile<T, kVector>(call, values, memory.entries, count,
                         stepped(out, static_cast<int32_t>(first), call.out_target));
}

template <class T, int kVector, class Clock>
__global__ void __launch_bounds__(kThreads, 4) tile_kernel(const __grid_constant__ TiledCall call) {
  __shared__ TileMemory<T, Clock> memory;
  wait_for_work_before();
  for (int64_t batch = int64_t{blockIdx.y} * call.rows; batch < call.batch; batch += int64_t{gridDim.y} * call.rows) {
    run_tile<T, kVector>(call, static_cast<int32_t>(blockIdx.x), batch, memory);
    __syncthreads();
  }
}

// Segments side by side in one launch, each with blocks of its own.
struct TiledCalls {
  TiledCall calls[kMostTiledCalls];
};

template <class T, int kVector, class Clock>
__global__ void __launch_bounds__(kThreads, 4) tiles_kernel(const __grid_constant__ TiledCalls all) {
  __shared__ TileMemory<T, Clock> memory;
  wait_for_work_before();
  uint32_t block = blockIdx.x;
  int32_t i = 0;
  while (block >= all.calls[i].blocks) block -= all.calls[i++].blocks;
  const TiledCall& call = all.calls[i];
  const uint32_t row = block / static_cast<uint32_t>(call.tiles);
  run_tile<T, kVector>(call, static_cast<int32_t>(block - row * call.tiles), int64_t{row} * call.rows, memory);
}

// Threads side by side on a row of so many vectors: the row in a few passes, so that few threads stay idle.
int32_t width_of(int64_t vectors) {
  int64_t best = std::min<int64_t>(std::max<int64_t>(vectors, 1), kThreads);
  if (best <= kThreads / 4) return static_cast<int32_t>(best);
  double best_busy = 0;
  for (int64_t passes = (vectors + kThreads - 1) / kThreads, last = passes + 4; passes <= last; ++passes) {
    const int64_t width = (vectors + passes - 1) / passes;
    const double busy = static_cast<double>(vectors * (kThreads / width)) / static_cast<double>(passes * kThreads);
    if (busy <= best_busy) continue;
    best = width;
    best_busy = busy;
  }
  return static_cast<int32_t>(best);
}

// The widest vector, in bytes, that rows and output of a segment are made of.
int32_t vector_bytes_of(const Interpolation& call, const Segment& s) {
  const int64_t size = dtype_size(s.value_dtype);
  if (s.values_feature != 1 || s.out_feature != 1) return static_cast<int32_t>(size);
  const int64_t rows =
      s.features | s.values_sample | s.out_target | (call.batch > 1 ? s.values_batch | s.out_batch : 0);
  const auto all =
      static_cast<uint64_t>(rows * size) | reinterpret_cast<uintptr_t>(s.values) | reinterpret_cast<uintptr_t>(s.out);
  for (int32_t bytes = 16; bytes > size; bytes /= 2) {
    if (all % static_cast<uint64_t>(bytes) == 0) return bytes;
  }
  return static_cast<int32_t>(size);
}

// What these kernels do: floating values as they are, by linear or a step, both clocks of one type, strides that one
// instruction multiplies.
bool is_tiled(const Interpolation& call, const Segment& s) {
  const int64_t size = dtype_size(s.value_dtype);
  const auto small = [size](int64_t stride) { return stride >= -(int64_t{1} << 26) && stride <= int64_t{1} << 26; };
  return (s.method == InterpolationMethod::kLinear || is_step(s.method)) && is_floating(s.value_dtype) &&
         s.value_dtype == s.out_dtype && !s.scaled && s.clock_dtype == call.target_dtype && s.offset == 0 &&
         s.offset_ns == 0 && s.age == nullptr && call.target_lengths == nullptr && s.samples > 0 && s.features > 0 &&
         s.times_sample == 1 && small(s.values_sample) && small(s.values_feature) && small(s.out_target) &&
         small(s.out_feature);
}

// What a target's features cost to copy, in vectors of 16 bytes.
int64_t work_of(const Segment& s) { return std::max<int64_t>(1, s.features * dtype_size(s.value_dtype) / 16); }

// `blocks`: of how many the segment may consist to run at once.
TiledCall tiled_call(const Interpolation& call, const Segment& s, int32_t vector_bytes, int64_t blocks) {
  const int64_t size = dtype_size(s.value_dtype);
  TiledCall tiled{};
  tiled.targets = call.targets;
  tiled.targets_batch = call.targets_batch;
  tiled.targets_target = call.targets_target;
  tiled.targets_count = call.targets_count;
  tiled.batch = call.batch;
  tiled.segment = s;
  tiled.times = s.times;
  tiled.times_batch = s.times_batch;
  tiled.values = s.values;
  tiled.values_batch = s.values_batch;
  tiled.out = s.out;
  tiled.out_batch = s.out_batch;
  tiled.lengths = s.lengths;
  tiled.valid = s.valid;
  tiled.samples = static_cast<int32_t>(s.samples);
  tiled.vectors = static_cast<int32_t>(s.features * size / vector_bytes);
  tiled.width = width_of(tiled.vectors);
  tiled.groups = kThreads / tiled.width;
  tiled.value_sample = static_cast<int32_t>(s.values_sample * size);
  tiled.value_vector = static_cast<int32_t>(s.values_feature * vector_bytes);
  tiled.out_target = static_cast<int32_t>(s.out_target * size);
  tiled.out_vector = static_cast<int32_t>(s.out_feature * vector_bytes);
  tiled.only_mix = s.method == InterpolationMethod::kLinear && !s.causal && !s.has_max_gap;
  tiled.samples_per_target = static_cast<float>(s.samples) / static_cast<float>(call.targets_count);

  const int64_t targets = call.targets_count;
  const auto cut = [targets](int64_t tiles) { return (targets + tiles - 1) / tiles; };
  const int64_t margin = window_margin(s.samples);
  const auto window = [&](int64_t tile) {
    return std::min(s.samples, static_cast<int64_t>(static_cast<float>(tile) * tiled.samples_per_target) + 2 * margin);
  };
  // Tiles small enough for a block, and so many that all blocks run at once, but each with something to copy.
  const int64_t work = targets * work_of(s);
  const int64_t least = std::max(cut(kMaxTile), (work + kMostWork - 1) / kMostWork);
  const int64_t most = std::max(least, (work + kLeastWork - 1) / kLeastWork);
  int64_t tiles = std::min(targets, std::clamp(blocks / call.batch, least, most));
  // Smaller still where that makes the window fit; tiles that never have one stay large.
  if (window(1) <= kMostTimes) {
    while (window(cut(tiles)) > kMostTimes) tiles = std::min(targets, 2 * tiles);
  }
  tiled.tile = static_cast<int32_t>(cut(tiles));
  tiled.tiles = static_cast<int32_t>((targets + tiled.tile - 1) / tiled.tile);
  // A window that does not fit is none: every target is then looked up in the row itself.
  tiled.window = window(tiled.tile) <= kMostTimes ? static_cast<int32_t>(window(tiled.tile)) : 0;
  tiled.margin = static_cast<int32_t>(margin);

  // Short rows that lie one after the other: as many to a block as fit and give it something to copy.
  tiled.rows = 1;
  tiled.log2_span = kLog2MostTimes;
  const bool in_line = tiled.tiles == 1 && tiled.window == s.samples && s.lengths == nullptr &&
                       s.values_batch == s.samples * s.values_sample && s.out_batch == targets * s.out_target;
  while (in_line && 2 * tiled.rows * tiled.tile <= kMaxTile && tiled.rows * work < kLeastWork &&
         s.samples <= 1 << (tiled.log2_span - 1) && call.batch >= blocks * 2 * tiled.rows) {
    tiled.rows *= 2;
    --tiled.log2_span;
  }
  const int64_t total = tiled.tiles * ((call.batch + tiled.rows - 1) / tiled.rows);
  tiled.blocks = static_cast<uint32_t>(std::min<int64_t>(total, UINT32_MAX));
  return tiled;
}

template <class T, int kVector, class Clock>
cudaError_t launch_tiled(const Interpolation& call, cudaStream_t stream) {
  constexpr int32_t kBytes = kVector * static_cast<int32_t>(sizeof(T));
  if (call.segment_count == 1) {
    const TiledCall one = tiled_call(call, call.segments[0], kBytes, kBlocksAtOnce);
    const int64_t rows = (call.batch + one.rows - 1) / one.rows;
    const dim3 grid(static_cast<unsigned>(one.tiles), static_cast<unsigned>(std::min<int64_t>(rows, 65535)));
    return launch_overlapped(tile_kernel<T, kVector, Clock>, grid, kThreads, 0, stream, one);
  }
  // Blocks are shared out by what there is to copy; the largest segment takes those that the others leave.
  int64_t work = 0;
  int32_t largest = 0;
  for (int32_t i = 0; i < call.segment_count; ++i) {
    work += work_of(call.segments[i]);
    if (work_of(call.segments[i]) > work_of(call.segments[largest])) largest = i;
  }
  TiledCalls all{};
  int64_t blocks = 0;
  const auto add = [&](int32_t i, int64_t share) {
    all.calls[i] = tiled_call(call, call.segments[i], kBytes, share);
    blocks += all.calls[i].blocks;
  };
  for (int32_t i = 0; i < call.segment_count; ++i) {
    if (i != largest) add(i, kBlocksAtOnce * work_of(call.segments[i]) / work);
  }
  add(largest, kBlocksAtOnce - blocks);
  if (blocks > INT32_MAX) return launch_any(call, stream);
  return launch_overlapped(tiles_kernel<T, kVector, Clock>, dim3(static_cast<unsigned>(blocks)), kThreads, 0, stream,
                           all);
}

// `bytes`: the widest vector that every segment's rows are made of.
template <class T, class Clock>
cudaError_t launch_tiled_of_vector(const Interpolation& call, int32_t bytes, cudaStream_t stream) {
  if (bytes == 16) return launch_tiled<T, 16 / sizeof(T), Clock>(call, stream);
  if constexpr (sizeof(T) <= 4) {
    if (bytes == 8) return launch_tiled<T, 8 / sizeof(T), Clock>(call, stream);
  }
  if constexpr (sizeof(T) <= 2) {
    if (bytes == 4) return launch_tiled<T, 4 / sizeof(T), Clock>(call, stream);
  }
  return launch_tiled<T, 1, Clock>(call, stream);
}

template <class T>
cudaError_t launch_tiled_of_clock(const Interpolation& call, int32_t vector_bytes, cudaStream_t stream) {
  switch (call.target_dtype) {
    case DType::kFloat32:
      return launch_tiled_of_vector<T, float>(call, vector_bytes, stream);
    case DType::kFloat64:
      return launch_tiled_of_vector<T, double>(call, vector_bytes, stream);
    default:
      return launch_tiled_of_vector<T, int64_t>(call, vector_bytes, stream);
  }
}

cudaError_t launch(const Interpolation& call, cudaStream_t stream) {
  bool tiled = call.segment_count <= kMostTiledCalls && call.targets_count < int64_t{1} << 31;
  for (int32_t i = 0; tiled && i < call.segment_count; ++i) {
    tiled = is_tiled(call, call.segments[i]) && call.segments[i].value_dtype == call.segments[0].value_dtype;
  }
  if (!tiled) return launch_any(call, stream);
  int32_t vector_bytes = 16;
  for (int32_t i = 0; i < call.segment_count; ++i) {
    vector_bytes = std::min(vector_bytes, vector_bytes_of(call, call.segments[i]));
  }
  switch (call.segments[0].value_dtype) {
    case DType::kFloat64:
      return launch_tiled_of_clock<double>(call, vector_bytes, stream);
    case DType::kFloat32:
      return launch_tiled_of_clock<float>(call, vector_bytes, stream);
    case DType::kFloat16:
      return launch_tiled_of_clock<Float16>(call, vector_bytes, stream);
    default:
      return launch_tiled_of_clock<BFloat16>(call, vector_bytes, stream);
  }
}

}  // namespace
}  // namespace robocache

extern "C" __attribute__((visibility("default"))) int robocache_cuda_interpolate(const robocache::Interpolation* call,
                                                                                 int32_t device, void* stream) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  return launch(*call, static_cast<cudaStream_t>(stream));
}
