// Built once per instruction set, into namespace robocache::ROBOCACHE_ISA.
#include <cstdint>

#include "robocache/align/window_batch_cpu.hpp"
#include "robocache/align/window_math.hpp"

namespace robocache::ROBOCACHE_ISA {
namespace {

// A sample's memory is nowhere near the last one's, so each visit would wait for main memory. Samples go through the
// stages together instead, each stage asking for what the next one reads.
constexpr int kTogether = 8;
constexpr int64_t kTimesPerLine = 64 / sizeof(int64_t);

void prefetch(const void* at) { __builtin_prefetch(at, 0, 3); }

const char* row_address(const WindowSegment& s, const EpisodeRows& rows, int64_t row) {
  return static_cast<const char*>(s.values) + (rows.begin + row) * s.features * dtype_size(s.value_dtype);
}

// Features [begin, begin + kCount) of a row; of a fixed number, so that it becomes vector code without a remainder.
template <int kCount, class In, class Out, class Work>
void write_chunk(const In* a, const In* b, Work w, bool mix, const Work* scale, const Work* shift, Out* out,
                 int64_t begin) {
  Work y[kCount];
  for (int i = 0; i < kCount; ++i) y[i] = to_work<Work>(a[begin + i]);
  if (mix) {
    for (int i = 0; i < kCount; ++i) y[i] = lerp(y[i], to_work<Work>(b[begin + i]), w);
  }
  if (scale != nullptr) {
    for (int i = 0; i < kCount; ++i) y[i] = multiply_add(y[i], scale[begin + i], shift[begin + i]);
  }
  for (int i = 0; i < kCount; ++i) out[begin + i] = rounded_once<Out>(y[i]);
}

// Chunks of kCount; the last reaches back over what is already written where they do not come out even.
template <int kCount, class In, class Out, class Work>
void write_chunks(const In* a, const In* b, Work w, bool mix, const Work* scale, const Work* shift, Out* out,
                  int64_t n) {
  if constexpr (kCount > 1) {
    if (n < kCount) return write_chunks<kCount / 2>(a, b, w, mix, scale, shift, out, n);
  }
  int64_t d = 0;
  for (; d + kCount <= n; d += kCount) write_chunk<kCount>(a, b, w, mix, scale, shift, out, d);
  if (d < n) write_chunk<kCount>(a, b, w, mix, scale, shift, out, n - kCount);
}

template <class In, class Out>
void write_row(const WindowSegment& s, const char* a_row, const char* b_row, double weight, bool mix, char* out_row) {
  using Work = WorkType<In>;
  write_chunks<16>(reinterpret_cast<const In*>(a_row), reinterpret_cast<const In*>(b_row), static_cast<Work>(weight),
                   mix, static_cast<const Work*>(s.scale), static_cast<const Work*>(s.shift),
                   reinterpret_cast<Out*>(out_row), s.features);
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

// The hint for the next target, where it lies a few rows on: all are compared at once, without a branch to guess wrong.
int64_t advanced(const WindowSegment& s, const EpisodeRows& rows, int64_t target, int64_t hint) {
  constexpr int kRows = 8;
  if (hint + kRows >= rows.rows) return hint;
  const int64_t* times = s.time_ns + rows.begin + hint;
  int64_t passed = 0;
  for (int k = 1; k <= kRows; ++k) passed += times[k] <= target ? 1 : 0;
  return hint + passed;
}

// Field by field: a whole Pick read back right after its fields were written waits for every one of them.
template <class Work>
void pick_into(Pick<double>& picked, const WindowSegment& s, const EpisodeRows& rows, int64_t target, int64_t snap_ns,
               int64_t& hint) {
  const Pick<Work> found = pick_step<Work>(s, rows, target, snap_ns, hint);
  picked.left = found.left;
  picked.right = found.right;
  picked.weight = static_cast<double>(found.weight);
  picked.kind = found.kind;
  picked.valid = found.valid;
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
          for (int64_t row = from; row < to; row += kTimesPerLine) prefetch(times + row);
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
            const int64_t target = anchors[i].time_ns + s.delta_ns[k];
            Pick<double>& picked = picks[i][s.pick_begin + k];
            hint = advanced(s, rows, target, hint);
            if (s.value_dtype == DType::kFloat64) {
              pick_into<double>(picked, s, rows, target, plan.snap_ns, hint);
            } else {
              pick_into<float>(picked, s, rows, target, plan.snap_ns, hint);
            }
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
