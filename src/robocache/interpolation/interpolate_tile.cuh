// Tiles of targets, one per block: code that the kernels for the usual calls share. Only *_cuda.cu files include it.
#pragma once

#include "robocache/core/launch_cuda.cuh"
#include "robocache/interpolation/interpolate_cuda.cuh"
#include "robocache/interpolation/interpolate_plan.hpp"

namespace robocache::interpolation_cuda {

// Launches a call that is one segment of Way::kCurve.
cudaError_t launch_curve(const Interpolation& call, int64_t blocks_at_once, cudaStream_t stream);

// thread = group * width + lane. Numbers below 256 are divided by `width` by multiplying with the reciprocal.
struct LaneIndex {
  int32_t group, lane;
};

__device__ inline LaneIndex lane_of_thread(const Lanes& lanes) {
  const auto group = static_cast<int32_t>(threadIdx.x * lanes.reciprocal >> 16);
  return {group, static_cast<int32_t>(threadIdx.x) - group * lanes.width};
}

// The samples that a target uses, in shared memory.
template <class Work>
struct alignas(sizeof(Work) == 4 ? 16 : 8) TileEntry {
  int32_t left;  // row of the earlier sample
  int32_t right;
  Work weight;
  int32_t kind;  // of PickKind; 32 bits wide, so that a float entry is one load
};

// Returns the grid: one block for each tile of each row, or of tiling.rows rows.
inline dim3 grid_of(const Tiling& tiling) {
  return {static_cast<unsigned>(tiling.tiles),
          static_cast<unsigned>(std::min<int64_t>(divided_up(tiling.batch, tiling.rows), 65535))};
}

// A block's tile, in the rows from `batch` on.
struct Tile {
  int64_t batch;
  int32_t first;  // index of the first target
  int32_t rows;
  int32_t count;  // number of targets in all the block's rows
};

__device__ inline Tile tile_at(const Tiling& tiling, uint32_t tile, int64_t batch) {
  const int32_t first = static_cast<int32_t>(tile) * tiling.tile;
  const int32_t remaining = tiling.targets_count - first;
  if (tiling.rows == 1) return {batch, first, 1, remaining < tiling.tile ? remaining : tiling.tile};
  const int64_t rows = tiling.batch - batch;
  const int32_t tile_rows = rows < tiling.rows ? static_cast<int32_t>(rows) : tiling.rows;
  return {batch, 0, tile_rows, tile_rows * tiling.tile};
}

// A target, and the range in which its samples are searched for.
template <class Clock>
struct Lookup {
  const Clock* row;
  const Clock* window;  // the window of its row, in shared memory
  WindowRange range;
  int32_t n;      // number of samples in its row
  int32_t r;      // index of its row in the block
  int32_t index;  // index of the target in the tile
  Clock target;
};

// Copies the windows of the rows' clocks to shared memory of window_bytes() bytes, then calls visit(i, lookup) for
// every target of the tile. The whole block calls it. kLong: the result of is_long.
template <bool kLong, class Clock, class Visit>
__device__ void look_up(const Tiling& tiling, const TiledSegment& tiled, const Tile& tile, const Visit& visit) {
  extern __shared__ double window_memory[];
  auto* const window = reinterpret_cast<Clock*>(window_memory);
  const Clock* const row = static_cast<const Clock*>(tiled.times) + tile.batch * tiled.times_batch;
  const Clock* const targets = static_cast<const Clock*>(tiling.targets) + tile.batch * tiling.targets_batch;
  const auto row_of = [&](int32_t i) { return tiling.rows == 1 ? 0 : i / tiling.tile; };
  const auto target_at = [&](int32_t i) {
    const int32_t r = row_of(i);
    return *stepped(targets + r * tiling.targets_batch, tile.first + i - r * tiling.tile, tiling.target_stride);
  };
  const auto thread = static_cast<int32_t>(threadIdx.x);
  wait_for_work_before();
  const int32_t n =
      tiled.lengths == nullptr ? tiled.samples : static_cast<int32_t>(row_length(tiled.segment, tile.batch));
  const WindowRange range = window_range(tiled.window, tile.first, n);
  const Clock* const from = row + range.begin;
  for (int32_t index = kMostTimes + thread; kLong && index < 1 << tiled.log2_span; index += kTileThreads) {
    if (index < range.size) {
      __pipeline_memcpy_async(window + index, from + index, sizeof(Clock));
    } else {
      window[index] = latest<Clock>();
    }
  }
  Clock loaded[kTimesPerThread];
  if (tiling.rows == 1) {
#pragma unroll
    for (int u = 0; u < kTimesPerThread; ++u) {
      const int32_t index = thread + u * kTileThreads;
      loaded[u] = index < range.size ? from[index] : latest<Clock>();
    }
  } else {
#pragma unroll
    for (int u = 0; u < kTimesPerThread; ++u) {
      const int32_t r = (thread + u * kTileThreads) >> tiled.log2_span;
      const int32_t index = (thread + u * kTileThreads) & ((1 << tiled.log2_span) - 1);
      loaded[u] = index < range.size && r < tile.rows ? row[r * tiled.times_batch + index] : latest<Clock>();
    }
  }
  static_assert(kMaxTile == 2 * kTileThreads);
  Clock target{};
  Clock second_target{};
  if (thread < tile.count) target = target_at(thread);
  if (kLong && thread + kTileThreads < tile.count) second_target = target_at(thread + kTileThreads);
#pragma unroll
  for (int u = 0; u < kTimesPerThread; ++u) window[thread + u * kTileThreads] = loaded[u];
  if constexpr (kLong) {
    __pipeline_commit();
    __pipeline_wait_prior(0);
  }
  __syncthreads();
#pragma unroll 1
  for (int32_t i = thread; i < tile.count; i += kLong ? kTileThreads : kMaxTile) {
    const int32_t r = row_of(i);
    visit(i, Lookup<Clock>{row + r * tiled.times_batch, window + (r << tiled.log2_span), range, n, r,
                           i - r * tiling.tile, target});
    target = second_target;
  }
}

// Applies the general rule to the row itself; the last sample at or before the target is in [low, high). It reads the
// times of seven samples at once: one wait for memory instead of three steps of bisection.
template <class Work, class Clock>
__device__ __noinline__ Pick<Work, int32_t> pick_from_row(const Segment& s, const Clock* row, int32_t n, Clock target,
                                                          int32_t low, int32_t high) {
  while (high - low > 1) {
    const int32_t step = (high - low + 7) / 8;
    int32_t passed = 0;
#pragma unroll
    for (int32_t k = 1; k < 8; ++k) {
      const int32_t row_index = low + k * step;
      passed += row_index < high && row[row_index < high ? row_index : low] <= target;
    }
    low += passed * step;
    high = low + step < high ? low + step : high;
  }
  return pick<Work>(ClockRow<Clock>{row, 1}, n, target, rule_of<Clock>(s), low);
}

// The usual case: the target's samples are inside the window, and the target is their mixture or a hit.
template <bool kLong, class Work, class Clock>
__device__ Pick<Work, int32_t> pick_from_window(const TiledSegment& tiled, const Lookup<Clock>& lookup) {
  const int32_t low = search<kLong>(lookup.window, 1 << tiled.log2_span, lookup.target);
  const Clock before = lookup.window[low];
  const Clock after = lookup.window[low + 1];
  const Clock next = lookup.window[low + 2];
  // If the window ends with the row, nothing follows its last sample.
  const int32_t known_times = lookup.range.size + (lookup.range.begin + lookup.range.size == lookup.n ? 1 : 0);
  const int32_t row = lookup.range.begin + low;
  if (tiled.only_mix && low + 2 < known_times && before < lookup.target && lookup.target < after && after < next) {
    return {row, row + 1,
            weight_of<Clock, Work>(later_minus_earlier(lookup.target, before), later_minus_earlier(after, before)),
            PickKind::kMix, true};
  }
  const bool is_inside = low + 1 < known_times && before <= lookup.target;
  if (is_inside && before == lookup.target) return pick_one<Work>(row, true);
  return pick_from_row<Work>(tiled.segment, lookup.row, lookup.n, lookup.target, is_inside ? row : 0,
                             is_inside ? row + 1 : lookup.n);
}

template <class Clock>
__device__ void write_valid(const TiledSegment& tiled, const Tile& tile, const Lookup<Clock>& lookup, bool valid) {
  if (tiled.valid == nullptr) return;
  tiled.valid[(tile.batch + lookup.r) * tiled.segment.valid_batch +
              (tile.first + lookup.index) * tiled.segment.valid_target] = valid;
}

// Returns the samples that a target uses, counted from the block's first row.
template <bool kLong, class Work, class Clock>
__device__ TileEntry<Work> entry_of(const TiledSegment& tiled, const Tile& tile, const Lookup<Clock>& lookup) {
  const Pick<Work, int32_t> picked = pick_from_window<kLong, Work>(tiled, lookup);
  write_valid(tiled, tile, lookup, picked.valid);
  const int32_t row = lookup.r * tiled.samples;
  return {row + picked.left, row + picked.right, picked.weight, static_cast<int32_t>(picked.kind)};
}

// Returns the mixture of two vectors.
template <class T, int kVector, class Work>
__device__ Vector<T, kVector> mixture_of(const Vector<T, kVector>& a, const Vector<T, kVector>& b, Work weight) {
  Work x[kVector];
  Work y[kVector];
  unpack(a, x);
  unpack(b, y);
#pragma unroll
  for (int e = 0; e < kVector; ++e) y[e] = lerp(x[e], y[e], weight);
  return packed<T, kVector>(y);
}

template <class T, int kVector>
__device__ Vector<T, kVector> absent_vector() {
  Vector<T, kVector> y;
#pragma unroll
  for (int e = 0; e < kVector; ++e) y.x[e] = absent_value<T>();
  return y;
}

// Returns the values of a target whose samples have the values a and b.
template <class T, int kVector, class Work>
__device__ Vector<T, kVector> vector_of_entry(const TileEntry<Work>& entry, const Vector<T, kVector>& a,
                                              const Vector<T, kVector>& b) {
  if (entry.kind == static_cast<int32_t>(PickKind::kOne)) return a;
  if (entry.kind == static_cast<int32_t>(PickKind::kMix)) return mixture_of(a, b, entry.weight);
  return absent_vector<T, kVector>();
}

}  // namespace robocache::interpolation_cuda
