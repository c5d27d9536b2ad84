#include "robocache/core/launch_cuda.cuh"
#include "robocache/interpolation/interpolate.hpp"
#include "robocache/interpolation/interpolate_cuda.cuh"

namespace robocache::interpolation_cuda {
namespace {

// Each block handles a tile of one row's targets in one segment. It copies a window of the row's clock to shared
// memory. Each thread finds the samples of one target there, or in the row itself if they are outside the window. Then
// all threads write features of any target.
constexpr int kThreads = 256;
constexpr int kMaxTile = kThreads;
constexpr int64_t kBlocksWanted = 3;  // blocks per multiprocessor

// How a thread moves features: one by one with any stride, one by one if adjacent, or as vectors of 8 or 16 bytes.
enum class Width : uint8_t { kOne, kNeighbour, k8Bytes, k16Bytes };

struct Plan {
  int64_t first_block;
  uint32_t tiles_per_row;
  Window window;
  uint16_t tile;
  Width width;
};

// Passed by value as the kernel's arguments.
template <int kCapacity>
struct AnyCall {
  Interpolation call;
  int64_t blocks;
  Segment segments[kCapacity];
  Plan plans[kCapacity];
};

// ---- The entries of a tile's targets, in shared memory --------------------------------------------------------------

template <class Work>
struct PlainEntry {
  int32_t left, right;
  Work weight;
  PickKind kind;
};

template <class Work>
struct CurveEntry : PlainEntry<Work> {
  uint8_t before, after;
  int32_t around[4];  // rows 0, 1, 4, 5 of the stencil
  CurveWeights<Work> weights;
};

template <bool kCurves, class Work>
using Entry = std::conditional_t<kCurves, CurveEntry<Work>, PlainEntry<Work>>;

// A row's clock, with a copy of one part in shared memory.
template <class Clock>
struct WindowedRow {
  ClockRow<Clock> row;
  const Clock* window;
  int32_t begin, size;

  __device__ Clock operator[](int32_t i) const {
    const int32_t index = i - begin;
    return static_cast<uint32_t>(index) < static_cast<uint32_t>(size) ? window[index] : row[i];
  }
};

// Fills the tile's entries; the whole block calls it.
template <bool kCurves, class Work, class Clock>
__device__ void fill_entries(const Interpolation& call, const Segment& s, const Plan& plan, int64_t batch,
                             int64_t first, int32_t count, Clock* window, Entry<kCurves, Work>* entries) {
  const ClockRow<Clock> row{static_cast<const Clock*>(s.times) + batch * s.times_batch, s.times_sample};
  const auto n = static_cast<int32_t>(row_length(s, batch));
  const auto i = static_cast<int32_t>(threadIdx.x);
  const auto [begin, size] = window_range(plan.window, first, n);
  for (int32_t k = i; k < kMostTimes; k += kThreads) window[k] = k < size ? row[begin + k] : latest<Clock>();
  __syncthreads();
  if (i >= count) return;

  const WindowedRow<Clock> times{row, window, begin, size};
  const int64_t index = first + i;
  const StreamTarget<Clock> target = target_on<Clock>(call, s, batch, index);
  int32_t hint = begin + search<false>(window, kMostTimes, target.time);
  const Pick<Work, int32_t> picked = pick<Work>(times, target.exists ? n : 0, target.time, rule_of<Clock>(s), hint);
  auto& entry = entries[i];
  entry.left = picked.left;
  entry.right = picked.right;
  entry.weight = picked.weight;
  entry.kind = picked.kind;
  if constexpr (kCurves) {
    if (weighs(s.method) && picked.kind == PickKind::kMix) {
      const auto stencil = stencil_around(times, n, picked.left, picked.right, reach_of(s.method));
      entry.before = stencil.before;
      entry.after = stencil.after;
      for (int k = 0; k < 4; ++k) entry.around[k] = stencil.rows[k < 2 ? k : k + 2];
      entry.weights =
          curve_weights<Work>(s.method, spacing_around(times, n, stencil, reach_of(s.method), picked.weight));
    }
  }
  if (s.valid != nullptr) s.valid[batch * s.valid_batch + index * s.valid_target] = picked.valid;
  if (s.age != nullptr) {
    const bool exists = picked.kind != PickKind::kAbsent;
    write_age<Clock>(call, s, batch, index, exists, target.time, exists ? times[picked.left] : Clock{});
  }
}

template <bool kCurves, class Work>
__device__ void fill_entries_by_clock(const Interpolation& call, const Segment& s, const Plan& plan, int64_t batch,
                                      int64_t first, int32_t count, void* window, void* entries) {
  auto* const typed_entries = static_cast<Entry<kCurves, Work>*>(entries);
  with_clock(s.clock_dtype, [&](auto clock) {
    fill_entries<kCurves, Work>(call, s, plan, batch, first, count, static_cast<decltype(clock)*>(window),
                                typed_entries);
  });
}

// ---- Features in and out --------------------------------------------------------------------------------------------

// Loads kCount neighbours at once.
template <class T, int kCountOf, class WorkOf>
struct VectorSource {
  using Work = WorkOf;
  static constexpr int kCount = kCountOf;
  static constexpr bool kVector = true;

