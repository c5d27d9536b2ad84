// Built once per instruction set, into namespace robocache::ROBOCACHE_ISA.
#include <cstdint>

#include "robocache/align/window_batch_cpu.hpp"
#include "robocache/align/window_math.hpp"
#include "robocache/interpolation/angle.hpp"
#include "robocache/interpolation/curve.hpp"
#include "robocache/interpolation/rotation.hpp"
#include "robocache/source/read_rows.hpp"

namespace robocache::ROBOCACHE_ISA {
namespace {

// A sample's memory is nowhere near the last one's, so each visit would wait for main memory. Samples go through the
// stages together instead, each stage asking for what the next one reads.
constexpr int kTogether = 8;
constexpr int64_t kTimesPerLine = 64 / sizeof(int64_t);

void prefetch(const void* at) {
  asm volatile("");  // or the compiler drops the call of a function that does nothing but prefetch
  __builtin_prefetch(at, 0, 3);
}

// Where an episode's values lie: row r of it r * row_bytes on.
const char* values_of(const WindowSegment& s, const EpisodeRows& rows) {
  return static_cast<const char*>(s.values) + rows.begin * s.row_bytes;
}

// ---- one row, or a straight mixture of two -----------------------------------------------------------------------------

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

// ---- curves, angles and rotations between two rows, a piece of the features at a time ----------------------------------

template <class Work>
void load_piece(const WindowSegment& s, const char* row, int64_t first, int64_t n, Work* to) {
  with_floating(s.value_dtype, [&](auto element) {
    const auto* from = reinterpret_cast<const decltype(element)*>(row) + first;
    for (int64_t d = 0; d < n; ++d) to[d] = to_work<Work>(from[d]);
  });
}

template <class Work>
void write_curve(const WindowSegment& s, const EpisodeRows& rows, const char* values, const int64_t* times,
                 const Pick<double>& picked, char* out) {
  constexpr int64_t kPiece = 64;
  static_assert(kPiece % 4 == 0);
  Work x[6][kPiece];
  Work y[kPiece];
  const auto w = static_cast<Work>(picked.weight);
  const int reach = stencil_reach(s.method);
  const ClockRow<int64_t> clock{times, 1};
  const Stencil<int64_t> stencil = stencil_around(clock, rows.rows, picked.left, picked.right, reach);
  const int before = stencil.before;
  const int after = stencil.after;
  CurveWeights<Work> c{};
  if (reach > 0) c = weights_around<Work>(s.method, clock, rows.rows, stencil, w);
  for (int64_t first = 0; first < s.features; first += kPiece) {
    const int64_t n = s.features - first < kPiece ? s.features - first : kPiece;
    for (int i = 2 - reach; i <= 3 + reach; ++i) {
      load_piece(s, values + stencil.rows[i] * s.row_bytes, first, n, x[i]);
    }
    switch (s.method) {
      case InterpolationMethod::kPchip:
        for (int64_t d = 0; d < n; ++d) y[d] = pchip_at(c, before, after, x[1][d], x[2][d], x[3][d], x[4][d]);
        break;
      case InterpolationMethod::kAkima:
        for (int64_t d = 0; d < n; ++d) {
          y[d] = akima_at(c, before, after, x[0][d], x[1][d], x[2][d], x[3][d], x[4][d], x[5][d]);
        }
        break;
      case InterpolationMethod::kAngle:
        for (int64_t d = 0; d < n; ++d) y[d] = angle_at(x[2][d], x[3][d], w);
        break;
      case InterpolationMethod::kSlerp:
        for (int64_t d = 0; d < n; d += 4) {
          Work from[4] = {x[2][d], x[2][d + 1], x[2][d + 2], x[2][d + 3]};
          Work to[4] = {x[3][d], x[3][d + 1], x[3][d + 2], x[3][d + 3]};
          Work turned[4];
          slerp(from, to, w, 1 - w, turned);
          for (int64_t k = 0; k < 4; ++k) y[d + k] = turned[k];
        }
        break;
      case InterpolationMethod::kLinear:  // not curved
      case InterpolationMethod::kNearest:
      case InterpolationMethod::kPrevious:
      case InterpolationMethod::kNext:
      case InterpolationMethod::kCubic:  // no segment's
      case InterpolationMethod::kPose:
        __builtin_trap();
    }
    if (s.scale != nullptr) {
      const Work* const scale = static_cast<const Work*>(s.scale) + first;
      const Work* const shift = static_cast<const Work*>(s.shift) + first;
      for (int64_t d = 0; d < n; ++d) y[d] = multiply_add(y[d], scale[d], shift[d]);
    }
    with_floating(s.out_dtype, [&](auto element) {
      auto* const to = reinterpret_cast<decltype(element)*>(out) + first;
      for (int64_t d = 0; d < n; ++d) to[d] = rounded_once<decltype(element)>(y[d]);
    });
  }
}

// ---- rows as they are --------------------------------------------------------------------------------------------------

// Whether a step that takes one row is a copy of it.
bool copies_rows(const WindowSegment& s) { return s.value_dtype == s.out_dtype && s.scale == nullptr; }

// Steps that take one row after the other.
void copy_run(const WindowSegment& s, const char* row, char* out) {
  const int64_t bytes = s.features * dtype_size(s.value_dtype);
  if (s.row_bytes == bytes && s.step_bytes == bytes) {
    __builtin_memcpy(out, row, static_cast<size_t>(s.steps * bytes));
    return;
  }
  for (int32_t k = 0; k < s.steps; ++k) {
    __builtin_memcpy(out + k * s.step_bytes, row + k * s.row_bytes, static_cast<size_t>(bytes));
  }
}

// ---- one step ----------------------------------------------------------------------------------------------------------

void write_step(const WindowSegment& s, const EpisodeRows& rows, const char* values, const int64_t* times,
                const Pick<double>& picked, char* out) {
  if (picked.kind == PickKind::kAbsent) {
    __builtin_memset(out, 0, static_cast<size_t>(s.features * dtype_size(s.out_dtype)));
    return;
  }
  const bool mix = picked.kind == PickKind::kMix;
  if (mix && is_curved(s.method)) {
    return s.value_dtype == DType::kFloat64 ? write_curve<double>(s, rows, values, times, picked, out)
                                            : write_curve<float>(s, rows, values, times, picked, out);
  }
  const char* const a = values + picked.left * s.row_bytes;
  if (!mix && copies_rows(s)) {
    __builtin_memcpy(out, a, static_cast<size_t>(s.features * dtype_size(s.value_dtype)));
    return;
  }
  const char* const b = values + picked.right * s.row_bytes;
  with_floating(s.value_dtype, [&](auto in) {
    with_floating(s.out_dtype,
                  [&](auto made) { write_row<decltype(in), decltype(made)>(s, a, b, picked.weight, mix, out); });
  });
}

// The hint for the next target, where it lies a few rows on: all are compared at once, without a branch to guess wrong.
int64_t advanced(const int64_t* times, int64_t n, int64_t target, int64_t hint) {
  constexpr int kRows = 8;
  if (hint + kRows >= n) return hint;
  int64_t passed = 0;
  for (int k = 1; k <= kRows; ++k) passed += times[hint + k] <= target ? 1 : 0;
  return hint + passed;
}

// The row that the first of a clock's moments is, where the next moments are the next rows: each closer than snap_ns to its own
// row and to no other. Else -1. Then find_place() gives the same rows, and by every rule steps take them.
int64_t run_of(const WindowMoment* moments, int64_t count, const ClockRow<int64_t>& times, const EpisodeRows& rows,
               int64_t anchor_ns, int64_t snap_ns) {
  constexpr int64_t kFar = int64_t{1} << 61;  // differences of what is nearer to 0 are int64
  if (anchor_ns < -kFar / 2 || anchor_ns > kFar / 2 || moments[0].delta_ns < -kFar / 2 ||
      moments[count - 1].delta_ns > kFar / 2 || rows.first_ns < -kFar || snap_ns > kFar) {
    return -1;
  }
  const int64_t after_first = anchor_ns + moments[0].delta_ns - rows.first_ns;
  const double guess = static_cast<double>(after_first) * rows.rows_per_ns + 0.5;
  if (!(guess >= 1 && guess < static_cast<double>(rows.rows - count))) return -1;
  const auto first = static_cast<int64_t>(guess);
  if (times[first + count] > kFar) return -1;
  const int64_t near = snap_ns > 0 ? snap_ns : 1;
  bool on_rows = true;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t target = anchor_ns + moments[k].delta_ns;
    const int64_t* const row = times.data + first + k;
    on_rows &= row[0] < target + near && row[0] > target - near && row[-1] <= target - near && row[1] >= target + near;
  }
  return on_rows ? first : -1;
}

// A group and its tables.
struct Group : WindowTables {
  explicit Group(const WindowGroup& group)
      : WindowTables(tables_of(group)), segment_count(group.segment_count), clock_count(group.clock_count) {}

