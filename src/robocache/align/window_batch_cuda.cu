#include <cuda_runtime.h>

#include <type_traits>

#include "robocache/align/window_math.hpp"
#include "robocache/align/window_params.hpp"
#include "robocache/core/launch_cuda.cuh"
#include "robocache/core/with_type.hpp"
#include "robocache/interpolation/angle.hpp"
#include "robocache/interpolation/curve.hpp"
#include "robocache/interpolation/rotation.hpp"

namespace robocache {
namespace {

constexpr int kThreads = 128;

struct PlainEntry {
  int64_t left;  // rows on the clock
  int64_t right;
  double weight;
  PickKind kind;
};

// Of a step that may lie on a curve.
struct CurveEntry : PlainEntry {
  uint8_t before, after;
  int64_t around[4];  // rows 0, 1, 4, 5 of the stencil
  union {             // of the segment's work type
    CurveWeights<float> single_weights;
    CurveWeights<double> double_weights;
  };
};

template <bool kCurves>
using Entry = std::conditional_t<kCurves, CurveEntry, PlainEntry>;

// What a block may have without asking holds the largest group.
constexpr size_t shared_bytes(size_t picks, size_t entry_bytes) {
  return kMaxGroupSegments * (sizeof(WindowSegment) + sizeof(WindowClock)) +
         picks * (sizeof(WindowMoment) + sizeof(WindowSlot) + entry_bytes) + sizeof(uint4);
}
static_assert(shared_bytes(kMaxGroupPicks, sizeof(PlainEntry)) <= 48 << 10);
static_assert(shared_bytes(kMaxGroupCurvePicks, sizeof(CurveEntry)) <= 48 << 10);

template <class T, int kVector>
struct alignas(sizeof(T) * kVector <= 16 ? sizeof(T) * kVector : 16) Vector {
  T x[kVector];
};

template <class In, class Out, int kVector>
__device__ void write_item(const WindowSegment& s, const PlainEntry& entry, int64_t v, Out* out) {
  using Work = WorkType<In>;
  const int64_t d = v * kVector;
  const auto* values = static_cast<const In*>(s.values) + d;
  const auto a = *reinterpret_cast<const Vector<In, kVector>*>(values + entry.left * s.row_features);
  const auto b = *reinterpret_cast<const Vector<In, kVector>*>(values + entry.right * s.row_features);
  const auto* scale = static_cast<const Work*>(s.scale);
  const auto* shift = static_cast<const Work*>(s.shift);
  const auto weight = static_cast<Work>(entry.weight);
  const bool mix = entry.kind == PickKind::kMix;
  Vector<Out, kVector> made;
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    Work y = to_work<Work>(a.x[e]);
    if (mix) y = lerp(y, to_work<Work>(b.x[e]), weight);
    if (scale != nullptr) y = multiply_add(y, scale[d + e], shift[d + e]);
    made.x[e] = rounded_once<Out>(y);
  }
  *reinterpret_cast<Vector<Out, kVector>*>(out + d) = made;
}

template <class In, class Out>
__device__ void write_vector(const WindowSegment& s, const PlainEntry& entry, int64_t step, int64_t v, char* out) {
  Out* const row = reinterpret_cast<Out*>(out) + step * s.step_features;
  if (s.vector == 4) {
    write_item<In, Out, 4>(s, entry, v, row);
  } else if (s.vector == 2) {
    write_item<In, Out, 2>(s, entry, v, row);
  } else {
    write_item<In, Out, 1>(s, entry, v, row);
  }
}

// Integers and bool are copied as they are, one element an item.
template <class T>
__device__ void write_copy(const WindowSegment& s, const PlainEntry& entry, int64_t step, int64_t v, char* out) {
  reinterpret_cast<T*>(out)[step * s.step_features + v] =
      static_cast<const T*>(s.values)[entry.left * s.row_features + v];
}

__device__ void write_absent(const WindowSegment& s, int64_t step, int64_t v, char* out) {
  const int64_t bytes = s.vector * dtype_size(s.out_dtype);
  char* const at = out + step * s.step_features * dtype_size(s.out_dtype) + v * bytes;
  for (int64_t i = 0; i < bytes; ++i) at[i] = 0;
}

__device__ void write(const WindowSegment& s, const PlainEntry& entry, int64_t step, int64_t v, char* out) {
  if (entry.kind == PickKind::kAbsent) return write_absent(s, step, v, out);
  if (is_floating(s.value_dtype)) {
    with_floating(s.value_dtype, [&](auto in) {
      with_floating(s.out_dtype,
                    [&](auto made) { write_vector<decltype(in), decltype(made)>(s, entry, step, v, out); });
    });
    return;
  }
  with_type(s.value_dtype, [&](auto element) { write_copy<decltype(element)>(s, entry, step, v, out); });
}

// ---- curves, angles and rotations: feature by feature, whatever the alignment -------------------------------------------

template <class Work>
__device__ Work load(const WindowSegment& s, int64_t row, int64_t d) {
  return with_floating(s.value_dtype, [&](auto element) {
    return to_work<Work>(static_cast<const decltype(element)*>(s.values)[row * s.row_features + d]);
  });
}

template <class Work>
__device__ void store(const WindowSegment& s, int64_t step, int64_t d, Work y, char* out) {
  if (s.scale != nullptr) {
    y = multiply_add(y, static_cast<const Work*>(s.scale)[d], static_cast<const Work*>(s.shift)[d]);
  }
  with_floating(s.out_dtype, [&](auto element) {
    reinterpret_cast<decltype(element)*>(out)[step * s.step_features + d] = rounded_once<decltype(element)>(y);
  });
}

template <class Work>
__device__ CurveWeights<Work>& weights_of(CurveEntry& entry) {
  if constexpr (std::is_same_v<Work, double>) {
    return entry.double_weights;
  } else {
    return entry.single_weights;
  }
}

template <class Work>
__device__ void write_curve(const WindowSegment& s, CurveEntry& entry, int64_t step, int64_t v, char* out) {
  const int64_t d = v * s.vector;
  const auto w = static_cast<Work>(entry.weight);
  const int64_t left = entry.left;
  const int64_t right = entry.right;
  if (entry.kind == PickKind::kOne) {
    for (int32_t e = 0; e < s.vector; ++e) store(s, step, d + e, load<Work>(s, left, d + e), out);
    return;
  }
  const CurveWeights<Work>& c = weights_of<Work>(entry);
  switch (s.method) {
    case InterpolationMethod::kPchip:
      return store(s, step, d,
                   pchip_at(c, entry.before, entry.after, load<Work>(s, entry.around[1], d), load<Work>(s, left, d),
                            load<Work>(s, right, d), load<Work>(s, entry.around[2], d)),
                   out);
    case InterpolationMethod::kAkima:
      return store(s, step, d,
                   akima_at(c, entry.before, entry.after, load<Work>(s, entry.around[0], d),
                            load<Work>(s, entry.around[1], d), load<Work>(s, left, d), load<Work>(s, right, d),
                            load<Work>(s, entry.around[2], d), load<Work>(s, entry.around[3], d)),
                   out);
    case InterpolationMethod::kAngle:
      return store(s, step, d, angle_at(load<Work>(s, left, d), load<Work>(s, right, d), w), out);
    case InterpolationMethod::kSlerp: {
      Work from[4];
      Work to[4];
      Work turned[4];
      for (int e = 0; e < 4; ++e) {
        from[e] = load<Work>(s, left, d + e);
        to[e] = load<Work>(s, right, d + e);
      }
      slerp(from, to, w, 1 - w, turned);
      for (int e = 0; e < 4; ++e) store(s, step, d + e, turned[e], out);
      return;
    }
    case InterpolationMethod::kLinear:  // not curved
    case InterpolationMethod::kNearest:
    case InterpolationMethod::kPrevious:
    case InterpolationMethod::kNext:
    case InterpolationMethod::kCubic:  // no segment's
    case InterpolationMethod::kPose:
      __trap();
  }
}

// ---- the kernel --------------------------------------------------------------------------------------------------------

// What a step takes at a place on its clock, and, into its entry, what its curve needs of the times.
template <bool kCurves>
__device__ Pick<double> enter(const WindowSegment& s, const ClockRow<int64_t>& times, const EpisodeRows& rows,
                              const WindowPlace& place, Entry<kCurves>& entry) {
  Pick<double> picked{0, 0, 0, PickKind::kAbsent, false};
  if (rows.rows > 0) picked = pick_at(times, rows.rows, place, s);
  entry.left = rows.begin + picked.left;
  entry.right = rows.begin + picked.right;
  entry.weight = picked.weight;
  entry.kind = picked.kind;
  if constexpr (kCurves) {
    const int reach = stencil_reach(s.method);
    if (reach == 0 || picked.kind != PickKind::kMix) return picked;
    const auto stencil = stencil_around(times, rows.rows, picked.left, picked.right, reach);
    entry.before = stencil.before;
    entry.after = stencil.after;
    entry.around[0] = rows.begin + stencil.rows[0];
    entry.around[1] = rows.begin + stencil.rows[1];
    entry.around[2] = rows.begin + stencil.rows[4];
    entry.around[3] = rows.begin + stencil.rows[5];
    if (s.value_dtype == DType::kFloat64) {
      entry.double_weights = weights_around<double>(s.method, times, rows.rows, stencil, picked.weight);
    } else {
      const auto w = static_cast<float>(picked.weight);
      entry.single_weights = weights_around<float>(s.method, times, rows.rows, stencil, w);
    }
  }
  return picked;
}

// A block is one sample and one group of segments: a thread finds a moment's place on its clock and what the steps there
// take, then writes vectors of any step.
template <bool kCurves>
__global__ void __launch_bounds__(kThreads, kCurves ? 4 : 10) window_kernel(const __grid_constant__ WindowBatch batch) {
  extern __shared__ uint4 shared[];  // the group's tables, then an entry for each of its picks
  const WindowPlan& plan = batch.plan;
  const int64_t sample = blockIdx.x;
  const Draw draw = batch.draw(sample);
  const WindowSource& source = plan.sources == nullptr ? plan.first : plan.sources[draw.source];
  if (blockIdx.y >= static_cast<unsigned>(source.group_count)) return;
  const WindowGroup group = source.groups[blockIdx.y];
  const int table_vectors = group.table_bytes / static_cast<int>(sizeof(uint4));
  for (int i = threadIdx.x; i < table_vectors; i += kThreads) shared[i] = static_cast<const uint4*>(group.tables)[i];
  const WindowTables tables = tables_of(group, shared);
  auto* const entries = reinterpret_cast<Entry<kCurves>*>(shared + table_vectors);
  const Anchor anchor = source.anchors.at(draw.anchor);
  auto* const memory = static_cast<char*>(batch.memory);
  if (blockIdx.y == 0) {
    if (threadIdx.x == 0) {
      reinterpret_cast<int64_t*>(memory + plan.time_offset)[sample] = anchor.time_ns;
      reinterpret_cast<int64_t*>(memory + plan.episode_offset)[sample] = anchor.episode;
    }
    for (int32_t i = 0; i < source.constant_count; ++i) {
      const WindowConstant constant = source.constants[i];
      char* const to = memory + constant.out_offset + sample * constant.size;
      for (int64_t byte = threadIdx.x; byte < constant.size; byte += kThreads) {
        to[byte] = static_cast<const char*>(constant.bytes)[byte];
      }
    }
  }
  __syncthreads();

  int at = 0;
  for (int i = threadIdx.x; i < group.moment_count; i += kThreads) {
    const WindowMoment moment = tables.moments[i];
    while (at + 1 < group.clock_count && tables.clocks[at + 1].moment_begin <= i) ++at;
    const EpisodeRows rows = tables.clocks[at].rows.rows_of(anchor.episode);
    const ClockRow<int64_t> times{tables.clocks[at].rows.time_ns + rows.begin, 1};
    const int64_t target = saturating_add(anchor.time_ns, moment.delta_ns);
    WindowPlace place{};
    if (rows.rows > 0) {
      int64_t hint = guess_row(rows, target);
      place = find_place(times, rows.rows, target, plan.snap_ns, hint);
    }
    for (int slot = moment.slot_begin; slot < moment.slot_end; ++slot) {
      const WindowSlot step = tables.slots[slot];
      const WindowSegment& s = tables.segments[step.segment];
      const Pick<double> picked = enter<kCurves>(s, times, rows, place, entries[step.pick]);
      const int64_t mask = sample * s.mask_steps + step.step;
      if (s.pad_offset >= 0) reinterpret_cast<bool*>(memory + s.pad_offset)[mask] = !picked.valid;
      if (s.age_offset >= 0) reinterpret_cast<int64_t*>(memory + s.age_offset)[mask] = age_of(times, picked, target);
    }
  }
  __syncthreads();

  at = 0;
  for (int item = threadIdx.x; item < group.items; item += kThreads) {
    while (at + 1 < group.segment_count && tables.segments[at + 1].item_begin <= item) ++at;
    const WindowSegment& s = tables.segments[at];
    const int vectors = static_cast<int>(s.features) / s.vector;
    const int step = (item - s.item_begin) / vectors;
    const int v = item - s.item_begin - step * vectors;
    char* const out = memory + s.out_offset + sample * s.out_sample;
    auto& entry = entries[s.pick_begin + step];
    if constexpr (kCurves) {
      if (is_curved(s.method) && entry.kind != PickKind::kAbsent) {
        if (s.value_dtype == DType::kFloat64) {
          write_curve<double>(s, entry, step, v, out);
        } else {
          write_curve<float>(s, entry, step, v, out);
        }
        continue;
      }
    }
    write(s, entry, step, v, out);
  }
}

}  // namespace
}  // namespace robocache

extern "C" __attribute__((visibility("default"))) int robocache_cuda_window_batch(const robocache::WindowBatch* batch,
                                                                                  int32_t device, void* stream) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  const auto launch = [&](auto* kernel, size_t entry_bytes) {
    const WindowPlan& plan = batch->plan;
    const dim3 grid(static_cast<unsigned>(batch->count), static_cast<unsigned>(plan.group_count));
    const size_t shared =
        static_cast<size_t>(plan.most_table_bytes) + static_cast<size_t>(plan.most_picks) * entry_bytes;
    kernel<<<grid, kThreads, shared, static_cast<cudaStream_t>(stream)>>>(*batch);
  };
  if (batch->plan.curved) {
    launch(window_kernel<true>, sizeof(CurveEntry));
  } else {
    launch(window_kernel<false>, sizeof(PlainEntry));
  }
  return cudaGetLastError();
}
