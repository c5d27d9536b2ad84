#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "robocache/actions/convert_math.hpp"
#include "robocache/align/window_math.hpp"
#include "robocache/align/window_params.hpp"
#include "robocache/core/launch_cuda.cuh"
#include "robocache/core/with_type.hpp"
#include "robocache/interpolation/methods.hpp"

namespace robocache {
namespace {

constexpr int kThreads = 128;
constexpr int kMostDoublings = 2;                           // a block fills 1, 2 or 4 samples at once
constexpr int kDrawLanes = kTileVectors >> kMostDoublings;  // draw a sample together
constexpr unsigned kWarp = 0xffffffff;                      // all lanes

// The conversions that a kernel can do: none; the subtraction of a base by segments; or all.
enum class Converts { kNothing, kBases, kAll };

// Blocks on a multiprocessor. Curves and conversions need the registers that more blocks would take.
template <bool kCurves, Converts kConverts>
constexpr int kBlocks = kCurves || kConverts == Converts::kAll ? 4 : 8;

// Tables, rows and batches are in global memory. The compiler cannot know this for addresses that it loads from them.
template <class T>
__device__ T* in_global(T* address) {
  __builtin_assume(__isGlobal(address));
  return address;
}

// The rows that a step uses: the address of one row's first feature in the segment, and the distance in bytes to a
// second row, to mix with it.
struct alignas(16) PlainEntry {
  const char* left;  // null if there is no row
  int64_t apart;     // 0: only the one row
  union {            // the other row's weight in the segment's work type, or kOneRow, or kNoRow
    float single_weight;
    double double_weight;
  };
  bool padded;       // the step is padding; set only if the kernel converts
  uint16_t segment;  // of the step, in its group; set only if the kernel does all conversions
};
constexpr int kOneRow = -1;
constexpr int kNoRow = -2;

// The same for a step whose values may lie on a curve.
struct CurveEntry : PlainEntry {
  uint8_t before, after;
  const char* around[4];  // rows 0, 1, 4, 5 of the stencil
  union {                 // in the segment's work type
    CurveWeights<float> single_weights;
    CurveWeights<double> double_weights;
  };
};

template <bool kCurves>
using Entry = std::conditional_t<kCurves, CurveEntry, PlainEntry>;

// The shared memory that a block has by default holds the picks of a sample.
constexpr size_t kMostShared = 40 << 10;
constexpr int64_t kMostPrefetched = 512;  // bytes of a row
// The reciprocal of a group's number of moments is moment_share / kShareOne. Division by it is exact for the few
// samples of a block.
constexpr unsigned kShareOne = 1 << 20;
static_assert(kMaxGroupPicks * kMaxGroupPicks * 2 < static_cast<int>(kShareOne));
static_assert(kMaxGroupPicks * sizeof(PlainEntry) <= kMostShared);
static_assert(kMaxGroupCurvePicks * sizeof(CurveEntry) <= kMostShared);

// ---- One row, or a straight mixture of two --------------------------------------------------------------------------

template <class T, int kVector>
struct alignas(sizeof(T) * kVector <= 16 ? sizeof(T) * kVector : 16) Vector {
  T x[kVector];
};

// The steps of a strip in which a lane writes vector `v`: first, first + stride, ...
struct LaneSteps {
  int first;
  int stride;
  int v;
};

template <class Work>
__device__ Work weight_of(const PlainEntry& entry) {
  if constexpr (std::is_same_v<Work, double>) {
    return entry.double_weight;
  } else {
    return entry.single_weight;
  }
}

// Rounds two numbers at once if there is an instruction for it.
template <class Out, class Work, int kVector>
__device__ void round_all(const Work (&y)[kVector], Vector<Out, kVector>& result) {
  if constexpr (std::is_same_v<Work, float> && kVector % 2 == 0 &&
                (std::is_same_v<Out, BFloat16> || std::is_same_v<Out, Float16>)) {
#pragma unroll
    for (int e = 0; e < kVector; e += 2) {
      uint32_t pair;
      if constexpr (std::is_same_v<Out, BFloat16>) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y[e + 1]), "f"(y[e]));
      } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y[e + 1]), "f"(y[e]));
      }
      reinterpret_cast<uint32_t*>(result.x)[e / 2] = pair;
    }
  } else {
#pragma unroll
    for (int e = 0; e < kVector; ++e) result.x[e] = rounded_once<Out>(y[e]);
  }
}

// The base that a lane subtracts from its vector at each step.
struct Base {
  float x[4];
  bool is_used;    // whether there is a base
  bool is_absent;  // the base has no row: no step has a value
};

