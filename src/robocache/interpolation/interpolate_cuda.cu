#include <cuda_pipeline_primitives.h>

#include "robocache/interpolation/interpolate_tile.cuh"

namespace robocache::interpolation_cuda {
namespace {

// A block handles a tile of one row's targets. Each thread finds the samples of one target; then all threads write
// vectors of any target. So each value takes only two waits for memory. Most calls take less time than fetching
// all instructions would, so the code of rare cases is in separate functions. Tuned on an H200.

// Writes a thread's next kAtOnce targets; it loads all their samples before it uses the first. Past the last target it
// reads the last target again and writes nothing.
template <int kAtOnce, class T, int kVector, class Work>
__device__ void write_targets(const TileCall& call, const Vector<T, kVector>* from, const TileEntry<Work>* entries,
                              int32_t first, int32_t count, Vector<T, kVector>* to) {
  Vector<T, kVector> a[kAtOnce];
  Vector<T, kVector> b[kAtOnce];
  Work weight[kAtOnce];
  bool all_mix = true;
#pragma unroll
  for (int u = 0; u < kAtOnce; ++u) {
    const int32_t target = first + u * call.lanes.groups;
    const TileEntry<Work> entry = entries[target < count ? target : count - 1];
    weight[u] = entry.weight;
    all_mix = all_mix & (entry.kind == static_cast<int32_t>(PickKind::kMix));
    a[u] = *stepped(from, entry.left, call.tiled.value_sample);
    b[u] = *stepped(from, entry.right, call.tiled.value_sample);
  }
  if (all_mix) {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int32_t target = first + u * call.lanes.groups;
      if (target < count) *stepped(to, target, call.tiled.out_target) = mixture_of(a[u], b[u], weight[u]);
    }
  } else {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int32_t target = first + u * call.lanes.groups;
      if (target < count) *stepped(to, target, call.tiled.out_target) = vector_of_entry(entries[target], a[u], b[u]);
    }
  }
}

// Writes the tile's targets. A thread keeps its vector of the row and steps from target to target. Several groups of
// threads work side by side.
template <class T, int kVector, class Work>
__device__ void write_tile(const TileCall& call, const T* values, const TileEntry<Work>* entries, int32_t count,
                           T* out) {
  using V = Vector<T, kVector>;
  constexpr int kAtOnce = sizeof(V) == 16 ? 4 : 8;
  const TiledSegment& tiled = call.tiled;
  const Lanes& lanes = call.lanes;
  const auto [group, lane] = lane_of_thread(lanes);
  if (group >= lanes.groups) return;
  for (int32_t v = lane; v < tiled.vectors; v += lanes.width) {
    const auto* const from = reinterpret_cast<const V*>(stepped(values, v, tiled.value_vector));
    auto* const to = reinterpret_cast<V*>(stepped(out, v, tiled.out_vector));
    int32_t i = group;
    for (; i + kAtOnce / 2 * lanes.groups < count; i += kAtOnce * lanes.groups) {
      write_targets<kAtOnce>(call, from, entries, i, count, to);
    }
    for (; i < count; i += kAtOnce / 2 * lanes.groups) write_targets<kAtOnce / 2>(call, from, entries, i, count, to);
  }
}

// Computes a tile of the block's rows, which begin at `batch`. kVector is the number of elements in a vector; 0 reads
// it from the segment.
template <bool kLong, class T, int kVector, class Clock>
__device__ void run_tile(const TileCall& call, uint32_t index, int64_t batch) {
  using Entry = TileEntry<WorkType<T>>;
  __shared__ Entry entries[kLong ? kMaxTile : kTileThreads];
  const TiledSegment& tiled = call.tiled;
  const Tile tile = tile_at(call.tiling, index, batch);
  look_up<kLong, Clock>(call.tiling, tiled, tile, [&](int32_t i, const Lookup<Clock>& lookup) {
    entries[i] = entry_of<kLong, WorkType<T>>(tiled, tile, lookup);
  });
  __syncthreads();
  const T* const values = static_cast<const T*>(tiled.values) + batch * tiled.values_batch;
  T* const out = stepped(static_cast<T*>(tiled.out) + batch * tiled.out_batch, tile.first, tiled.out_target);
  if constexpr (kVector > 0) {
    write_tile<T, kVector>(call, values, entries, tile.count, out);
  } else {
    with_vector<T>(tiled.vector_bytes, [&](auto elements) {
      write_tile<T, decltype(elements)::value>(call, values, entries, tile.count, out);
    });
  }
}

