#include "robocache/interpolation/interpolate_tile.cuh"

namespace robocache {
namespace {

// A block is a tile of one row's targets. Each thread finds a target's samples; then all write vectors of any target. So a
// value waits for two trips to memory. For most calls the kernel is over before its instructions have all been fetched:
// what is rare stands apart. Tuned on an H200.
struct TileCall {
  Tiling cut;
  Lanes lanes;
  TiledSegment of;
};

// A thread's next kAtOnce targets, whose samples are all on their way before the first is used. What is past the last
// target reads as that does and is not written.
template <int kAtOnce, class T, int kVector, class Work>
__device__ void write_targets(const TileCall& call, const Vector<T, kVector>* from, const TileEntry<Work>* entries,
                              int32_t first, int32_t count, Vector<T, kVector>* to) {
  Vector<T, kVector> a[kAtOnce];
  Vector<T, kVector> b[kAtOnce];
  Work weight[kAtOnce];
  bool all_mix = true;
#pragma unroll
  for (int u = 0; u < kAtOnce; ++u) {
    const int32_t at = first + u * call.lanes.groups;
    const TileEntry<Work> entry = entries[at < count ? at : count - 1];
    weight[u] = entry.weight;
    all_mix = all_mix & (entry.kind == static_cast<int32_t>(PickKind::kMix));
    a[u] = *stepped(from, entry.left, call.of.value_sample);
    b[u] = *stepped(from, entry.right, call.of.value_sample);
  }
  if (all_mix) {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int32_t at = first + u * call.lanes.groups;
      if (at < count) *stepped(to, at, call.of.out_target) = between(a[u], b[u], weight[u]);
    }
  } else {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int32_t at = first + u * call.lanes.groups;
      if (at < count) *stepped(to, at, call.of.out_target) = mixed(entries[at], a[u], b[u]);
    }
  }
}

// The tile's targets. A thread keeps its place in the rows and goes from target to target, `groups` of them abreast.
template <class T, int kVector, class Work>
__device__ void write_tile(const TileCall& call, const T* values, const TileEntry<Work>* entries, int32_t count,
                           T* out) {
  using V = Vector<T, kVector>;
  constexpr int kAtOnce = sizeof(V) == 16 ? 4 : 8;
  const TiledSegment& of = call.of;
  const Lanes& lanes = call.lanes;
  const auto [group, lane] = place_in(lanes);
  if (group >= lanes.groups) return;
  for (int32_t v = lane; v < of.vectors; v += lanes.width) {
    const auto* const from = reinterpret_cast<const V*>(stepped(values, v, of.value_vector));
    auto* const to = reinterpret_cast<V*>(stepped(out, v, of.out_vector));
    int32_t i = group;
    for (; i + kAtOnce / 2 * lanes.groups < count; i += kAtOnce * lanes.groups) {
      write_targets<kAtOnce>(call, from, entries, i, count, to);
    }
    for (; i < count; i += kAtOnce / 2 * lanes.groups) write_targets<kAtOnce / 2>(call, from, entries, i, count, to);
  }
}

template <class T, class Clock>
struct TileMemory {
  TileEntry<WorkType<T>> entries[kMaxTile];
  WindowMemory<Clock> window;
};

// A tile of the rows from `batch` on, as many as a block takes.
template <class T, int kVector, class Clock>
__device__ void run_tile(const TileCall& call, uint32_t index, int64_t batch, TileMemory<T, Clock>& memory) {
  const TiledSegment& of = call.of;
  const Tile tile = tile_at(call.cut, index, batch);
  const Lookup<Clock> at = look_up<Clock>(call.cut, of, tile, memory.window);
  const auto i = static_cast<int32_t>(threadIdx.x);
  if (i < tile.count) memory.entries[i] = entry_of<WorkType<T>>(of, tile, at, memory.window);
  __syncthreads();
  T* const out = static_cast<T*>(of.out) + batch * of.out_batch;
  write_tile<T, kVector>(call, static_cast<const T*>(of.values) + batch * of.values_batch, memory.entries, tile.count,
                         stepped(out, tile.first, of.out_target));
}