// Writes a lane's vector of its steps; copies integers and bool. A lane loads the float32 values of several steps
// before it needs the first. kSpecial: WindowPlan::special.
template <bool kSpecial, class In, class Out, int kVector, class Entry>
__device__ void write_steps(const WindowSegment& s, const Entry* entries, const LaneSteps& steps, const Base* base,
                            char* out) {
  constexpr bool kCopy = std::is_void_v<WorkType<In>>;
  constexpr int kTogether = !std::is_same_v<In, float> ? 1 : kVector == 4 ? 2 : 4;
  using Work = std::conditional_t<kCopy, In, WorkType<In>>;
  using Row = Vector<In, kVector>;
  const int64_t d = int64_t{steps.v} * kVector;
  Vector<Work, kVector> scale{};
  Vector<Work, kVector> shift{};
  const bool has_scale = !kCopy && s.scale != nullptr;
  const auto load_affine = [&](int step) {
    const int64_t offset_in_scale = (kSpecial ? step * s.scale_step : 0) + d;
    scale =
        *reinterpret_cast<const Vector<Work, kVector>*>(in_global(static_cast<const Work*>(s.scale)) + offset_in_scale);
    shift =
        *reinterpret_cast<const Vector<Work, kVector>*>(in_global(static_cast<const Work*>(s.shift)) + offset_in_scale);
  };
  const bool per_step = kSpecial && !kCopy && s.scale_step != 0;
  if (has_scale) load_affine(steps.first);
  const int64_t offset = d * static_cast<int64_t>(sizeof(In));
  const int64_t stride_bytes = steps.stride * s.step_bytes;
  char* to = out + steps.first * s.step_bytes + d * static_cast<int64_t>(sizeof(Out));
  const int end = min(s.steps, steps.first + kStripTiles * steps.stride);
#pragma unroll 1
  for (int step = steps.first; step < end; step += kTogether * steps.stride) {
    Row a[kTogether]{};
    Row b[kTogether]{};
    Work weights[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const bool is_step = step + i * steps.stride < end;
      const PlainEntry entry = entries[is_step ? step + i * steps.stride : step];
      if constexpr (!kCopy) weights[i] = weight_of<Work>(entry);
      if (entry.left != nullptr) a[i] = *reinterpret_cast<const Row*>(in_global(entry.left) + offset);
      if (!kCopy && entry.apart != 0) {
        b[i] = *reinterpret_cast<const Row*>(in_global(entry.left) + offset + entry.apart);
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      Vector<Out, kVector> result{};
      if constexpr (kCopy) {
        result = a[i];
      } else {
        // There is no branch, and only the weight decides, so no load waits for the values of earlier steps.
        const Work weight = weights[i];
        Work y[kVector];
        if (per_step) load_affine(min(step + i * steps.stride, end - 1));
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
          y[e] = to_work<Work>(a[i].x[e]);
          if (weight >= 0) y[e] = lerp(y[e], to_work<Work>(b[i].x[e]), weight);
          if (base != nullptr && base->is_used) y[e] = y[e] - static_cast<Work>(base->x[e]);
          if (has_scale) y[e] = multiply_add(y[e], scale.x[e], shift.x[e]);
          if (kSpecial && s.clip) y[e] = clipped(y[e]);
          if (weight == kNoRow || (base != nullptr && base->is_absent)) y[e] = 0;
        }
        round_all<Out>(y, result);
      }
      if (step + i * steps.stride < end) *reinterpret_cast<Vector<Out, kVector>*>(to) = result;
      to += stride_bytes;
    }
  }
}

template <bool kSpecial, class In, class Out, class Entry>
__device__ void write_vectors(const WindowSegment& s, const Entry* entries, const LaneSteps& steps, const Base* base,
                              char* out) {
  if (s.vector == 4) {
    write_steps<kSpecial, In, Out, 4>(s, entries, steps, base, out);
  } else if (s.vector == 2) {
    write_steps<kSpecial, In, Out, 2>(s, entries, steps, base, out);
  } else {
    write_steps<kSpecial, In, Out, 1>(s, entries, steps, base, out);
  }
}

template <bool kSpecial, class Entry>
__device__ void write_plain(const WindowSegment& s, const Entry* entries, const LaneSteps& steps, const Base* base,
                            char* out) {
  if (is_floating(s.value_dtype)) {
    with_floating(s.value_dtype, [&](auto in) {
      with_floating(s.out_dtype, [&](auto result) {
        write_vectors<kSpecial, decltype(in), decltype(result)>(s, entries, steps, base, out);
      });
    });
    return;
  }
  switch (dtype_size(s.value_dtype)) {
    case 1:
      return write_steps<false, uint8_t, uint8_t, 1>(s, entries, steps, nullptr, out);
    case 2:
      return write_steps<false, uint16_t, uint16_t, 1>(s, entries, steps, nullptr, out);
    case 4:
      return write_steps<false, uint32_t, uint32_t, 1>(s, entries, steps, nullptr, out);
    default:
      return write_steps<false, uint64_t, uint64_t, 1>(s, entries, steps, nullptr, out);
  }
}

// ---- Mixtures by the other methods, feature by feature --------------------------------------------------------------

template <class Work>
__device__ Work load(const WindowSegment& s, const char* row, int64_t d) {
  return with_floating(s.value_dtype,
                       [&](auto element) { return to_work<Work>(reinterpret_cast<const decltype(element)*>(row)[d]); });
}

template <class Work>
__device__ void store(const WindowSegment& s, int step, int64_t d, Work y, char* row) {
  if (s.scale != nullptr) {
    const int64_t index = step * s.scale_step + d;
    y = multiply_add(y, static_cast<const Work*>(s.scale)[index], static_cast<const Work*>(s.shift)[index]);
    if (s.clip) y = clipped(y);
  }
  with_floating(s.out_dtype, [&](auto element) {
    reinterpret_cast<decltype(element)*>(row)[d] = rounded_once<decltype(element)>(y);
  });
}

template <class Work>
__device__ const CurveWeights<Work>& weights_of(const CurveEntry& entry) {
  if constexpr (std::is_same_v<Work, double>) {
    return entry.double_weights;
  } else {
    return entry.single_weights;
  }
}

