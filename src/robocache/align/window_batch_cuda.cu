#include <cuda_runtime.h>

#include "robocache/align/window_math.hpp"
#include "robocache/align/window_params.hpp"
#include "robocache/core/launch_cuda.cuh"

namespace robocache {
namespace {

constexpr int kThreads = 128;

struct Entry {
  int64_t left;  // rows in the stream
  int64_t right;
  double weight;  // holds a float weight exactly
  PickKind kind;
};

template <class T, int kVector>
struct alignas(sizeof(T) * kVector <= 16 ? sizeof(T) * kVector : 16) Vector {
  T x[kVector];
};

template <class In, class Out, int kVector>
__device__ void write_item(const WindowSegment& s, const Entry& entry, int64_t v, Out* out) {
  using Work = WorkType<In>;
  const int64_t d = v * kVector;
  const auto* values = static_cast<const In*>(s.values) + d;
  const auto a = *reinterpret_cast<const Vector<In, kVector>*>(values + entry.left * s.features);
  const auto b = *reinterpret_cast<const Vector<In, kVector>*>(values + entry.right * s.features);
  Vector<Out, kVector> y;
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    y.x[e] = window_value<Out>(a.x[e], b.x[e], static_cast<Work>(entry.weight), entry.kind == PickKind::kMix,
                               static_cast<const Work*>(s.scale), static_cast<const Work*>(s.shift), d + e);
  }
  *reinterpret_cast<Vector<Out, kVector>*>(out + d) = y;
}

template <class In, class Out>
__device__ void write_vector(const WindowSegment& s, const Entry& entry, int64_t step, int64_t v, char* out) {
  Out* const row = reinterpret_cast<Out*>(out) + step * s.features;
  if (s.vector == 4) {
    write_item<In, Out, 4>(s, entry, v, row);
  } else if (s.vector == 2) {
    write_item<In, Out, 2>(s, entry, v, row);
  } else {
    write_item<In, Out, 1>(s, entry, v, row);
  }
}

template <class In>
__device__ void write_float(const WindowSegment& s, const Entry& entry, int64_t step, int64_t v, char* out) {
  switch (s.out_dtype) {
    case DType::kFloat64:
      return write_vector<In, double>(s, entry, step, v, out);
    case DType::kFloat32:
      return write_vector<In, float>(s, entry, step, v, out);
    case DType::kFloat16:
      return write_vector<In, Float16>(s, entry, step, v, out);
    default:
      return write_vector<In, BFloat16>(s, entry, step, v, out);
  }
}

// Integers and bool are copied as they are, one element an item.
template <class T>
__device__ void write_copy(const WindowSegment& s, const Entry& entry, int64_t step, int64_t v, char* out) {
  reinterpret_cast<T*>(out)[step * s.features + v] = static_cast<const T*>(s.values)[entry.left * s.features + v];
}

__device__ void write_absent(const WindowSegment& s, int64_t step, int64_t v, char* out) {
  const int64_t bytes = s.vector * dtype_size(s.out_dtype);
  char* const at = out + (step * (s.features / s.vector) + v) * bytes;
  for (int64_t i = 0; i < bytes; ++i) at[i] = 0;
}

__device__ void write(const WindowSegment& s, const Entry& entry, int64_t step, int64_t v, char* out) {
  if (entry.kind == PickKind::kAbsent) return write_absent(s, step, v, out);
  switch (s.value_dtype) {
    case DType::kFloat64:
      return write_float<double>(s, entry, step, v, out);
    case DType::kFloat32:
      return write_float<float>(s, entry, step, v, out);
    case DType::kFloat16:
      return write_float<Float16>(s, entry, step, v, out);
    case DType::kBFloat16:
      return write_float<BFloat16>(s, entry, step, v, out);
    default:
      break;
  }
  switch (dtype_size(s.value_dtype)) {
    case 1:
      return write_copy<uint8_t>(s, entry, step, v, out);
    case 2:
      return write_copy<uint16_t>(s, entry, step, v, out);
    case 4:
      return write_copy<uint32_t>(s, entry, step, v, out);
    default:
      return write_copy<uint64_t>(s, entry, step, v, out);
  }
}

template <class Work>
__device__ void find(const WindowSegment& s, const EpisodeRows& rows, int64_t target, int64_t snap_ns, bool* is_pad,
                     Entry& entry) {
  int64_t hint = guess_row(rows, target);
  const Pick<Work> picked = pick_step<Work>(s, rows, target, snap_ns, hint);
  entry = {rows.begin + picked.left, rows.begin + picked.right, static_cast<double>(picked.weight), picked.kind};
  *is_pad = !picked.valid;
}

// A block is one sample and one group of segments: a thread finds a step's rows, then writes vectors of any step.
__global__ void __launch_bounds__(kThreads) window_kernel(const __grid_constant__ WindowBatch batch) {
  __shared__ Entry entries[kMaxGroupPicks];
  __shared__ WindowSegment segments[kMaxGroupSegments];
  const WindowPlan& plan = batch.plan;
  const int64_t sample = blockIdx.x;
  const WindowGroup group = plan.groups[blockIdx.y];
  const int segment_count = group.segment_end - group.segment_begin;
  {
    static_assert(sizeof(WindowSegment) % sizeof(uint64_t) == 0);
    const auto* from = reinterpret_cast<const uint64_t*>(plan.segments + group.segment_begin);
    auto* to = reinterpret_cast<uint64_t*>(segments);
    const int words = segment_count * static_cast<int>(sizeof(WindowSegment) / sizeof(uint64_t));
    for (int i = threadIdx.x; i < words; i += kThreads) to[i] = from[i];
  }
  const Anchor anchor = plan.anchors.at(batch.order.at(batch.first_position + sample));
  auto* const memory = static_cast<char*>(batch.memory);
  if (threadIdx.x == 0 && blockIdx.y == 0) {
    reinterpret_cast<int64_t*>(memory + plan.time_offset)[sample] = anchor.time_ns;
    reinterpret_cast<int64_t*>(memory + plan.episode_offset)[sample] = anchor.episode;
  }
  __syncthreads();

  int at = 0;
  for (int i = threadIdx.x; i < group.picks; i += kThreads) {
    while (at + 1 < segment_count && segments[at + 1].pick_begin <= i) ++at;
    const WindowSegment& s = segments[at];
    const int step = i - s.pick_begin;
    const EpisodeRows rows = s.episodes[anchor.episode];
    const int64_t target = anchor.time_ns + s.delta_ns[step];
    auto* is_pad = reinterpret_cast<bool*>(memory + s.pad_offset + sample * s.pad_sample) + step;
    if (s.value_dtype == DType::kFloat64) {
      find<double>(s, rows, target, plan.snap_ns, is_pad, entries[i]);
    } else {
      find<float>(s, rows, target, plan.snap_ns, is_pad, entries[i]);
    }
  }
  __syncthreads();

  at = 0;
  for (int item = threadIdx.x; item < group.items; item += kThreads) {
    while (at + 1 < segment_count && segments[at + 1].item_begin <= item) ++at;
    const WindowSegment& s = segments[at];
    const int vectors = static_cast<int>(s.features) / s.vector;
    const int step = (item - s.item_begin) / vectors;
    const int v = item - s.item_begin - step * vectors;
    write(s, entries[s.pick_begin + step], step, v, memory + s.out_offset + sample * s.out_sample);
  }
}

}  // namespace
}  // namespace robocache

extern "C" __attribute__((visibility("default"))) int robocache_cuda_window_batch(const robocache::WindowBatch* batch,
                                                                                  int32_t device, void* stream) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  const dim3 grid(static_cast<unsigned>(batch->count), static_cast<unsigned>(batch->plan.group_count));
  window_kernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*batch);
  return cudaGetLastError();
}
