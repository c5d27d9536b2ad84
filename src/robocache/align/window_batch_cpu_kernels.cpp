// Built once per instruction set, into namespace robocache::ROBOCACHE_ISA.
#include <cstdint>

#include "robocache/align/window_batch_cpu.hpp"
#include "robocache/align/window_math.hpp"

namespace robocache::ROBOCACHE_ISA {
namespace {

// A sample's memory is nowhere near the last one's, so each visit would wait for main memory. Samples go through the
// stages together instead, each stage asking for what the next one reads.
constexpr int kTogether = 8;

void prefetch(const void* at) { __builtin_prefetch(at, 0, 3); }

const char* row_address(const WindowSegment& s, const EpisodeRows& rows, int64_t row) {
  return static_cast<const char*>(s.values) + (rows.begin + row) * s.features * dtype_size(s.value_dtype);
}

template <class In, class Out>
void write_row(const WindowSegment& s, const char* a_row, const char* b_row, double weight, bool mix, char* out_row) {
  using Work = WorkType<In>;
  const auto* a = reinterpret_cast<const In*>(a_row);
  const auto* b = reinterpret_cast<const In*>(b_row);
  auto* out = reinterpret_cast<Out*>(out_row);
  const auto w = static_cast<Work>(weight);
  const auto* scale = static_cast<const Work*>(s.scale);
  const auto* shift = static_cast<const Work*>(s.shift);
  const int64_t n = s.features;
  // Four loops, so that each has no decision inside and becomes vector code.
  if (mix && scale != nullptr) {
    for (int64_t d = 0; d < n; ++d) out[d] = window_value<Out>(a[d], b[d], w, true, scale, shift, d);
  } else if (mix) {
    for (int64_t d = 0; d < n; ++d) out[d] = window_value<Out, Work>(a[d], b[d], w, true, nullptr, nullptr, d);
  } else if (scale != nullptr) {
    for (int64_t d = 0; d < n; ++d) out[d] = window_value<Out>(a[d], a[d], w, false, scale, shift, d);
  } else {
    for (int64_t d = 0; d < n; ++d) out[d] = window_value<Out, Work>(a[d], a[d], w, false, nullptr, nullptr, d);
  }
}

template <class In>
void write_row_of(const WindowSegment& s, const char* a, const char* b, double weight, bool mix, char* out) {
  switch (s.out_dtype) {
    case DType::kFloat64:
      return write_row<In, double>(s, a, b, weight, mix, out);
    case DType::kFloat32:
      return write_row<In, float>(s, a, b, weight, mix, out);
    case DType::kFloat16:
      return write_row<In, Float16>(s, a, b, weight, mix, out);
    default:
      return write_row<In, BFloat16>(s, a, b, weight, mix, out);
  }
}

void write_step(const WindowSegment& s, const EpisodeRows& rows, const Pick<double>& picked, char* out) {
  if (picked.kind == PickKind::kAbsent) {
    __builtin_memset(out, 0, static_cast<size_t>(s.features * dtype_size(s.out_dtype)));
    return;
  }
  const char* a = row_address(s, rows, picked.left);
  const char* b = row_address(s, rows, picked.right);
  const bool mix = picked.kind == PickKind::kMix;
  switch (s.value_dtype) {
    case DType::kFloat64:
      return write_row_of<double>(s, a, b, picked.weight, mix, out);
    case DType::kFloat32:
      return write_row_of<float>(s, a, b, picked.weight, mix, out);
    case DType::kFloat16:
      return write_row_of<Float16>(s, a, b, picked.weight, mix, out);
    case DType::kBFloat16:
      return write_row_of<BFloat16>(s, a, b, picked.weight, mix, out);
    default:
      __builtin_memcpy(out, a, static_cast<size_t>(s.features * dtype_size(s.value_dtype)));
  }
}

Pick<double> pick_wide(const WindowSegment& s, const EpisodeRows& rows, int64_t target, int64_t snap_ns,
                       int64_t& hint) {
  if (s.value_dtype == DType::kFloat64) return pick_step<double>(s, rows, target, snap_ns, hint);
  const Pick<float> narrow = pick_step<float>(s, rows, target, snap_ns, hint);
  return {narrow.left, narrow.right, static_cast<double>(narrow.weight), narrow.kind, narrow.valid};
}

}  // namespace

void window_samples(const WindowBatch& batch, int64_t begin, int64_t end) {
  const WindowPlan& plan = batch.plan;
  auto* const memory = static_cast<char*>(batch.memory);
  Pick<double> picks[kTogether][kMaxGroupPicks];
  for (int64_t first = begin; first < end; first += kTogether) {
    const int count = end - first < kTogether ? static_cast<int>(end - first) : kTogether;
    Anchor anchors[kTogether];
    int64_t indices[kTogether];
    for (int i = 0; i < count; ++i) {
      indices[i] = batch.order.at(batch.first_position + first + i);
      prefetch(&plan.anchors.first_of[indices[i] >> plan.anchors.shift]);
    }
    for (int i = 0; i < count; ++i) {
      anchors[i] = plan.anchors.at(indices[i]);
      reinterpret_cast<int64_t*>(memory + plan.time_offset)[first + i] = anchors[i].time_ns;
      reinterpret_cast<int64_t*>(memory + plan.episode_offset)[first + i] = anchors[i].episode;
    }
    for (int32_t g = 0; g < plan.group_count; ++g) {
      const WindowGroup& group = plan.groups[g];
      for (int i = 0; i < count; ++i) {
        for (int32_t at = group.segment_begin; at < group.segment_end; ++at) {
          const WindowSegment& s = plan.segments[at];
          const EpisodeRows& rows = s.episodes[anchors[i].episode];
          const int64_t* times = s.time_ns + rows.begin;
          const int64_t from = guess_row(rows, anchors[i].time_ns + s.delta_ns[0]);
          const int64_t to = guess_row(rows, anchors[i].time_ns + s.delta_ns[s.steps - 1]);
          prefetch(times + from);
          prefetch(times + to);
          prefetch(row_address(s, rows, from));
        }
      }
      for (int i = 0; i < count; ++i) {
        for (int32_t at = group.segment_begin; at < group.segment_end; ++at) {
          const WindowSegment& s = plan.segments[at];
          const EpisodeRows& rows = s.episodes[anchors[i].episode];
          const int64_t row_bytes = s.features * dtype_size(s.value_dtype);
          int64_t hint = guess_row(rows, anchors[i].time_ns + s.delta_ns[0]);
          const char* asked = nullptr;
          for (int32_t k = 0; k < s.steps; ++k) {
            const Pick<double> picked = pick_wide(s, rows, anchors[i].time_ns + s.delta_ns[k], plan.snap_ns, hint);
            picks[i][s.pick_begin + k] = picked;
            reinterpret_cast<bool*>(memory + s.pad_offset + (first + i) * s.pad_sample)[k] = !picked.valid;
            const char* line = row_address(s, rows, picked.left);
            const char* stop = row_address(s, rows, picked.right) + row_bytes;
            if (line < asked && stop > asked) line = asked;
            for (; line < stop; line += 64) prefetch(line);
            asked = stop;
          }
        }
      }
      for (int i = 0; i < count; ++i) {
        for (int32_t at = group.segment_begin; at < group.segment_end; ++at) {
          const WindowSegment& s = plan.segments[at];
          const EpisodeRows& rows = s.episodes[anchors[i].episode];
          char* out = memory + s.out_offset + (first + i) * s.out_sample;
          const int64_t out_bytes = s.features * dtype_size(s.out_dtype);
          for (int32_t k = 0; k < s.steps; ++k) write_step(s, rows, picks[i][s.pick_begin + k], out + k * out_bytes);
        }
      }
    }
  }
}

}  // namespace robocache::ROBOCACHE_ISA