template <class Work>
__device__ void write_curve(const WindowSegment& s, const CurveEntry& entry, int step, int64_t v, char* row) {
  const int64_t d = v * s.vector;
  const auto w = weight_of<Work>(entry);
  const char* const left = in_global(entry.left);
  const char* const right = left + entry.apart;
  if (entry.apart == 0) {
    for (int32_t e = 0; e < s.vector; ++e) store(s, step, d + e, load<Work>(s, left, d + e), row);
    return;
  }
  const char* const rows[] = {entry.around[0], entry.around[1], left, right, entry.around[2], entry.around[3]};
  with_method(s.method, [&](auto method) {
    using Method = decltype(method);
    if constexpr (kIsStraight<Method> || Method::kSlopes) {
      __trap();  // not curved, or refused by the Loader
    } else {
      constexpr int kFeatures = Method::kFeatures;
      Work x[kRowsOf<Method>][kFeatures];
      Work y[kFeatures];
#pragma unroll
      for (int i = 0; i < kRowsOf<Method>; ++i) {
#pragma unroll
        for (int e = 0; e < kFeatures; ++e) x[i][e] = load<Work>(s, rows[2 - Method::kReach + i], d + e);
      }
      CurveWeights<Work> c{.along = w};
      if constexpr (Method::kWeighs) c = weights_of<Work>(entry);
      mix_features<Method>(c, entry.before, entry.after, x, kFeatures, y);
      for (int e = 0; e < kFeatures; ++e) store(s, step, d + e, y[e], row);
    }
  });
}

// Loads the base of a lane's vector. The lanes of a strip's first steps also write it to the batch.
__device__ Base base_at(const WindowSegment& s, const PlainEntry& entry, const LaneSteps& steps, char* out_base) {
  Base base{.x = {}, .is_used = true, .is_absent = entry.left == nullptr};
  const char* const left = in_global(entry.left);
  const float weight = entry.single_weight;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (e >= s.vector) break;
    const int32_t feature = in_global(s.subtracted)[steps.v * s.vector + e];
    const int32_t f = feature < 0 ? ~feature : feature;
    const auto load_number = [&](const char* row) {
      return with_floating(s.base_dtype, [&](auto element) {
        using Element = decltype(element);
        return to_work<float>(reinterpret_cast<const Element*>(row)[f]);
      });
    };
    float x = 0;
    if (!base.is_absent) x = load_number(left);
    if (!base.is_absent && entry.apart != 0) {
      const float right = load_number(left + entry.apart);
      if (weight >= 0) x = lerp(x, right, weight);
    }
    if (steps.first < s.tile_steps) reinterpret_cast<float*>(out_base)[steps.v * s.vector + e] = x;
    base.x[e] = feature < 0 ? 0.0F : x;
  }
  return base;
}

// Writes a lane's vector of its steps, whose values may lie on curves.
__device__ void write_curved(const WindowSegment& s, const CurveEntry* entries, const LaneSteps& steps, char* out) {
  for (int tile = 0; tile < kStripTiles; ++tile) {
    const int step = steps.first + tile * steps.stride;
    if (step >= s.steps) return;
    char* const row = out + step * s.step_bytes;
    const CurveEntry& entry = entries[step];
    if (entry.left == nullptr) {
      const int64_t bytes = s.vector * dtype_size(s.out_dtype);
      for (int64_t i = 0; i < bytes; ++i) row[steps.v * bytes + i] = 0;
    } else if (s.value_dtype == DType::kFloat64) {
      write_curve<double>(s, entry, step, steps.v, row);
    } else {
      write_curve<float>(s, entry, step, steps.v, row);
    }
  }
}

// ---- The kernel -----------------------------------------------------------------------------------------------------

// A sample that a block fills. `group` is the first of its groups that the block fills, and `groups` counts the groups
// from there on. It is 0 beyond the batch's end, and if the source has no such group.
struct Sample {
  Anchor anchor;
  const WindowGroup* group;
  int64_t number;  // of its anchor among the anchors of all sources
  int32_t source;
  int32_t groups;
};

// A target among the rows of an episode's clock from `origin` on. `origin` is the last row at or before the target, if
// there is one. These rows are counted in 32 bits.
struct MomentRows {
  const int64_t* times;
  int64_t origin;
  int rows;
  WindowTarget<int> target;
};

__device__ MomentRows find_rows(const ClockRow<int64_t>& times, int64_t n, int64_t target, int64_t guess,
                                int64_t snap_ns) {
  const int64_t before = last_around(times, n, target, guess);
  MomentRows result{};
  result.origin = before < 0 ? 0 : before;
  result.times = times.data + result.origin;
  result.rows = static_cast<int>(n - result.origin < INT32_MAX ? n - result.origin : INT32_MAX);
  result.target = snapped({result.times, 1}, result.rows, target, snap_ns, before < 0 ? -1 : 0);
  return result;
}

// The delta in rows of a moment on a clock that does not count rows.
constexpr int64_t kNotInRows = INT64_MIN;