  int32_t segment_count;
  int32_t clock_count;
};

// Asks for what find() of a sample reads, and for the first of the values.
void prefetch_sample(const Group& group, const Anchor& anchor) {
  for (int32_t at = 0; at < group.clock_count; ++at) {
    const WindowClock& clock = group.clocks[at];
    const EpisodeRows rows = clock.rows.rows_of(anchor.episode);
    const int64_t* const times = clock.rows.time_ns + rows.begin;
    const auto guess = [&](int32_t moment) {
      return guess_row(rows, saturating_add(anchor.time_ns, group.moments[moment].delta_ns));
    };
    const int64_t to = guess(clock.moment_end - 1);
    for (int64_t row = guess(clock.moment_begin); row < to; row += kTimesPerLine) prefetch(times + row);
    prefetch(times + to);
  }
  for (int32_t at = 0; at < group.segment_count; ++at) {
    const WindowSegment& s = group.segments[at];
    const EpisodeRows rows = group.clocks[s.clock].rows.rows_of(anchor.episode);
    if (s.values == nullptr) continue;
    prefetch(values_of(s, rows) + guess_row(rows, saturating_add(anchor.time_ns, s.first_delta_ns)) * s.row_bytes);
  }
}

// What each step of a sample takes, and whether that is padding. `memory`: the batch's, `sample`: its place there. Values are
// asked for one step at a time, while the next one is searched: asked for all at once they come later.
void find(const Group& group, const Anchor& anchor, int64_t snap_ns, int64_t sample, char* memory, Pick<double>* picks,
          int64_t* runs) {
  struct Stream {
    const char* values;  // of the episode's first row
    const char* asked;   // up to where they are on their way
    bool* is_pad;
    int64_t* age;
    int64_t row_bytes;
    int64_t bytes;
  };
  Stream streams[kMaxGroupSegments];  // of each segment
  for (int32_t at = 0; at < group.segment_count; ++at) {
    const WindowSegment& s = group.segments[at];
    const EpisodeRows rows = group.clocks[s.clock].rows.rows_of(anchor.episode);
    const int64_t masks = sample * s.mask_steps;
    streams[at].values = s.values == nullptr ? nullptr : values_of(s, rows);
    streams[at].asked = nullptr;
    streams[at].is_pad = s.pad_offset < 0 ? nullptr : reinterpret_cast<bool*>(memory + s.pad_offset) + masks;
    streams[at].age = s.age_offset < 0 ? nullptr : reinterpret_cast<int64_t*>(memory + s.age_offset) + masks;
    streams[at].row_bytes = s.row_bytes;
    streams[at].bytes = s.features * dtype_size(s.value_dtype);
    runs[at] = -1;
  }
  for (int32_t at = 0; at < group.clock_count; ++at) {
    const WindowClock& clock = group.clocks[at];
    const EpisodeRows rows = clock.rows.rows_of(anchor.episode);
    const int64_t n = rows.rows;
    const ClockRow<int64_t> times{clock.rows.time_ns + rows.begin, 1};
    const int64_t run = n == 0 || !clock.in_order
                            ? -1
                            : run_of(group.moments + clock.moment_begin, clock.moment_end - clock.moment_begin, times,
                                     rows, anchor.time_ns, snap_ns);
    if (run >= 0) {
      for (int32_t segment = 0; segment < group.segment_count; ++segment) {
        const WindowSegment& s = group.segments[segment];
        if (s.clock != at) continue;
        const int64_t first = run + s.first_moment - clock.moment_begin;
        runs[segment] = first;
        Stream& stream = streams[segment];
        if (stream.is_pad != nullptr) __builtin_memset(stream.is_pad, 0, static_cast<size_t>(s.steps));
        if (stream.age != nullptr) {
          for (int32_t k = 0; k < s.steps; ++k) {
            stream.age[k] = anchor.time_ns + group.moments[s.first_moment + k].delta_ns - times[first + k];
          }
        }
        if (s.file.descriptor >= 0 || !copies_rows(s)) {
          Pick<double>* const own = picks + s.pick_begin;
          for (int32_t k = 0; k < s.steps; ++k) own[k] = {first + k, first + k, 0, PickKind::kOne, true};
        }
        if (stream.values == nullptr) continue;
        const char* const stop = stream.values + (first + s.steps - 1) * s.row_bytes + stream.bytes;
        for (const char* line = stream.values + first * s.row_bytes; line < stop; line += 64) prefetch(line);
      }
      continue;
    }
    int64_t hint = guess_row(rows, saturating_add(anchor.time_ns, group.moments[clock.moment_begin].delta_ns));
    for (int32_t m = clock.moment_begin; m < clock.moment_end; ++m) {
      const WindowMoment moment = group.moments[m];
      const int64_t target = saturating_add(anchor.time_ns, moment.delta_ns);
      WindowPlace<> place{};
      if (n > 0) {
        hint = advanced(times.data, n, target, hint);
        place = find_place(times, n, target, snap_ns, hint);
      }
      for (int32_t slot = 0; slot < moment.slots; ++slot) {
        const WindowSlot step = group.slots[moment.slot_begin + slot];
        Stream& stream = streams[step.segment];
        Pick<double> found{0, 0, 0, PickKind::kAbsent, false};
        if (n > 0) found = pick_at(times, n, place, group.segments[step.segment]);
        // Field by field: a whole Pick read back right after its fields were written waits for every one of them.
        Pick<double>& picked = picks[step.pick];
        picked.left = found.left;
        picked.right = found.right;
        picked.weight = found.weight;
        picked.kind = found.kind;
        if (stream.is_pad != nullptr) stream.is_pad[step.step] = !found.valid;
        if (stream.age != nullptr) stream.age[step.step] = age_of(times, found, target);
        if (stream.values == nullptr) continue;
        const char* line = stream.values + found.left * stream.row_bytes;
        const char* stop = stream.values + found.right * stream.row_bytes + stream.bytes;
        if (line < stream.asked && stop > stream.asked) line = stream.asked;
        for (; line < stop; line += 64) prefetch(line);
        stream.asked = stop;
      }
    }
  }
}

// The rows of an episode that steps take, and those around them that their curves look at.
struct RowRange {
  int64_t begin;
  int64_t end;
};

RowRange rows_of(const WindowSegment& s, const EpisodeRows& rows, const int64_t* times, const Pick<double>& picked) {
  if (picked.kind == PickKind::kAbsent) return {0, 0};
  const int reach = picked.kind == PickKind::kMix ? stencil_reach(s.method) : 0;
  if (reach == 0) return {picked.left, picked.right + 1};
  const ClockRow<int64_t> clock{times, 1};
  const Stencil<int64_t> stencil = stencil_around(clock, rows.rows, picked.left, picked.right, reach);
  return {stencil.rows[2 - reach], stencil.rows[3 + reach] + 1};
}

// Steps whose rows lie in a file: read as runs of neighbouring rows, over gaps that are shorter than a read is long.
void write_from_file(const WindowSegment& s, const EpisodeRows& rows, const int64_t* times, const Pick<double>* picks,
                     char* out) {
  constexpr int64_t kShortGap = 16 << 10;  // bytes
  for (int32_t k = 0; k < s.steps;) {
    RowRange run = rows_of(s, rows, times, picks[k]);
    int32_t end = k + 1;
    for (; end < s.steps; ++end) {
      const RowRange next = rows_of(s, rows, times, picks[end]);
      if (next.begin == next.end) continue;
      if (run.begin == run.end) run = next;
      const int64_t apart = next.begin > run.end   ? next.begin - run.end
                            : next.end < run.begin ? run.begin - next.end
                                                   : 0;
      if (apart * s.row_bytes > kShortGap) break;
      run.begin = next.begin < run.begin ? next.begin : run.begin;
      run.end = next.end > run.end ? next.end : run.end;
    }
    // The last row of a file ends with its own features, not with those of a whole row behind this segment's first.
    const int64_t bytes =
        run.begin == run.end ? 0 : (run.end - run.begin - 1) * s.row_bytes + s.features * dtype_size(s.value_dtype);
    char* const scratch = window_scratch(static_cast<size_t>(bytes));
    read_rows(s.file, (rows.begin + run.begin) * s.row_bytes, static_cast<size_t>(bytes), scratch);
    const char* const values = scratch - run.begin * s.row_bytes;
    for (; k < end; ++k) write_step(s, rows, values, times, picks[k], out + k * s.step_bytes);
  }
}

void write(const Group& group, const Anchor& anchor, int64_t sample, const Pick<double>* picks, const int64_t* runs,
           char* memory) {
  for (int32_t at = 0; at < group.segment_count; ++at) {
    const WindowSegment& s = group.segments[at];
    const StreamClock& clock = group.clocks[s.clock].rows;
    const EpisodeRows rows = clock.rows_of(anchor.episode);
    const int64_t* const times = clock.time_ns + rows.begin;
    const Pick<double>* const own = picks + s.pick_begin;
    char* const out = memory + s.out_offset + sample * s.out_sample;
    if (s.file.descriptor >= 0) {
      write_from_file(s, rows, times, own, out);
      continue;
    }
    const char* const values = values_of(s, rows);
    if (runs[at] >= 0 && copies_rows(s)) {
      copy_run(s, values + runs[at] * s.row_bytes, out);
      continue;
    }
    for (int32_t k = 0; k < s.steps; ++k) write_step(s, rows, values, times, own[k], out + k * s.step_bytes);
  }
}

// What each sample of the source has besides its windows.
void write_constants(const WindowSource& source, int64_t sample, char* memory) {
  for (int32_t i = 0; i < source.constant_count; ++i) {
    const WindowConstant& constant = source.constants[i];
    __builtin_memcpy(memory + constant.out_offset + sample * constant.size, constant.bytes,
                     static_cast<size_t>(constant.size));
  }
}

}  // namespace

