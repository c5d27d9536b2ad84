#include <cuda_pipeline_primitives.h>

#include "robocache/interpolation/interpolate_tile.cuh"
#include "robocache/interpolation/methods.hpp"

namespace robocache::interpolation_cuda {
namespace {

// A block handles a tile of one row's targets. Each thread computes the entry of a target; then all threads write
// vectors of 16 bytes of any target. Arithmetic takes most of the time, so the other code must have few instructions.
// Separate code handles the few targets that lack some of the samples that their method reads.

// ---- The entry of a target, in shared memory ------------------------------------------------------------------------

// The `kind` of a mixture also holds the numbers of samples before and after.
constexpr int32_t kind_of_mix(int before, int after) {
  return static_cast<int32_t>(PickKind::kMix) | before << 8 | after << 16;
}
__device__ int before_of(int32_t kind) { return kind >> 8 & 0xff; }
__device__ int after_of(int32_t kind) { return kind >> 16; }

struct WeighedEntry : TileEntry<float> {
  int32_t around[4];  // rows 0, 1, 4 and 5 of the stencil
  CurveWeights<float> weights;

  __device__ void set(const Stencil<int32_t>& stencil, const CurveWeights<float>& w) {
    for (int i = 0; i < 4; ++i) around[i] = stencil.rows[i < 2 ? i : i + 2];
    weights = w;
    kind = kind_of_mix(stencil.before, stencil.after);
  }
};

template <class Method>
using CurveEntry = std::conditional_t<Method::kWeighs, WeighedEntry, TileEntry<float>>;

// Fills the entry from the row itself, by the general rule.
template <class Method, class Clock>
__device__ __noinline__ void set_from_row(const Clock* row, int32_t n, Pick<float, int32_t> picked,
                                          WeighedEntry& entry) {
  const ClockRow<Clock> times{row, 1};
  const auto stencil = stencil_around(times, n, picked.left, picked.right, Method::kReach);
  entry.set(stencil, weights_around<Method>(times, n, stencil, picked.weight));
}

// The usual case: the samples around the target are in the window, and no two have the same time.
template <class Method, class Clock>
__device__ void set_weighed(const Lookup<Clock>& lookup, const Pick<float, int32_t>& picked, WeighedEntry& entry) {
  constexpr int kReach = Method::kReach;
  const int32_t low = picked.left - lookup.range.begin;
  if (picked.right == picked.left + 1 && low >= kReach && low + kReach + 2 < lookup.range.size) {
    Clock t[2 * kReach + 3];  // one more than the method reads, to see that the next time differs
    bool all_differ = true;
#pragma unroll
    for (int i = 0; i < 2 * kReach + 3; ++i) {
      t[i] = lookup.window[low - kReach + i];
      if (i > 0) all_differ = all_differ & !(t[i] == t[i - 1]);
    }
    if (all_differ) {
      Stencil<int32_t> stencil{{0, 0, 0, 0, 0, 0}, kReach, kReach};
      Spacing<double> spacing{static_cast<double>(picked.weight), {}, 0.0, kReach, kReach};
#pragma unroll
      for (int i = 2 - kReach; i <= 3 + kReach; ++i) stencil.rows[i] = picked.left + i - 2;
#pragma unroll
      for (int i = 2 - kReach; i <= 2 + kReach; ++i) {
        spacing.gaps[i] = static_cast<double>(later_minus_earlier(t[i - 1 + kReach], t[i - 2 + kReach]));
      }
      entry.set(stencil, Method::template weights<float>(spacing));
      return;
    }
  }
  set_from_row<Method>(lookup.row, lookup.n, picked, entry);
}

template <class Method, class Clock>
__device__ void fill_entry(const TiledSegment& tiled, const Tile& tile, const Lookup<Clock>& lookup,
                           CurveEntry<Method>& entry) {
  const Pick<float, int32_t> picked = pick_from_window<false, float>(tiled, lookup);
  write_valid(tiled, tile, lookup, picked.valid);
  const int32_t row = lookup.r * tiled.samples;
  entry.weight = picked.weight;
  entry.kind = static_cast<int32_t>(picked.kind);
  if constexpr (Method::kWeighs) {
    if (picked.kind == PickKind::kMix) {
      set_weighed<Method>(lookup, picked, entry);
      for (int32_t& sample : entry.around) sample += row;
    }
  }
  entry.left = row + picked.left;
  entry.right = row + picked.right;
}

// ---- Features -------------------------------------------------------------------------------------------------------

template <class T, int kVector>
__device__ void load(const char* from, float (&x)[kVector]) {
  unpack(*reinterpret_cast<const Vector<T, kVector>*>(from), x);
}

// Computes a mixture. kInside: all samples that the method reads exist.
template <class T, class Method, bool kInside>
__device__ Vector<T, 16 / sizeof(T)> curve_vector(const CurveEntry<Method>& entry, const char* from, int32_t stride) {
  constexpr int kVector = 16 / sizeof(T);
  constexpr int kReach = Method::kReach;
  float x[kRowsOf<Method>][kVector], y[kVector];
#pragma unroll
  for (int i = 0; i < kRowsOf<Method>; ++i) {
    const int row = 2 - kReach + i;  // of the stencil
    int32_t sample = row == 2 ? entry.left : entry.right;
    if constexpr (kReach > 0) {
      if (row < 2 || row > 3) sample = entry.around[row < 2 ? row : row - 2];
    }
    load<T>(stepped(from, sample, stride), x[i]);
  }
  CurveWeights<float> c{.along = entry.weight};
  if constexpr (Method::kWeighs) c = entry.weights;
  const int before = kInside ? kReach : before_of(entry.kind);
  const int after = kInside ? kReach : after_of(entry.kind);
  mix_features<Method>(c, before, after, x, kVector, y);
  return packed<T, kVector>(y);
}

// Computes a mixture near an end of the row, where samples that the method reads are missing.
template <class T, class Method>
__device__ __noinline__ Vector<T, 16 / sizeof(T)> vector_at_end(const CurveEntry<Method>& entry, const char* from,
                                                                int32_t stride) {
  return curve_vector<T, Method, false>(entry, from, stride);
}

// A thread keeps its vector of the row and goes from target to target. Several groups of threads work in parallel.
template <class T, class Method>
__device__ void write_tile(const TileCall& call, const char* values, char* out, const CurveEntry<Method>* entries,
                           int32_t count) {
  using V = Vector<T, 16 / sizeof(T)>;
  const TiledSegment& tiled = call.tiled;
  const Lanes& lanes = call.lanes;
  const auto [group, lane] = lane_of_thread(lanes);
  if (group >= lanes.groups) return;
  for (int32_t v = lane; v < tiled.vectors; v += lanes.width) {
    const char* const from = values + v * 16;
    char* const to = out + v * 16;
    for (int32_t i = group; i < count; i += lanes.groups) {
      const CurveEntry<Method>& entry = entries[i];
      V vector;
      if (entry.kind == kind_of_mix(Method::kReach, Method::kReach)) {
        vector = curve_vector<T, Method, true>(entry, from, tiled.value_sample);
      } else if (entry.kind == static_cast<int32_t>(PickKind::kAbsent)) {
        vector = absent_vector<T, 16 / sizeof(T)>();
      } else if (entry.kind == static_cast<int32_t>(PickKind::kOne)) {
        vector = *reinterpret_cast<const V*>(stepped(from, entry.left, tiled.value_sample));
      } else if constexpr (Method::kReach > 0) {
        vector = vector_at_end<T, Method>(entry, from, tiled.value_sample);
      }
      *reinterpret_cast<V*>(stepped(to, i, tiled.out_target)) = vector;
    }
  }
}

template <class T, class Method>
__global__ void __launch_bounds__(kTileThreads, 4) curve_kernel(const __grid_constant__ TileCall call) {
  __shared__ CurveEntry<Method> entries[kTileThreads];
  const TiledSegment& tiled = call.tiled;
  for (int64_t batch = int64_t{blockIdx.y} * call.tiling.rows; batch < call.tiling.batch;
       batch += int64_t{gridDim.y} * call.tiling.rows) {
    const Tile tile = tile_at(call.tiling, blockIdx.x, batch);
    with_clock(tiled.segment.clock_dtype, [&](auto time) {
      using Clock = decltype(time);
      look_up<false, Clock>(call.tiling, tiled, tile, [&](int32_t i, const Lookup<Clock>& lookup) {
        fill_entry<Method>(tiled, tile, lookup, entries[i]);
      });
    });
    __syncthreads();
    const char* const values = static_cast<const char*>(tiled.values) + batch * tiled.values_batch * int64_t{sizeof(T)};
    char* const out = static_cast<char*>(tiled.out) + batch * tiled.out_batch * int64_t{sizeof(T)};
    write_tile<T, Method>(call, values, stepped(out, tile.first, tiled.out_target), entries, tile.count);
    __syncthreads();
  }
}

template <class T>
cudaError_t launch_method(const TileCall& single, cudaStream_t stream) {
  return with_method(single.tiled.segment.method, [&](auto method) -> cudaError_t {
    using Method = decltype(method);
    if constexpr (kIsStraight<Method> || Method::kSlopes) {
      return cudaErrorInvalidValue;  // choose_way never chooses this
    } else {
      return launch_overlapped(curve_kernel<T, Method>, grid_of(single.tiling), kTileThreads, window_bytes(single),
                               stream, single);
    }
  });
}

}  // namespace

cudaError_t launch_curve(const Interpolation& call, int64_t blocks_at_once, cudaStream_t stream) {
  const TileCall single = tile_call(call, call.segments[0], blocks_at_once, kTileThreads);
  return with_floating(call.segments[0].value_dtype, [&](auto element) -> cudaError_t {
    if constexpr (std::is_same_v<WorkType<decltype(element)>, float>) {
      return launch_method<decltype(element)>(single, stream);
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

}  // namespace robocache::interpolation_cuda