// Finds the rows that a step uses for a target on its clock. Writes their addresses and weights to the step's entry.
template <bool kCurves, bool kSpecial>
__device__ Pick<double, int> fill_entry(const WindowSegment& s, const MomentRows& moment_rows, const EpisodeRows& rows,
                                        const ClockRow<int64_t>& times, int64_t delta_rows, Entry<kCurves>& entry) {
  Pick<double, int> picked{0, 0, 0, PickKind::kAbsent, false};
  if (rows.rows > 0) {
    picked = !kSpecial || delta_rows == kNotInRows
                 ? pick_at({moment_rows.times, 1}, moment_rows.rows, moment_rows.target, s)
                 : row_at({moment_rows.times, 1}, -moment_rows.origin, rows.rows - moment_rows.origin,
                          moment_rows.target, delta_rows, s);
  }
  const char* const values = static_cast<const char*>(s.values) + (rows.begin + moment_rows.origin) * s.row_bytes;
  entry.left = picked.kind == PickKind::kAbsent ? nullptr : values + picked.left * s.row_bytes;
  entry.apart = (picked.right - picked.left) * s.row_bytes;
  // Prefetches the row while other steps are searched for. If steps use consecutive rows, the next step prefetches this
  // one's right row.
  for (int64_t byte = 0; byte < s.row_bytes && byte < kMostPrefetched && picked.kind != PickKind::kAbsent;
       byte += 128) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(entry.left + byte));
  }
  const double weight = picked.kind == PickKind::kMix   ? picked.weight
                        : picked.kind == PickKind::kOne ? static_cast<double>(kOneRow)
                                                        : static_cast<double>(kNoRow);
  if (s.value_dtype == DType::kFloat64) {
    entry.double_weight = weight;
  } else {
    entry.single_weight = static_cast<float>(weight);
  }
  if constexpr (kCurves) {
    if (!weighs(s.method) || picked.kind != PickKind::kMix) return picked;
    const auto stencil = stencil_around(times, rows.rows, moment_rows.origin + picked.left,
                                        moment_rows.origin + picked.right, reach_of(s.method));
    entry.before = stencil.before;
    entry.after = stencil.after;
    constexpr int kRows[] = {0, 1, 4, 5};
    for (int i = 0; i < 4; ++i) entry.around[i] = values + (stencil.rows[kRows[i]] - moment_rows.origin) * s.row_bytes;
    if (s.value_dtype == DType::kFloat64) {
      entry.double_weights =
          curve_weights<double>(s.method, spacing_around(times, rows.rows, stencil, reach_of(s.method), picked.weight));
    } else {
      const auto w = static_cast<float>(picked.weight);
      entry.single_weights =
          curve_weights<float>(s.method, spacing_around(times, rows.rows, stencil, reach_of(s.method), w));
    }
  }
  return picked;
}

__device__ WindowSource source_of(const WindowPlan& plan, int32_t source) {
  WindowSource result = plan.first;
  if (plan.sources != nullptr) result = in_global(plan.sources)[source];
  result.anchors.first_of = in_global(result.anchors.first_of);
  result.anchors.table = in_global(result.anchors.table);
  return result;
}

__device__ Sample sample_of(const WindowBatch& batch, const WindowSource& source, const Draw& draw) {
  const auto group = static_cast<int32_t>(blockIdx.y);
  return {source.anchors.at(draw.anchor), source.groups + group, batch.mixture.number_of(draw), draw.source,
          source.group_count - group};
}

// Returns a sample of the batch, or an empty one beyond its end.
__device__ Sample drawn_sample(const WindowBatch& batch, int64_t index) {
  if (index >= batch.count) return {};
  const Draw draw = batch.draw(index);
  return sample_of(batch, source_of(batch.plan, draw.source), draw);
}

// Returns the last source that begins at or before `position`, which is the same in each group of kDrawLanes lanes.
// Lane s holds in `first` the begin of source s.
__device__ int32_t source_from(int64_t first, int32_t sources, int64_t position) {
  const int lane = static_cast<int>(threadIdx.x) % kTileVectors;
  int32_t result = 0;
  for (int group = 0; group < kTileVectors; group += kDrawLanes) {
    const int64_t group_position = __shfl_sync(kWarp, position, group);
    const int count = __popc(__ballot_sync(kWarp, lane < sources && first <= group_position));
    if ((lane & -kDrawLanes) == group) result = count - 1;
  }
  return result;
}

// Whether drawn_together() can draw a block's first samples, which all its warps wait for.
__device__ bool draws_together(const WindowBatch& batch) {
  return batch.anchors == nullptr && batch.mixture.sources <= kTileVectors;
}