  static __device__ void load(const Segment& s, const char* row, int64_t d, Work (&x)[kCount]) {
    unpack(*reinterpret_cast<const Vector<T, kCount>*>(reinterpret_cast<const T*>(row) + d), x);
  }
};

// Loads kCount features one by one, of any type whose work type is Work, with any stride.
template <int kCountOf, class WorkOf>
struct ScalarSource {
  using Work = WorkOf;
  static constexpr int kCount = kCountOf;
  static constexpr bool kVector = false;

  static __device__ Work load_one(DType dtype, const char* row, int64_t index) {
    return with_type(
        dtype, [&](auto element) { return to_work<Work>(reinterpret_cast<const decltype(element)*>(row)[index]); });
  }

  static __device__ void load(const Segment& s, const char* row, int64_t d, Work (&x)[kCount]) {
#pragma unroll
    for (int e = 0; e < kCount; ++e) x[e] = load_one(s.value_dtype, row, (d + e) * s.values_feature);
  }
};

// Stores neighbours in pieces of at most 16 bytes.
template <class Out, int kCount, class Work>
__device__ void store_vector(Out* to, const Work (&y)[kCount]) {
  constexpr int kPiece = kCount * static_cast<int>(sizeof(Out)) <= 16 ? kCount : 16 / static_cast<int>(sizeof(Out));
#pragma unroll
  for (int first = 0; first < kCount; first += kPiece) {
    *reinterpret_cast<Vector<Out, kPiece>*>(to + first) = packed<Out, kPiece>(y + first);
  }
}

template <class Source, class Out>
__device__ void store_as(const Segment& s, char* row, int64_t d, const typename Source::Work (&y)[Source::kCount]) {
  Out* const to = reinterpret_cast<Out*>(row);
  if constexpr (Source::kVector) {
    store_vector(to + d, y);
  } else {
#pragma unroll
    for (int e = 0; e < Source::kCount; ++e) to[(d + e) * s.out_feature] = rounded_once<Out>(y[e]);
  }
}

template <class Source>
__device__ void store(const Segment& s, char* row, int64_t d, const typename Source::Work (&y)[Source::kCount]) {
  with_floating(s.out_dtype, [&](auto element) { store_as<Source, decltype(element)>(s, row, d, y); });
}

// ---- One target's features from d on --------------------------------------------------------------------------------

template <class Source, class Method, class TargetEntry>
__device__ void mix(const Segment& s, const TargetEntry& entry, const char* values, int64_t batch, int64_t d,
                    typename Source::Work (&y)[Source::kCount]) {
  using Work = typename Source::Work;
  constexpr int kReach = Method::kReach;
  constexpr int kSamples = 2 * kReach + 2;
  const int64_t sample_bytes = s.values_sample * dtype_size(s.value_dtype);
  Work x[kRowsOf<Method>][Source::kCount];
#pragma unroll
  for (int i = 0; i < kSamples; ++i) {
    const int row = 2 - kReach + i;  // of the stencil
    int32_t sample = row == 2 ? entry.left : entry.right;
    if constexpr (kReach > 0) {
      if (row < 2 || row > 3) sample = entry.around[row < 2 ? row : row - 2];
    }
    Source::load(s, values + sample * sample_bytes, d, x[i]);
  }
  if constexpr (Method::kSlopes) {
    const Work* const slopes = static_cast<const Work*>(s.slopes) + batch * s.samples * s.features + d;
#pragma unroll
    for (int e = 0; e < Source::kCount; ++e) {
      x[2][e] = slopes[entry.left * s.features + e];
      x[3][e] = slopes[entry.right * s.features + e];
    }
  }
  if constexpr (!Method::kWeighs) {
    mix_features<Method>(CurveWeights<Work>{.along = entry.weight}, 0, 0, x, Source::kCount, y);
  } else if (entry.before == kReach && entry.after == kReach) {  // nearly always; the loop then has no branches
    mix_features<Method>(entry.weights, kReach, kReach, x, Source::kCount, y);
  } else {
    mix_features<Method>(entry.weights, entry.before, entry.after, x, Source::kCount, y);
  }
}

template <class Source, class Method, class TargetEntry>
__device__ void compute(const Segment& s, const TargetEntry& entry, const char* values, int64_t batch, int64_t d,
                        typename Source::Work (&y)[Source::kCount]) {
  using Work = typename Source::Work;
  const int64_t sample_bytes = s.values_sample * dtype_size(s.value_dtype);
  if (entry.kind == PickKind::kAbsent) {
#pragma unroll
    for (int e = 0; e < Source::kCount; ++e) y[e] = is_floating(s.value_dtype) ? absent_value<Work>() : Work(0);
  } else if (entry.kind == PickKind::kOne) {
    Source::load(s, values + entry.left * sample_bytes, d, y);
  } else {
    mix<Source, Method>(s, entry, values, batch, d, y);
  }
}

// Distributes `vectors` items for each target over the block's threads: each calls visit(target, vector).
template <class Visit>
__device__ void for_each_item(int32_t count, int32_t vectors, const Visit& visit) {
  if (vectors == 0) return;
  const int32_t step_i = kThreads / vectors;
  const int32_t step_v = kThreads - step_i * vectors;
  int32_t i = static_cast<int32_t>(threadIdx.x) / vectors;
  int32_t v = static_cast<int32_t>(threadIdx.x) - i * vectors;
  while (i < count) {
    visit(i, v);
    i += step_i;  // advances without a division
    v += step_v;
    if (v >= vectors) {
      v -= vectors;
      ++i;
    }
  }
}

template <class Source, class Method, class TargetEntry>
__device__ void write_features(const Segment& s, int64_t batch, int64_t first, int32_t count,
                               const TargetEntry* entries) {
  using Work = typename Source::Work;
  constexpr int kCount = Source::kCount;
  const char* const values = static_cast<const char*>(s.values) + batch * s.values_batch * dtype_size(s.value_dtype);
  const int64_t target_bytes = s.out_target * dtype_size(s.out_dtype);
  char* const out = static_cast<char*>(s.out) + batch * s.out_batch * dtype_size(s.out_dtype) + first * target_bytes;
  for_each_item(count, static_cast<int32_t>(s.features / kCount), [&](int32_t i, int32_t v) {
    const int64_t d = static_cast<int64_t>(v) * kCount;
    Work y[kCount];
    compute<Source, Method>(s, entries[i], values, batch, d, y);
    if (s.scaled && entries[i].kind != PickKind::kAbsent) {
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        y[e] = multiply_add(y[e], number_of<Work>(s.scale, s.scale_per_feature, d + e),
                            number_of<Work>(s.shift, s.shift_per_feature, d + e));
      }
    }
    store<Source>(s, out + i * target_bytes, d, y);
  });
}

// Copies integers and bool without converting them.
template <class T, class TargetEntry>
__device__ void copy_features(const Segment& s, int64_t batch, int64_t first, int32_t count,
                              const TargetEntry* entries) {
  const T* const values = static_cast<const T*>(s.values) + batch * s.values_batch;
  T* const out = static_cast<T*>(s.out) + batch * s.out_batch + first * s.out_target;
  for_each_item(count, static_cast<int32_t>(s.features), [&](int32_t i, int32_t d) {
    out[i * s.out_target + d * s.out_feature] =
        entries[i].kind == PickKind::kAbsent ? T(0) : values[entries[i].left * s.values_sample + d * s.values_feature];
  });
}

template <class Method, class Work, class TargetEntry>
__device__ void write_by_type(const Segment& s, Width width, int64_t batch, int64_t first, int32_t count,
                              const TargetEntry* entries) {
  constexpr int kTogether = Method::kFeatures;
  constexpr bool kDouble = std::is_same_v<Work, double>;
  if (width == Width::kOne || (kDouble && !kIsStraight<Method>)) {
    return write_features<ScalarSource<kTogether, Work>, Method>(s, batch, first, count, entries);
  }
  const auto write_vectors = [&](auto element) {
    using T = decltype(element);
    constexpr int kSize = sizeof(T);
    if (kDouble || width == Width::k16Bytes) {
      write_features<VectorSource<T, 16 / kSize, Work>, Method>(s, batch, first, count, entries);
    } else if (width == Width::kNeighbour) {
      if constexpr (kTogether == 1) write_features<VectorSource<T, 1, Work>, Method>(s, batch, first, count, entries);
    } else if constexpr (!kDouble && 8 / kSize % kTogether == 0) {  // a vector never holds half a quaternion
      write_features<VectorSource<T, 8 / kSize, Work>, Method>(s, batch, first, count, entries);
    }
  };
  if constexpr (kDouble) {
    if constexpr (kIsStraight<Method>) write_vectors(double{});
  } else if (s.value_dtype == DType::kBFloat16) {
    write_vectors(BFloat16{});
  } else if (s.value_dtype == DType::kFloat32) {
    write_vectors(float{});
  } else if (s.value_dtype == DType::kFloat16) {
    write_vectors(Float16{});
  }
}

template <bool kCurves, class Work>
__device__ void write(const Segment& s, Width width, int64_t batch, int64_t first, int32_t count, const void* shared) {
  const auto* const entries = static_cast<const Entry<kCurves, Work>*>(shared);
  if (!std::is_same_v<Work, double> && !is_floating(s.out_dtype)) {
    switch (dtype_size(s.value_dtype)) {
      case 1:
        return copy_features<uint8_t>(s, batch, first, count, entries);
      case 2:
        return copy_features<uint16_t>(s, batch, first, count, entries);
      case 4:
        return copy_features<uint32_t>(s, batch, first, count, entries);
      case 8:
        return copy_features<uint64_t>(s, batch, first, count, entries);
    }
    __builtin_unreachable();
  }
  const auto write_by = [&](auto method) {
    write_by_type<decltype(method), Work>(s, width, batch, first, count, entries);
  };
  if constexpr (kCurves) {
    with_method(s.method, write_by);
  } else {
    write_by(Linear{});
  }
}

template <int kCapacity, bool kCurves>
__global__ void __launch_bounds__(kThreads, 4) interpolate_any_kernel(const __grid_constant__ AnyCall<kCapacity> any) {
  __shared__ Entry<kCurves, double> entries[kMaxTile];  // or of float, which need less
  __shared__ double window[kMostTimes];                 // times of the clock's type, at most 8 bytes each
  wait_for_work_before();
  for (int64_t block = blockIdx.x; block < any.blocks; block += gridDim.x) {
    int low = 0;
    for (int high = any.call.segment_count; high - low > 1;) {
      const int middle = (low + high) / 2;
      if (any.plans[middle].first_block <= block) {
        low = middle;
      } else {
        high = middle;
      }
    }
    const Segment& s = any.segments[low];
    const Plan& plan = any.plans[low];
    const int64_t block_in_segment = block - plan.first_block;
    // All but the largest calls divide in 32 bits.
    const int64_t batch = block_in_segment <= INT32_MAX ? static_cast<uint32_t>(block_in_segment) / plan.tiles_per_row
                                                        : block_in_segment / plan.tiles_per_row;
    const int64_t first = (block_in_segment - batch * plan.tiles_per_row) * plan.tile;
    const int64_t remaining = any.call.targets_count - first;
    const auto count = static_cast<int32_t>(remaining < plan.tile ? remaining : plan.tile);
    const auto run = [&](auto work) {
      using Work = decltype(work);
      fill_entries_by_clock<kCurves, Work>(any.call, s, plan, batch, first, count, window, entries);
      __syncthreads();
      write<kCurves, Work>(s, plan.width, batch, first, count, entries);
    };
    if (works_in_double(s)) {
      run(double{});
    } else {
      run(float{});
    }
    __syncthreads();
  }
}

// ---- The launch -----------------------------------------------------------------------------------------------------

// Whether vectors of `count` features are aligned in the values and in the output, up to 16 bytes.
bool fits(const Segment& s, int64_t count) {
  const auto is_aligned = [](const void* address, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(std::min<int64_t>(bytes, 16)) == 0;
  };
  const auto is_whole = [](int64_t elements, int64_t size, int64_t bytes) {
    return elements * size % std::min<int64_t>(bytes, 16) == 0;
  };
  const int64_t in = dtype_size(s.value_dtype);
  const int64_t out = dtype_size(s.out_dtype);
  return s.values_feature == 1 && s.out_feature == 1 && s.features % count == 0 && is_aligned(s.values, count * in) &&
         is_whole(s.values_batch, in, count * in) && is_whole(s.values_sample, in, count * in) &&
         is_aligned(s.out, count * out) && is_whole(s.out_batch, out, count * out) &&
         is_whole(s.out_target, out, count * out);
}

Width width_of(const Segment& s) {
  if (!is_floating(s.value_dtype) || s.samples == 0) return Width::kOne;
  const int64_t size = dtype_size(s.value_dtype);
  if (fits(s, 16 / size)) return Width::k16Bytes;
  const int together = features_together(s.method);
  // A vector never holds half a quaternion.
  if (size < 8 && 8 / size % together == 0 && fits(s, 8 / size)) return Width::k8Bytes;
  if (size < 8 && together == 1 && s.values_feature == 1 && s.out_feature == 1) return Width::kNeighbour;
  return Width::kOne;
}

template <int kCapacity>
cudaError_t launch(const Interpolation& call, int device, cudaStream_t stream) {
  const int64_t blocks_wanted = kBlocksWanted * multiprocessors(device);
  AnyCall<kCapacity> any;
  static_assert(sizeof(any) <= 32764, "a kernel's arguments");
  any.call = call;
  any.blocks = 0;
  bool has_curves = false;
  for (int32_t i = 0; i < call.segment_count; ++i) {
    const Segment& s = any.segments[i] = call.segments[i];
    Plan& plan = any.plans[i];
    plan.width = width_of(s);
    has_curves = has_curves || is_curved(s.method);
    // Tiles shrink until every multiprocessor has several, but only while all threads have work.
    const int64_t bytes = plan.width == Width::k16Bytes ? 16 : plan.width == Width::k8Bytes ? 8 : 0;
    const int64_t vectors = bytes == 0 ? s.features : s.features * dtype_size(s.value_dtype) / bytes;
    int64_t tile = kMaxTile;
    const auto tiles_per_row = [&] { return (call.targets_count + tile - 1) / tile; };
    while (tile > 8 && call.batch * tiles_per_row() * call.segment_count < blocks_wanted &&
           tile / 2 * vectors >= kThreads * 2) {
      tile /= 2;
    }
    if (tiles_per_row() > UINT32_MAX) return cudaErrorInvalidValue;
    plan.window = window_of(s.samples, call.targets_count, tile, kMostTimes);
    plan.tile = static_cast<uint16_t>(tile);
    plan.tiles_per_row = static_cast<uint32_t>(tiles_per_row());
    plan.first_block = any.blocks;
    any.blocks += call.batch * tiles_per_row();
  }
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(any.blocks, INT32_MAX));
  return has_curves ? launch_overlapped(interpolate_any_kernel<kCapacity, true>, blocks, kThreads, 0, stream, any)
                    : launch_overlapped(interpolate_any_kernel<kCapacity, false>, blocks, kThreads, 0, stream, any);
}

}  // namespace

cudaError_t launch_any(const Interpolation& call, int device, cudaStream_t stream) {
  if (call.batch == 0 || call.targets_count == 0 || call.segment_count == 0) return cudaSuccess;
  return call.segment_count <= 8 ? launch<8>(call, device, stream) : launch<kMaxSegments>(call, device, stream);
}

}  // namespace robocache::interpolation_cuda