// kBlocks: of a multiprocessor, at least.
template <class T, int kVector, class Clock, int kBlocks>
__global__ void __launch_bounds__(kTileThreads, kBlocks) tile_kernel(const __grid_constant__ TileCall call) {
  __shared__ TileMemory<T, Clock> memory;
  for (int64_t batch = int64_t{blockIdx.y} * call.cut.rows; batch < call.cut.batch;
       batch += int64_t{gridDim.y} * call.cut.rows) {
    run_tile<T, kVector>(call, blockIdx.x, batch, memory);
    __syncthreads();
  }
}

// Segments side by side in one launch, each with blocks of its own.
constexpr int32_t kMostTiledCalls = 8;
struct TileCalls {
  TileCall calls[kMostTiledCalls];
  uint32_t blocks[kMostTiledCalls];
};

template <class T, int kVector, class Clock>
__global__ void __launch_bounds__(kTileThreads, 4) tiles_kernel(const __grid_constant__ TileCalls all) {
  __shared__ TileMemory<T, Clock> memory;
  uint32_t block = blockIdx.x;
  int32_t i = 0;
  while (block >= all.blocks[i]) block -= all.blocks[i++];
  const TileCall& call = all.calls[i];
  const uint32_t row = block / static_cast<uint32_t>(call.cut.tiles);
  run_tile<T, kVector>(call, block - row * static_cast<uint32_t>(call.cut.tiles), int64_t{row} * call.cut.rows, memory);
}

// `blocks`: of how many the segment may consist to run at once.
TileCall tile_call(const Interpolation& call, const Segment& s, int32_t vector_bytes, int64_t blocks) {
  TileCall made{};
  made.of = tiled_segment(s, vector_bytes);
  made.lanes = lanes_for(made.of.vectors);
  const int64_t work = work_of(s);
  made.cut = tiling_of(call, made.of, std::clamp<int64_t>(kMostWork / work, 1, kMaxTile), divided_up(kLeastWork, work),
                       blocks);
  return made;
}

template <class T, int kVector, class Clock>
cudaError_t launch_tiles(const Interpolation& call, cudaStream_t stream) {
  constexpr int32_t kBytes = kVector * static_cast<int32_t>(sizeof(T));
  if (call.segment_count == 1) {
    const TileCall one = tile_call(call, call.segments[0], kBytes, kBlocksAtOnce);
    const dim3 grid = grid_of(one.cut);
    if constexpr (kBytes <=
                  4) {  // narrow vectors wait for instructions, not for memory: more warps, where there are more
      if (int64_t{grid.x} * grid.y > kBlocksAtOnce) {
        return launch_overlapped(tile_kernel<T, kVector, Clock, 5>, grid, kTileThreads, 0, stream, one);
      }
    }
    return launch_overlapped(tile_kernel<T, kVector, Clock, 4>, grid, kTileThreads, 0, stream, one);
  }
  // Blocks are shared out by what there is to copy; the largest segment takes those that the others leave.
  int64_t work = 0;
  int32_t largest = 0;
  for (int32_t i = 0; i < call.segment_count; ++i) {
    work += work_of(call.segments[i]);
    if (work_of(call.segments[i]) > work_of(call.segments[largest])) largest = i;
  }
  TileCalls all{};
  int64_t blocks = 0;
  const auto add = [&](int32_t i, int64_t share) {
    const TileCall& made = all.calls[i] = tile_call(call, call.segments[i], kBytes, share);
    const int64_t own = made.cut.tiles * divided_up(call.batch, made.cut.rows);
    all.blocks[i] = static_cast<uint32_t>(std::min<int64_t>(own, INT32_MAX));
    blocks += own;
  };
  for (int32_t i = 0; i < call.segment_count; ++i) {
    if (i != largest) add(i, kBlocksAtOnce * work_of(call.segments[i]) / work);
  }
  add(largest, kBlocksAtOnce - blocks);
  if (blocks > INT32_MAX) return launch_any(call, stream);
  return launch_overlapped(tiles_kernel<T, kVector, Clock>, dim3(static_cast<unsigned>(blocks)), kTileThreads, 0,
                           stream, all);
}