// Does what drawn_sample() does, by kDrawLanes lanes together; all lanes of a warp call it. Each lane
// holds the table's entry of one source, so no load waits for another. The rule is Mixture::at.
__device__ Sample drawn_together(const WindowBatch& batch, int64_t index) {
  const Mixture& mixture = batch.mixture;
  const int lane = static_cast<int>(threadIdx.x) % kTileVectors;
  const MixtureSource* const lane_source = in_global(mixture.table) + min(lane, mixture.sources - 1);
  Order order = mixture.order;
  int64_t position = batch.position(index);
  if (!mixture.weighted) {
    const int64_t first = lane_source->first_anchor;
    const int64_t anchor = order.at(position);
    const int32_t source = source_from(first, mixture.sources, anchor);
    return sample_of(batch, source_of(batch.plan, source), {source, anchor - __shfl_sync(kWarp, first, source)});
  }
  MixtureSource drawn_source{.first_slot = lane_source->first_slot, .reciprocal = lane_source->reciprocal};
  drawn_source.order.n = lane_source->order.n;
  drawn_source.offset = lane_source->offset;
  const int64_t end_slot = lane_source[1].first_slot;
  const int32_t left_bits = lane_source->order.left_bits;
  const int32_t right_bits = lane_source->order.right_bits;
  const uint64_t draw = mixture.first_draw + static_cast<uint64_t>(position);
  const uint64_t block = draw / kMixtureBlock;
  const auto index_in_block = static_cast<uint32_t>(draw % kMixtureBlock);
  const uint32_t slot =
      order.shuffle ? MixtureTurns(mix_bits(mixture.turns_seed ^ block)).slot(index_in_block) : index_in_block;
  const int32_t source = source_from(drawn_source.first_slot, mixture.sources, slot);
  const WindowSource windows = source_of(batch.plan, source);
  const auto first = static_cast<uint32_t>(__shfl_sync(kWarp, drawn_source.first_slot, source));
  const auto end = static_cast<uint32_t>(__shfl_sync(kWarp, end_slot, source));
  drawn_source.reciprocal = __shfl_sync(kWarp, drawn_source.reciprocal, source);
  drawn_source.offset = __shfl_sync(kWarp, drawn_source.offset, source);
  drawn_source.order.n = order.n = __shfl_sync(kWarp, drawn_source.order.n, source);
  order.left_bits = __shfl_sync(kWarp, left_bits, source);
  order.right_bits = __shfl_sync(kWarp, right_bits, source);
  const int part = lane & (kDrawLanes - 1);
  uint32_t before = 0;
#pragma unroll
  for (int bit = 0; bit < MixtureTurns::kBits; bit += kDrawLanes) {
    before += MixtureTurns::before(index_in_block, slot, first, end, bit + part);
  }
  for (int distance = 1; distance < kDrawLanes; distance *= 2) before += __shfl_xor_sync(kWarp, before, distance);
  if (!order.shuffle) before = slot - first;
  const MixtureSource::Round round = drawn_source.round_of(drawn_source.offset + block * (end - first) + before);
  static_assert(kDrawLanes == Order::kRounds);
  const uint64_t key = Order::key_of(mixture.seed_of(source), round.number, part);
  for (int i = 0; i < Order::kRounds; ++i) order.keys[i] = __shfl_sync(kWarp, key, i, kDrawLanes);
  return sample_of(batch, windows, {source, order.at(round.index)});
}

// Searches a clock for a moment, and finds the rows of the steps with that moment as their target.
template <bool kCurves, bool kSpecial, Converts kConverts>
__device__ void find_moment(const WindowBatch& batch, const Sample& sample, int nth_group, int moment_index,
                            int64_t sample_index, Entry<kCurves>* entries) {
  const WindowGroup group = in_global(sample.group)[nth_group];
  if (moment_index >= group.moment_count) return;
  char* const memory = in_global(static_cast<char*>(batch.memory));
  const WindowTables tables = tables_of(group);
  const WindowMoment moment = in_global(tables.moments)[moment_index];
  const WindowClock clock = in_global(tables.clocks)[moment.clock];
  EpisodeRows rows{};
  if (clock.rows.episodes != nullptr && sample.anchor.episode >= 0)
    rows = in_global(clock.rows.episodes)[sample.anchor.episode];
  const ClockRow<int64_t> times{rows.rows > 0 ? in_global(clock.rows.time_ns) + rows.begin : nullptr, 1};
  const int64_t target = kSpecial ? target_of(clock, moment.delta, sample.anchor.time_ns)
                                  : saturating_add(sample.anchor.time_ns, moment.delta);
  const int64_t delta_rows = kSpecial && clock.counts_rows ? moment.delta : kNotInRows;
  MomentRows moment_rows{};
  if (rows.rows > 0) moment_rows = find_rows(times, rows.rows, target, guess_row(rows, target), batch.plan.snap_ns);
  wait_for_work_before();
  for (int slot = moment.slot_begin; slot < moment.slot_begin + moment.slots; ++slot) {
    const WindowSlot step = in_global(tables.slots)[slot];
    const WindowSegment s = in_global(tables.segments)[step.segment];
    // Most moments serve one step, so the compiler must not compute values for rare rows before the loop.
    asm volatile("" : "+r"(moment_rows.rows), "+r"(moment_rows.target.before));
    const Pick<double, int> picked =
        fill_entry<kCurves, kSpecial>(s, moment_rows, rows, times, delta_rows, entries[step.pick]);
    if constexpr (kConverts != Converts::kNothing) entries[step.pick].padded = !picked.valid;
    if constexpr (kConverts == Converts::kAll) entries[step.pick].segment = step.segment;
    const int64_t mask = sample_index * s.mask_steps + step.step;
    if (s.pad_offset >= 0) reinterpret_cast<bool*>(memory + s.pad_offset)[mask] = !picked.valid;
    if (s.age_offset >= 0) {
      reinterpret_cast<int64_t*>(memory + s.age_offset)[mask] = age_of({moment_rows.times, 1}, picked, target);
    }
  }
}

