#include <cuda_pipeline_primitives.h>

#include "robocache/interpolation/curve.hpp"
#include "robocache/interpolation/interpolate_tile.cuh"

namespace robocache::interpolation_cuda {
namespace {

// A block is a tile of one row's targets: each thread makes what a target takes, then all write vectors of 16 bytes of any
// target. The arithmetic of an element is the most of it, so what else there is to do has few instructions: nearly every
// target has all the samples its method looks at around it, and the others stand apart.
using M = InterpolationMethod;

// ---- What a target takes, in shared memory ----------------------------------------------------------------------------

// `kind` of a mixture says too how many samples there are before and after.
constexpr int32_t kind_of_mix(int before, int after) {
  return static_cast<int32_t>(PickKind::kMix) | before << 8 | after << 16;
}
__device__ int before_of(int32_t kind) { return kind >> 8 & 0xff; }
__device__ int after_of(int32_t kind) { return kind >> 16; }

struct LocalEntry : TileEntry<float> {
  int32_t around[4];  // rows 0, 1, 4 and 5 of the stencil
  CurveWeights<float> weights;

  __device__ void set(const Stencil<int32_t>& stencil, const CurveWeights<float>& w) {
    for (int i = 0; i < 4; ++i) around[i] = stencil.rows[i < 2 ? i : i + 2];
    weights = w;
    kind = kind_of_mix(stencil.before, stencil.after);
  }
};

template <M kMethod>
using CurveEntry = std::conditional_t<kMethod == M::kSlerp, TileEntry<float>, LocalEntry>;

// By the general rule, on the row itself.
template <M kMethod, class Clock>
__device__ __noinline__ void set_from_row(const Clock* row, int32_t n, Pick<float, int32_t> picked,
                                          CurveEntry<kMethod>& entry) {
  const ClockRow<Clock> times{row, 1};
  const auto stencil = stencil_around(times, n, picked.left, picked.right, stencil_reach(kMethod));
  entry.set(stencil, weights_around(kMethod, times, n, stencil, picked.weight));
}

// Nearly always the samples around the target's own are in the window, each of a time of its own.
template <M kMethod, class Clock>
__device__ void set_curve(const Lookup<Clock>& at, const Pick<float, int32_t>& picked, CurveEntry<kMethod>& entry) {
  constexpr int kReach = kMethod == M::kAkima ? 2 : 1;
  const int32_t low = picked.left - at.place.begin;
  if (picked.right == picked.left + 1 && low >= kReach && low + kReach + 2 < at.place.size) {
    Clock t[2 * kReach + 3];  // one more, which says that the last is of another time
    bool apart = true;
#pragma unroll
    for (int i = 0; i < 2 * kReach + 3; ++i) {
      t[i] = at.window[low - kReach + i];
      if (i > 0) apart = apart & !(t[i] == t[i - 1]);
    }
    if (apart) {
      Stencil<int32_t> stencil{{0, 0, 0, 0, 0, 0}, kReach, kReach};
      double gaps[5] = {};
#pragma unroll
      for (int i = 2 - kReach; i <= 3 + kReach; ++i) stencil.rows[i] = picked.left + i - 2;
#pragma unroll
      for (int i = 2 - kReach; i <= 2 + kReach; ++i) {
        gaps[i] = static_cast<double>(later_minus_earlier(t[i - 1 + kReach], t[i - 2 + kReach]));
      }
      entry.set(stencil, curve_weights<float>(kMethod, static_cast<double>(picked.weight), gaps, 0.0, kReach, kReach));
      return;
    }
  }
  set_from_row<kMethod>(at.row, at.n, picked, entry);
}

template <M kMethod, class Clock>
__device__ void find(const TiledSegment& of, const Tile& tile, const Lookup<Clock>& at, CurveEntry<kMethod>& entry) {
  const Pick<float, int32_t> picked = pick_from_window<false, float>(of, at);
  write_valid(of, tile, at, picked.valid);
  const int32_t row = at.r * of.samples;
  if (kMethod != M::kSlerp && picked.kind == PickKind::kMix) {
    if constexpr (kMethod != M::kSlerp) {
      set_curve<kMethod>(at, picked, entry);
      for (int32_t& other : entry.around) other += row;
    }
  } else {
    entry.weight = picked.weight;
    entry.kind = static_cast<int32_t>(picked.kind);
  }
  entry.left = row + picked.left;
  entry.right = row + picked.right;
}

// ---- Features ---------------------------------------------------------------------------------------------------------

template <class T, int kVector>
__device__ void load(const char* from, float (&x)[kVector]) {
  unpack(*reinterpret_cast<const Vector<T, kVector>*>(from), x);
}

// A mixture; kInside where all samples that the method looks at exist.
template <class T, M kMethod, bool kInside>
__device__ Vector<T, 16 / sizeof(T)> curve_vector(const CurveEntry<kMethod>& entry, const char* from, int32_t stride) {
  constexpr int kVector = 16 / sizeof(T);
  const CurveWeights<float> c = entry.weights;
  float y1[kVector], y2[kVector], y3[kVector], y4[kVector], y[kVector];
  load<T>(stepped(from, entry.left, stride), y2);
  load<T>(stepped(from, entry.right, stride), y3);
  if constexpr (kMethod == M::kPchip) {
    load<T>(stepped(from, entry.around[1], stride), y1);
    load<T>(stepped(from, entry.around[2], stride), y4);
    const int before = kInside ? 1 : before_of(entry.kind);
    const int after = kInside ? 1 : after_of(entry.kind);
#pragma unroll
    for (int e = 0; e < kVector; ++e) y[e] = pchip_at(c, before, after, y1[e], y2[e], y3[e], y4[e]);
  } else {
    float y0[kVector], y5[kVector];
    load<T>(stepped(from, entry.around[0], stride), y0);
    load<T>(stepped(from, entry.around[1], stride), y1);
    load<T>(stepped(from, entry.around[2], stride), y4);
    load<T>(stepped(from, entry.around[3], stride), y5);
    const int before = kInside ? 2 : before_of(entry.kind);
    const int after = kInside ? 2 : after_of(entry.kind);
#pragma unroll
    for (int e = 0; e < kVector; ++e) y[e] = akima_at(c, before, after, y0[e], y1[e], y2[e], y3[e], y4[e], y5[e]);
  }
  return packed<T, kVector>(y);
}

template <class T, M kMethod>
__device__ __noinline__ Vector<T, 16 / sizeof(T)> vector_at_end(const CurveEntry<kMethod>& entry, const char* from,
                                                                int32_t stride) {
  return curve_vector<T, kMethod, false>(entry, from, stride);
}

template <class T>
__device__ Vector<T, 16 / sizeof(T)> slerp_vector(const TileEntry<float>& entry, const char* from, int32_t stride) {
  constexpr int kVector = 16 / sizeof(T);
  float a[kVector], b[kVector], y[kVector];
  load<T>(stepped(from, entry.left, stride), a);
  load<T>(stepped(from, entry.right, stride), b);
  slerps(a, b, entry.weight, y);
  return packed<T, kVector>(y);
}

// A thread keeps its place in the rows and goes from target to target, `groups` of them abreast.
template <class T, M kMethod>
__device__ void write_tile(const TileCall& call, const char* values, char* out, const CurveEntry<kMethod>* entries,
                           int32_t count) {
  using V = Vector<T, 16 / sizeof(T)>;
  constexpr int kReach = kMethod == M::kAkima ? 2 : kMethod == M::kPchip ? 1 : 0;
  const TiledSegment& of = call.of;
  const Lanes& lanes = call.lanes;
  const auto [group, lane] = place_in(lanes);
  if (group >= lanes.groups) return;
  for (int32_t v = lane; v < of.vectors; v += lanes.width) {
    const char* const from = values + v * 16;
    char* const to = out + v * 16;
    for (int32_t i = group; i < count; i += lanes.groups) {
      const CurveEntry<kMethod>& entry = entries[i];
      V made;
      if (entry.kind == kind_of_mix(kReach, kReach)) {
        if constexpr (kMethod == M::kSlerp) {
          made = slerp_vector<T>(entry, from, of.value_sample);
        } else {
          made = curve_vector<T, kMethod, true>(entry, from, of.value_sample);
        }
      } else if (entry.kind == static_cast<int32_t>(PickKind::kAbsent)) {
        made = absent_vector<T, 16 / sizeof(T)>();
      } else if (entry.kind == static_cast<int32_t>(PickKind::kOne)) {
        made = *reinterpret_cast<const V*>(stepped(from, entry.left, of.value_sample));
      } else if constexpr (kMethod != M::kSlerp) {
        made = vector_at_end<T, kMethod>(entry, from, of.value_sample);
      }
      *reinterpret_cast<V*>(stepped(to, i, of.out_target)) = made;
    }
  }
}

template <class T, M kMethod>
__global__ void __launch_bounds__(kTileThreads, 4) curve_kernel(const __grid_constant__ TileCall call) {
  __shared__ CurveEntry<kMethod> entries[kTileThreads];
  const TiledSegment& of = call.of;
  for (int64_t batch = int64_t{blockIdx.y} * call.cut.rows; batch < call.cut.batch;
       batch += int64_t{gridDim.y} * call.cut.rows) {
    const Tile tile = tile_at(call.cut, blockIdx.x, batch);
    with_clock(of.segment.clock_dtype, [&](auto time) {
      using Clock = decltype(time);
      look_up<false, Clock>(call.cut, of, tile,
                            [&](int32_t i, const Lookup<Clock>& at) { find<kMethod>(of, tile, at, entries[i]); });
    });
    __syncthreads();
    const char* const values = static_cast<const char*>(of.values) + batch * of.values_batch * int64_t{sizeof(T)};
    char* const out = static_cast<char*>(of.out) + batch * of.out_batch * int64_t{sizeof(T)};
    write_tile<T, kMethod>(call, values, stepped(out, tile.first, of.out_target), entries, tile.count);
    __syncthreads();
  }
}

template <class T>
cudaError_t launch_method(const TileCall& one, cudaStream_t stream) {
  const dim3 grid = grid_of(one.cut);
  switch (one.of.segment.method) {
    case M::kPchip:
      return launch_overlapped(curve_kernel<T, M::kPchip>, grid, kTileThreads, window_bytes(one), stream, one);
    case M::kAkima:
      return launch_overlapped(curve_kernel<T, M::kAkima>, grid, kTileThreads, window_bytes(one), stream, one);
    case M::kSlerp:
      return launch_overlapped(curve_kernel<T, M::kSlerp>, grid, kTileThreads, window_bytes(one), stream, one);
    case M::kLinear:
    case M::kNearest:
    case M::kPrevious:
    case M::kNext:
    case M::kCubic:
    case M::kAngle:
    case M::kPose:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t launch_curve(const Interpolation& call, int64_t blocks_at_once, cudaStream_t stream) {
  const TileCall one = tile_call(call, call.segments[0], blocks_at_once, kTileThreads);
  return with_floating(call.segments[0].value_dtype, [&](auto element) -> cudaError_t {
    if constexpr (std::is_same_v<WorkType<decltype(element)>, float>) {
      return launch_method<decltype(element)>(one, stream);
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

}  // namespace robocache::interpolation_cuda