template <class T, int kVector, class Clock>
__global__ void __launch_bounds__(kTileThreads, 4) tile_kernel(const __grid_constant__ TileCall call) {
  for (int64_t batch = int64_t{blockIdx.y} * call.tiling.rows; batch < call.tiling.batch;
       batch += int64_t{gridDim.y} * call.tiling.rows) {
    run_tile<false, T, kVector, Clock>(call, blockIdx.x, batch);
    __syncthreads();
  }
}

// The segments of one launch, each with its own blocks; or a single segment that is_long.
struct TileCalls {
  uint32_t blocks[kMostTiledSegments];
  TileCall calls[kMostTiledSegments];
};

template <class T, class Clock, bool kLong>
__global__ void __launch_bounds__(kTileThreads, 4) tiles_kernel(const __grid_constant__ TileCalls all) {
  uint32_t block = blockIdx.x;
  int32_t i = 0;
  while (block >= all.blocks[i]) block -= all.blocks[i++];
  const TileCall& call = all.calls[i];
  const uint32_t row = block / static_cast<uint32_t>(call.tiling.tiles);
  run_tile<kLong, T, 0, Clock>(call, block - row * static_cast<uint32_t>(call.tiling.tiles),
                               int64_t{row} * call.tiling.rows);
}

template <class T, class Clock>
cudaError_t launch_one(const TileCall& single, cudaStream_t stream) {
  return with_vector<T>(single.tiled.vector_bytes, [&](auto elements) {
    return launch_overlapped(tile_kernel<T, decltype(elements)::value, Clock>, grid_of(single.tiling), kTileThreads,
                             window_bytes(single), stream, single);
  });
}

// Each segment gets blocks in proportion to its bytes. The largest segment gets the remaining blocks and begins first.
template <class T, class Clock>
cudaError_t launch_tiles(const Interpolation& call, int64_t blocks_at_once, int device, cudaStream_t stream) {
  int64_t work = 0;
  int32_t largest = 0;
  for (int32_t i = 0; i < call.segment_count; ++i) {
    work += work_of(call.segments[i]);
    if (work_of(call.segments[i]) > work_of(call.segments[largest])) largest = i;
  }
  const bool has_several = call.segment_count > 1;
  TileCalls all{};
  bool has_long = false;
  int64_t blocks = 0;
  size_t window = 0;
  const auto add = [&](int32_t position, const Segment& s, int64_t share) {
    const TileCall& tiled = all.calls[position] = tile_call(call, s, share, has_several ? kTileThreads : kMaxTile);
    const int64_t call_blocks = tiled.tiling.tiles * divided_up(call.batch, tiled.tiling.rows);
    all.blocks[position] = static_cast<uint32_t>(std::min<int64_t>(call_blocks, INT32_MAX));
    blocks += call_blocks;
    window = std::max(window, window_bytes(tiled));
    has_long = has_long || is_long(tiled);
  };
  for (int32_t i = 0, position = 1; i < call.segment_count; ++i) {
    if (i != largest) add(position++, call.segments[i], blocks_at_once * work_of(call.segments[i]) / work);
  }
  add(0, call.segments[largest], blocks_at_once - blocks);
  if (!has_several && !has_long) return launch_one<T, Clock>(all.calls[0], stream);
  if (blocks > INT32_MAX) return launch_any(call, device, stream);
  const auto kernel = has_long ? tiles_kernel<T, Clock, true> : tiles_kernel<T, Clock, false>;
  return launch_overlapped(kernel, dim3(static_cast<unsigned>(blocks)), kTileThreads, window, stream, all);
}

cudaError_t launch(const Interpolation& call, int device, cudaStream_t stream) {
  const int64_t blocks_at_once = kBlocksAtOnce * multiprocessors(device);
  const Way way = choose_way(call);
  if (way == Way::kAny) return launch_any(call, device, stream);
  if (way == Way::kCurve) return launch_curve(call, blocks_at_once, stream);
  return with_floating(call.segments[0].value_dtype, [&](auto element) {
    return with_clock(call.target_dtype, [&](auto time) {
      return launch_tiles<decltype(element), decltype(time)>(call, blocks_at_once, device, stream);
    });
  });
}

}  // namespace
}  // namespace robocache::interpolation_cuda

extern "C" __attribute__((visibility("default"))) int robocache_cuda_interpolate(const robocache::Interpolation* call,
                                                                                 int32_t device, void* stream) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  if (call->batch == 0 || call->targets_count == 0 || call->segment_count == 0) return cudaSuccess;
  return interpolation_cuda::launch(*call, device, static_cast<cudaStream_t>(stream));
}