// Writes a strip of a sample; a warp calls it.
template <bool kCurves, bool kSpecial, Converts kConverts>
__device__ void write_strip(const WindowBatch& batch, const WindowGroup& group, int strip, int64_t sample_index,
                            const Entry<kCurves>* entries) {
  static_assert(kMaxGroupSegments <= kTileVectors);
  const int lane = static_cast<int>(threadIdx.x) % kTileVectors;
  const WindowSegment* const segments = in_global(tables_of(group).segments);
  const bool has_begun = lane < group.segment_count && segments[lane].strip_begin <= strip;
  const WindowSegment s = segments[__popc(__ballot_sync(kWarp, has_begun)) - 1];
  int row = strip - s.strip_begin;
  int column = 0;
  if (s.columns > 1) {
    column = row % s.columns;
    row /= s.columns;
  }
  const int tile_step = lane * s.lane_share >> 16;
  const LaneSteps steps{row * s.tile_steps * kStripTiles + tile_step, s.tile_steps,
                        column * kTileVectors + lane - tile_step * s.lanes};
  if (tile_step >= s.tile_steps || steps.v >= s.vectors) return;
  char* const memory = in_global(static_cast<char*>(batch.memory));
  char* const out = memory + s.out_offset + sample_index * s.out_sample;
  if constexpr (kCurves) {
    if (is_curved(s.method)) return write_curved(s, entries + s.pick_begin, steps, out);
  }
  if constexpr (!kCurves && kConverts != Converts::kNothing) {
    Base base{};
    if (s.subtracted != nullptr) {
      const PlainEntry& base_entry = entries[s.base_pick];
      base = base_at(s, base_entry, steps, memory + s.base_offset + sample_index * s.base_sample);
      for (int tile = 0; tile < kStripTiles && base_entry.padded && steps.v == 0 && s.pad_offset >= 0; ++tile) {
        const int step = steps.first + tile * steps.stride;
        if (step < s.steps) reinterpret_cast<bool*>(memory + s.pad_offset)[sample_index * s.mask_steps + step] = true;
      }
    }
    write_plain<kSpecial>(s, entries + s.pick_begin, steps, &base, out);
  } else {
    write_plain<kSpecial>(s, entries + s.pick_begin, steps, nullptr, out);
  }
}

// Writes the constants of samples, their times, episodes, sources and anchors; a warp calls it.
__device__ void write_sample_fields(const WindowBatch& batch, const Sample* samples_of_turn, int samples,
                                    int64_t first_sample) {
  const WindowPlan& plan = batch.plan;
  char* const memory = in_global(static_cast<char*>(batch.memory));
  const int lane = static_cast<int>(threadIdx.x) % kTileVectors;
  if (lane < samples && first_sample + lane < batch.count) {
    const auto write = [&](int64_t offset, int64_t value) {
      if (offset >= 0) reinterpret_cast<int64_t*>(memory + offset)[first_sample + lane] = value;
    };
    write(plan.time_offset, samples_of_turn[lane].anchor.time_ns);
    write(plan.episode_offset, samples_of_turn[lane].anchor.episode);
    write(plan.source_offset, samples_of_turn[lane].source);
    write(plan.anchor_offset, samples_of_turn[lane].number);
  }
  if (!plan.has_constants) return;
  for (int nth = 0; nth < samples && first_sample + nth < batch.count; ++nth) {
    const WindowSource& source = plan.sources == nullptr ? plan.first : plan.sources[samples_of_turn[nth].source];
    for (int32_t i = 0; i < source.constant_count; ++i) {
      const WindowConstant constant = source.constants[i];
      char* const to = memory + constant.out_offset + (first_sample + nth) * constant.size;
      for (int64_t byte = lane; byte < constant.size; byte += kTileVectors) {
        to[byte] = static_cast<const char*>(constant.bytes)[byte];
      }
    }
  }
}

// ---- Conversions, by a block whose samples are filled ---------------------------------------------------------------

// A row of float32, mixed of the two rows of an entry.
struct MixedRow {
  const PlainEntry& entry;
  const int32_t* features;  // for each number, its feature in the row; null: the same

  __device__ float operator[](int number) const {
    if (entry.left == nullptr) return 0;
    const int f = features == nullptr ? number : in_global(features)[number];
    const auto load_number = [&](const char* row) { return reinterpret_cast<const float*>(in_global(row))[f]; };
    const float x = load_number(entry.left);
    return entry.apart != 0 && entry.single_weight >= 0
               ? lerp(x, load_number(entry.left + entry.apart), entry.single_weight)
               : x;
  }
};

// Writes a step whose poses become relative to a base. It does what convert_step() does, but no row is in the batch yet,
// and all numbers stay in registers.
__device__ void write_pose_step(const WindowSegment& s, const PlainEntry& entry, const PlainEntry& base_entry, int step,
                                int64_t sample_index, char* memory) {
  const ConvertActionsParams& p = *in_global(s.poses);
  const ActionOp& op = *in_global(p.ops);
  const float tolerance = tolerance_of<float>(p, op);
  const MixedRow x{entry, nullptr};
  const MixedRow base{base_entry, p.base_features};
  char* const row = memory + s.out_offset + sample_index * s.out_sample + step * s.step_bytes;
  bool is_there = entry.left != nullptr && base_entry.left != nullptr;
  for (int begin = 0; begin < op.count; begin += 3 + op.source.width) {
    float pose[kMostPose];
    load_pose(op, x, begin, pose);
    is_there = convert_pose(op, tolerance, pose, base_pose(op, tolerance, base, begin)) && is_there;
#pragma unroll
    for (int i = 0; i < kMostPose; ++i) {
      if (i < 3 + op.source.width) store(s, step, op.taken[begin + i], pose[i], row);
    }
  }
  for (int f = 0; f < p.features && op.count < p.features; ++f) {
    if (op.is_taken[f] == 0) store(s, step, f, x[f], row);
  }
  auto* const stored_base = reinterpret_cast<float*>(memory + s.base_offset + sample_index * s.base_sample);
  for (int f = step; f < p.features; f += s.steps) stored_base[f] = base[f];
  if (!is_there || base_entry.padded) {
    reinterpret_cast<bool*>(memory + s.pad_offset)[sample_index * s.mask_steps + step] = true;
  }
  for (int64_t i = 0; i < s.step_bytes && !is_there; ++i) row[i] = 0;
}