cudaError_t launch(const Interpolation& call, cudaStream_t stream) {
  const Segment& s = call.segments[0];
  bool tiled = call.segment_count <= kMostTiledCalls;
  int32_t vector_bytes = 16;
  for (int32_t i = 0; tiled && i < call.segment_count; ++i) {
    tiled = is_tiled(call, call.segments[i]) && call.segments[i].value_dtype == s.value_dtype;
    vector_bytes = std::min(vector_bytes, vector_bytes_of(call, call.segments[i]));
  }
  if (tiled && call.segment_count == 1 && is_curve(s, vector_bytes)) return launch_curve(call, stream);
  const auto mixes = [](const Segment& of) { return of.method == InterpolationMethod::kLinear || is_step(of.method); };
  if (!tiled || !std::all_of(call.segments, call.segments + call.segment_count, mixes)) return launch_any(call, stream);
  return with_vector(s.value_dtype, vector_bytes, s.clock_dtype, [&](auto element, auto count, auto time) {
    return launch_tiles<decltype(element), decltype(count)::value, decltype(time)>(call, stream);
  });
}

}  // namespace

bool is_tiled(const Interpolation& call, const Segment& s) {
  const auto small = [](int64_t stride) { return stride >= -(int64_t{1} << 26) && stride <= int64_t{1} << 26; };
  return call.targets_count < int64_t{1} << 31 && is_floating(s.value_dtype) && s.value_dtype == s.out_dtype &&
         !s.scaled && s.clock_dtype == call.target_dtype && s.offset == 0 && s.offset_ns == 0 && s.age == nullptr &&
         call.target_lengths == nullptr && s.samples > 0 && s.features > 0 && s.times_sample == 1 &&
         small(s.values_sample) && small(s.values_feature) && small(s.out_target) && small(s.out_feature) &&
         small(call.targets_target);
}

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

Lanes lanes_for(int64_t vectors) {
  int64_t best = std::min<int64_t>(std::max<int64_t>(vectors, 1), kTileThreads);
  if (best > kTileThreads / 4) {
    double best_busy = 0;
    for (int64_t passes = divided_up(vectors, kTileThreads), last = passes + 4; passes <= last; ++passes) {
      const int64_t width = divided_up(vectors, passes);
      const double busy =
          static_cast<double>(vectors * (kTileThreads / width)) / static_cast<double>(passes * kTileThreads);
      if (busy <= best_busy) continue;
      best = width;
      best_busy = busy;
    }
  }
  const auto width = static_cast<int32_t>(best);
  return {width, kTileThreads / width, (65536u + static_cast<uint32_t>(width) - 1) / static_cast<uint32_t>(width)};
}

TiledSegment tiled_segment(const Segment& s, int32_t vector_bytes) {
  const int64_t size = dtype_size(s.value_dtype);
  TiledSegment made{};
  made.times = s.times;
  made.values = s.values;
  made.out = s.out;
  made.lengths = s.lengths;
  made.valid = s.valid;
  made.times_batch = s.times_batch;
  made.values_batch = s.values_batch;
  made.out_batch = s.out_batch;
  made.samples = static_cast<int32_t>(s.samples);
  made.log2_span = kLog2MostTimes;
  made.vectors = static_cast<int32_t>(s.features * size / vector_bytes);
  made.value_sample = static_cast<int32_t>(s.values_sample * size);
  made.value_vector = static_cast<int32_t>(s.values_feature * vector_bytes);
  made.out_target = static_cast<int32_t>(s.out_target * size);
  made.out_vector = static_cast<int32_t>(s.out_feature * vector_bytes);
  made.only_mix = !is_step(s.method) && !s.causal && !s.has_max_gap;
  made.segment = s;
  return made;
}

}  // namespace robocache

extern "C" __attribute__((visibility("default"))) int robocache_cuda_interpolate(const robocache::Interpolation* call,
                                                                                 int32_t device, void* stream) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  if (call->batch == 0 || call->targets_count == 0 || call->segment_count == 0) return cudaSuccess;
  return launch(*call, static_cast<cudaStream_t>(stream));
}