void window_samples(const WindowBatch& batch, int64_t begin, int64_t end) {
  const WindowPlan& plan = batch.plan;
  auto* const memory = static_cast<char*>(batch.memory);
  Pick<double> picks[kTogether * kMaxGroupPicks];  // close together: strides of a power of two share lines of the cache
  int64_t runs[kTogether][kMaxGroupSegments];      // of steps that take one row after the other: the first; else -1
  for (int64_t first = begin; first < end; first += kTogether) {
    const int count = end - first < kTogether ? static_cast<int>(end - first) : kTogether;
    const WindowSource* sources[kTogether];
    Anchor anchors[kTogether];
    int64_t indices[kTogether];
    for (int i = 0; i < count; ++i) {
      const Draw draw = batch.draw(first + i);
      sources[i] = plan.sources == nullptr ? &plan.first : plan.sources + draw.source;
      indices[i] = draw.anchor;
      prefetch(&sources[i]->anchors.first_of[draw.anchor >> sources[i]->anchors.shift]);
    }
    for (int i = 0; i < count; ++i) {
      anchors[i] = sources[i]->anchors.at(indices[i]);
      if (plan.time_offset >= 0) {
        reinterpret_cast<int64_t*>(memory + plan.time_offset)[first + i] = anchors[i].time_ns;
      }
      if (plan.episode_offset >= 0) {
        reinterpret_cast<int64_t*>(memory + plan.episode_offset)[first + i] = anchors[i].episode;
      }
      write_constants(*sources[i], first + i, memory);
    }
    for (int32_t g = 0; g < plan.group_count; ++g) {
      const auto has_group = [&](int64_t i) { return g < sources[i]->group_count; };
      for (int i = 0; i < count; ++i) {
        if (has_group(i)) prefetch_sample(Group(sources[i]->groups[g]), anchors[i]);
      }
      for (int64_t i = 0; i < count; ++i) {
        if (!has_group(i)) continue;
        find(Group(sources[i]->groups[g]), anchors[i], plan.snap_ns, first + i, memory, picks + i * plan.most_picks,
             runs[i]);
      }
      for (int64_t i = 0; i < count; ++i) {
        if (!has_group(i)) continue;
        const Group group(sources[i]->groups[g]);
        write(group, anchors[i], first + i, picks + i * plan.most_picks, runs[i], memory);
      }
    }
  }
}

}  // namespace robocache::ROBOCACHE_ISA