// Writes the steps of a group's segments that have poses; each thread takes a pick.
__device__ void write_poses(const WindowBatch& batch, const Sample* samples_of_turn, int samples, int nth_group,
                            int64_t first_sample, const PlainEntry* entries) {
  const int most_picks = batch.plan.most_picks;
  for (int i = static_cast<int>(threadIdx.x); i < most_picks * samples; i += kThreads) {
    const int nth = i / most_picks;
    const int pick = i - nth * most_picks;
    if (nth_group >= samples_of_turn[nth].groups) continue;
    const WindowGroup group = in_global(samples_of_turn[nth].group)[nth_group];
    if (pick >= group.picks) continue;
    const WindowSegment& s = in_global(tables_of(group).segments)[entries[i].segment];
    if (s.poses == nullptr) continue;
    write_pose_step(s, entries[i], entries[i - pick + s.base_pick], pick - s.pick_begin, first_sample + nth,
                    in_global(static_cast<char*>(batch.memory)));
  }
}

// Converts kTileVectors rows of a key's samples; a warp calls it. If no conversion mixes features, neighbouring lanes
// have neighbouring numbers, else each lane has a row.
template <class Scalar>
__device__ __noinline__ void convert_tile(const WindowBatch& batch, const ConvertActionsParams& p,
                                          const Sample* samples_of_turn, int64_t first_sample, int first_row,
                                          int rows) {
  char* const memory = in_global(static_cast<char*>(batch.memory));
  const int lane = static_cast<int>(threadIdx.x) % kTileVectors;
  const int end = min(first_row + kTileVectors, rows);
  if (p.by_feature) {
    const int features = p.features;
    for (int i = first_row * features + lane; i < end * features; i += kTileVectors) {
      const int row = i / features;
      const int nth = row / p.steps;
      convert_feature<Scalar>(p, memory, samples_of_turn[nth].source, first_sample + nth,
                              flipped_axes(batch, p, first_sample + nth), row - nth * p.steps, i - row * features);
    }
  } else if (first_row + lane < end) {
    const int nth = (first_row + lane) / p.steps;
    const int k = first_row + lane - nth * p.steps;
    convert_step<Scalar>(p, memory, samples_of_turn[nth].source, first_sample + nth,
                         flipped_axes(batch, p, first_sample + nth), k);
  }
  for (int64_t nth = 0; first_row == 0 && nth < rows / p.steps; ++nth) {
    const BaseRow<Scalar> base =
        base_of<Scalar>(p, memory, first_sample + nth, flipped_axes(batch, p, first_sample + nth));
    store_base(p, memory, first_sample + nth, base, lane, kTileVectors);
  }
}

// Shares the tiles of all keys among the block's warps.
__device__ void convert_samples(const WindowBatch& batch, const Sample* samples_of_turn, int samples,
                                int64_t first_sample) {
  constexpr int kWarps = kThreads / kTileVectors;
  const auto count = static_cast<int>(min(static_cast<int64_t>(samples), batch.count - first_sample));
  int tile = static_cast<int>(threadIdx.x) / kTileVectors;
  for (int32_t key = 0; key < batch.plan.conversion_count; ++key) {
    const ConvertActionsParams& p = in_global(batch.plan.conversions)[key];
    const int rows = count * p.steps;
    const int tiles = (rows + kTileVectors - 1) / kTileVectors;
    for (; tile < tiles; tile += kWarps) {
      if (p.wide) {
        convert_tile<double>(batch, p, samples_of_turn, first_sample, tile * kTileVectors, rows);
      } else {
        convert_tile<float>(batch, p, samples_of_turn, first_sample, tile * kTileVectors, rows);
      }
    }
    tile -= tiles;
  }
}

// In each turn a block fills one group of segments of a few samples; if it also converts, all their groups. While other
// threads find moments, the last warp, which has the fewest moments, draws the samples of several turns, one per lane.
// Then warps write strips. The kernel reads only memory that is older than the loader, except for given anchors, so
// only its writes wait for earlier work on the stream. Plans that are not special have kernels of their own: code that
// they do not need would make them a tenth slower.
template <bool kCurves, bool kSpecial, Converts kConverts>
__global__ void __launch_bounds__(kThreads, kBlocks<kCurves, kConverts>)
    window_kernel(const __grid_constant__ WindowBatch batch, const int doublings, const unsigned moment_share) {
  extern __shared__ uint4 shared[];  // an entry for each pick of each sample
  constexpr int kTurns = 4;          // are drawn together, but the first alone, since all warps wait for it
  __shared__ Sample drawn[2][kTurns][1 << kMostDoublings];
  constexpr int kWarps = kThreads / kTileVectors;
  static_assert(1 << kMostDoublings <= kWarps && kTurns << kMostDoublings <= kTileVectors);
  const WindowPlan& plan = batch.plan;
  auto* const entries = reinterpret_cast<Entry<kCurves>*>(shared);
  const int samples = 1 << doublings;
  constexpr bool kAll = kConverts == Converts::kAll;
  const int groups = kAll ? max(1, plan.group_count) : 1;
  const int warp = static_cast<int>(threadIdx.x) / kTileVectors;
  const int lane = static_cast<int>(threadIdx.x) % kTileVectors;
  // The first sample of a turn. Turns count from kTurns - 1.
  const auto first_of = [&](unsigned turn) {
    return (static_cast<int64_t>(turn - (kTurns - 1)) * gridDim.x + blockIdx.x) << doublings;
  };
  if (batch.anchors != nullptr) wait_for_work_before();
  for (unsigned turn = kTurns - 1;; ++turn) {
    const bool has_samples = turn >= kTurns;
    if (warp == kWarps - 1 && (!has_samples || turn % kTurns == 0) && first_of(turn) < batch.count) {
      auto* const to = drawn[turn / kTurns % 2];
      if (!has_samples && draws_together(batch)) {
        const int nth = lane / kDrawLanes;
        const int64_t index = first_of(turn) + (nth & (samples - 1));
        const Sample sample = drawn_together(batch, min(index, batch.count - 1));
        if (nth < samples && lane % kDrawLanes == 0) {
          to[turn % kTurns][nth] = index < batch.count ? sample : Sample{};
        }
      } else {
        const unsigned turns_ahead = static_cast<unsigned>(lane) >> doublings;
        const int nth = lane & (samples - 1);
        if (turn % kTurns + turns_ahead < kTurns) {
          to[turn % kTurns + turns_ahead][nth] = drawn_sample(batch, first_of(turn + turns_ahead) + nth);
        }
      }
    }
    const Sample* const samples_of_turn = drawn[(turn - 1) / kTurns % 2][(turn - 1) % kTurns];
    const int64_t first_sample = first_of(turn - 1);
    for (int group = 0; group < groups; ++group) {
      if (has_samples) {
        const auto moments = static_cast<unsigned>(plan.most_moments);
        for (unsigned i = threadIdx.x; i < moments << doublings; i += kThreads) {
          // The order is sample by sample, so that a warp reads the tables and clocks of only one or two samples.
          const unsigned nth = i * moment_share / kShareOne;
          if (group >= samples_of_turn[nth].groups) continue;
          find_moment<kCurves, kSpecial, kConverts>(batch, samples_of_turn[nth], group,
                                                    static_cast<int>(i - nth * moments), first_sample + nth,
                                                    entries + nth * plan.most_picks);
        }
        wait_for_work_before();
        if (group == 0 && blockIdx.y == 0 && warp == kWarps - 2)
          write_sample_fields(batch, samples_of_turn, samples, first_sample);
      }
      __syncthreads();
      if (!has_samples) break;

      const int nth = warp & (samples - 1);
      if (group < samples_of_turn[nth].groups) {
        const WindowGroup window_group = in_global(samples_of_turn[nth].group)[group];
        for (int strip = warp >> doublings; strip < window_group.strips; strip += kWarps >> doublings) {
          write_strip<kCurves, kSpecial, kConverts>(batch, window_group, strip, first_sample + nth,
                                                    entries + nth * plan.most_picks);
        }
      }
      if constexpr (kAll && !kCurves) {
        if (plan.has_poses) write_poses(batch, samples_of_turn, samples, group, first_sample, entries);
      }
      if (kAll) __syncthreads();
    }
    if (has_samples) {
      if constexpr (kAll) convert_samples(batch, samples_of_turn, samples, first_sample);
      if (first_of(turn) >= batch.count) return;
      if (!kAll) __syncthreads();
    }
  }
}

}  // namespace
}  // namespace robocache

extern "C" __attribute__((visibility("default"))) int robocache_cuda_window_batch(const robocache::WindowBatch* batch,
                                                                                  int32_t device, void* stream) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  const WindowPlan& plan = batch->plan;
  const auto moments = static_cast<unsigned>(std::max(1, plan.most_moments));
  const unsigned moment_share = (kShareOne + moments - 1) / moments;
  const bool converts = plan.conversion_count > 0 || plan.has_poses;
  const auto launch = [&](auto* kernel, size_t entry_bytes, int blocks) {
    const size_t shared = static_cast<size_t>(plan.most_picks) * entry_bytes;
    // Without groups a block writes only the anchors, or converts.
    const int groups = converts ? 1 : std::max(1, plan.group_count);
    const int64_t most_blocks = std::max(1, multiprocessors(device) * blocks / groups);
    // At most half of the blocks that fit, so that the next launch's blocks can begin beside them; all if they convert.
    const int64_t limit = converts ? most_blocks : most_blocks / 2;
    int doublings = 0;
    while (doublings < kMostDoublings && batch->count >> doublings > limit &&
           shared << (doublings + 1) <= kMostShared) {
      ++doublings;
    }
    const dim3 grid(blocks_for(batch->count, int64_t{1} << doublings, most_blocks), static_cast<unsigned>(groups));
    return launch_overlapped(kernel, grid, kThreads, shared << doublings, static_cast<cudaStream_t>(stream), *batch,
                             doublings, moment_share);
  };
  constexpr auto kNothing = Converts::kNothing;
  constexpr auto kBases = Converts::kBases;
  constexpr auto kAll = Converts::kAll;
  const auto launch_plain = [&](auto* kernel) { return launch(kernel, sizeof(PlainEntry), kBlocks<false, kNothing>); };
  const auto launch_curved = [&](auto* kernel) { return launch(kernel, sizeof(CurveEntry), kBlocks<true, kNothing>); };
  if (converts) {
    return plan.curved ? launch_curved(window_kernel<true, true, kAll>)
                       : launch(window_kernel<false, true, kAll>, sizeof(PlainEntry), kBlocks<false, kAll>);
  }
  if (plan.curved) {
    return plan.special ? launch_curved(window_kernel<true, true, kNothing>)
                        : launch_curved(window_kernel<true, false, kNothing>);
  }
  if (plan.subtracts) {
    return plan.special ? launch_plain(window_kernel<false, true, kBases>)
                        : launch_plain(window_kernel<false, false, kBases>);
  }
  return plan.special ? launch_plain(window_kernel<false, true, kNothing>)
                      : launch_plain(window_kernel<false, false, kNothing>);
}
