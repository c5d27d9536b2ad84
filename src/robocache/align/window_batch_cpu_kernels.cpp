// Built once per instruction set, into namespace robocache::ROBOCACHE_ISA.
#include <cstdint>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "robocache/align/lanes.hpp"
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

// Features [begin, begin + kCount) of the steps, which are neither curved nor without a row to take. Step by step, so that
// scale and shift are loaded once.
template <int kCount, bool kScaled, class In, class Out>
void write_column(const WindowSegment& s, const char* values, const Pick<double>* picks, int64_t count, int64_t begin,
                  char* out) {
  using Work = WorkType<In>;
  using Column = Lanes<Work, kCount>;
  Column scale;
  Column shift;
  if constexpr (kScaled) {
    load_lanes<kCount, Work>(static_cast<const Work*>(s.scale) + begin, scale);
    load_lanes<kCount, Work>(static_cast<const Work*>(s.shift) + begin, shift);
  }
  const char* const column = values + begin * static_cast<int64_t>(sizeof(In));
  auto* to = reinterpret_cast<Out*>(out) + begin;
  for (const Pick<double>* picked = picks; picked != picks + count; ++picked) {
    const auto* const a = reinterpret_cast<const In*>(column + picked->left * s.row_bytes);
    Column y;
    if (picked->kind == PickKind::kMix) {
      const auto* const b = reinterpret_cast<const In*>(column + picked->right * s.row_bytes);
      Column left;
      Column right;
      load_lanes<kCount, Work>(a, left);
      load_lanes<kCount, Work>(b, right);
      lerp_lanes(left, right, Column{} + static_cast<Work>(picked->weight), y);
    } else if constexpr (std::is_same_v<In, Out> && !kScaled) {
      __builtin_memcpy(to, a, kCount * sizeof(In));  // with every bit
      to = reinterpret_cast<Out*>(reinterpret_cast<char*>(to) + s.step_bytes);
      continue;
    } else {
      load_lanes<kCount, Work>(a, y);
    }
    if constexpr (kScaled) {
      multiply_add_lanes(scale, y, shift);
    }
    store_lanes<kCount, Work>(y, to);
    to = reinterpret_cast<Out*>(reinterpret_cast<char*>(to) + s.step_bytes);
  }
}

// Columns of kCount; the last reaches back over what is already written where they do not come out even.
template <int kCount, bool kScaled, class In, class Out>
void write_columns(const WindowSegment& s, const char* values, const Pick<double>* picks, int64_t count, char* out) {
  if constexpr (kCount > 1) {
    if (s.features < kCount) return write_columns<kCount / 2, kScaled, In, Out>(s, values, picks, count, out);
  }
  int64_t d = 0;
  for (; d + kCount <= s.features; d += kCount) write_column<kCount, kScaled, In, Out>(s, values, picks, count, d, out);
  if (d < s.features) write_column<kCount, kScaled, In, Out>(s, values, picks, count, s.features - kCount, out);
}

// Steps of floats that copy a row or mix two.
void write_rows(const WindowSegment& s, const char* values, const Pick<double>* picks, int64_t count, char* out) {
  with_floating(s.value_dtype, [&](auto in) {
    with_floating(s.out_dtype, [&](auto made) {
      using In = decltype(in);
      using Out = decltype(made);
      constexpr int kCount = kRegisterBytes / static_cast<int>(sizeof(WorkType<In>));
      s.scale == nullptr ? write_columns<kCount, false, In, Out>(s, values, picks, count, out)
                         : write_columns<kCount, true, In, Out>(s, values, picks, count, out);
    });
  });
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

// ---- steps -------------------------------------------------------------------------------------------------------------

// Whether a step takes a row as it is, or a straight mixture of two.
bool is_straight(const WindowSegment& s, const Pick<double>& picked) {
  return picked.kind == PickKind::kOne || (picked.kind == PickKind::kMix && !is_curved(s.method));
}

// `out`: of the first of these steps.
void write_steps(const WindowSegment& s, const EpisodeRows& rows, const char* values, const int64_t* times,
                 const Pick<double>* picks, int64_t count, char* out) {
  for (int64_t k = 0; k < count;) {
    char* const to = out + k * s.step_bytes;
    if (picks[k].kind == PickKind::kAbsent) {
      __builtin_memset(to, 0, static_cast<size_t>(s.features * dtype_size(s.out_dtype)));
      ++k;
    } else if (!is_floating(s.value_dtype)) {
      __builtin_memcpy(to, values + picks[k].left * s.row_bytes,
                       static_cast<size_t>(s.features * dtype_size(s.value_dtype)));
      ++k;
    } else if (is_straight(s, picks[k])) {
      int64_t end = k + 1;
      while (end < count && is_straight(s, picks[end])) ++end;
      write_rows(s, values, picks + k, end - k, to);
      k = end;
    } else {
      s.value_dtype == DType::kFloat64 ? write_curve<double>(s, rows, values, times, picks[k], to)
                                       : write_curve<float>(s, rows, values, times, picks[k], to);
      ++k;
    }
  }
}

// The hint for the next target, where it lies a few rows on: all are compared at once, without a branch to guess wrong.
int64_t advanced(const int64_t* times, int64_t n, int64_t target, int64_t hint) {
  constexpr int kRows = 8;
  if (hint + kRows >= n) return hint;
  int64_t passed = 0;
  for (int k = 1; k <= kRows; ++k) passed += times[hint + k] <= target ? 1 : 0;
  return hint + passed;
}

// Times nearer to 0 than this have differences that are int64; 1.8e18 ns after 1970, as of today, is.
constexpr int64_t kFar = int64_t{1} << 62;

// Whether the moments around an anchor, and the closeness that counts as on a row, are so near.
bool is_near(const WindowMoment* moments, int64_t count, const EpisodeRows& rows, int64_t anchor_ns, int64_t snap_ns) {
  return anchor_ns > -kFar / 2 && anchor_ns < kFar / 2 && moments[0].delta_ns > -kFar / 2 &&
         moments[count - 1].delta_ns < kFar / 2 && rows.first_ns > -kFar && snap_ns < kFar / 2;
}

// The row that the first of a clock's moments is, where the next moments are the next rows: each closer than snap_ns to its own
// row and to no other. Else -1. Then find_place() gives the same rows, and by every rule steps take them.
int64_t run_of(const WindowMoment* moments, int64_t count, const ClockRow<int64_t>& times, const EpisodeRows& rows,
               int64_t anchor_ns, int64_t snap_ns) {
  if (!is_near(moments, count, rows, anchor_ns, snap_ns)) return -1;
  const int64_t after_first = anchor_ns + moments[0].delta_ns - rows.first_ns;
  const double guess = static_cast<double>(after_first) * rows.rows_per_ns + 0.5;
  if (!(guess >= 1 && guess < static_cast<double>(rows.rows - count))) return -1;
  const auto first = static_cast<int64_t>(guess);
  if (times[first + count] >= kFar) return -1;
  const int64_t near = snap_ns > 0 ? snap_ns : 1;
  const auto is_on_row = [&](int64_t k) {
    const int64_t target = anchor_ns + moments[k].delta_ns;
    const int64_t* const row = times.data + first + k;
    return (row[0] < target + near) & (row[0] > target - near) & (row[-1] <= target - near) & (row[1] >= target + near);
  };
  if (!is_on_row(count - 1)) return -1;  // the first is often the anchor's own row, whatever the clock
  bool on_rows = true;
  for (int64_t k = 0; k < count; ++k) on_rows &= is_on_row(k);
  return on_rows ? first : -1;
}

// What a clock's moments lie between, all of them inside the recording and between stamps that differ.
struct Brackets {
  static constexpr int32_t kMost = kMaxGroupPicks + 8;  // 4096 bytes apart, writing one would hold up reading another

  int64_t before[kMost];  // the last row at or before the moment, counted from the episode's first
  int64_t since[kMost];   // from that row to the moment
  int64_t gap[kMost];     // and to the next row
  double weight[kMost];   // of the next row
  int64_t hit[kMost];     // 1 where the moment is taken to be on the row, 2 on the next row, else 0
};

// How many of the kSeenRows rows from `times` on are at or before `target`; they ascend.
constexpr int kSeenRows = 8;

int64_t count_passed(const int64_t* times, int64_t target) {
#ifdef __AVX512F__
  return __builtin_popcount(_mm512_cmple_epi64_mask(_mm512_loadu_si512(times), _mm512_set1_epi64(target)));
#else
  int64_t passed = 0;
  for (int k = 0; k < kSeenRows; ++k) passed += times[k] <= target ? 1 : 0;
  return passed;
#endif
}

// Fills what pick_at() makes of a clock's moments, or returns false where one of them is not so simple: outside the recording,
// between rows of one stamp, or with differences beyond int64. Each is searched for by itself, so that none waits for another.
bool find_brackets(const WindowMoment* moments, int64_t count, const int64_t* times, const EpisodeRows& rows,
                   int64_t anchor_ns, int64_t snap_ns, Brackets& found) {
  const int64_t n = rows.rows;
  if (n < kSeenRows || !is_near(moments, count, rows, anchor_ns, snap_ns)) return false;
  int64_t drift = -kSeenRows / 2 + 1;  // from where a row would be by its time alone to the first row looked at
  int64_t latest = 0;
  bool differ = true;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t target = anchor_ns + moments[k].delta_ns;
    const int64_t guess = guess_row(rows, target);
    const int64_t wanted = guess + drift;
    const int64_t first = wanted < 0 ? 0 : wanted < n - kSeenRows ? wanted : n - kSeenRows;
    const int64_t passed = count_passed(times + first, target);
    int64_t before = first + passed - 1;
    if (passed == 0 || passed == kSeenRows) {
      before = last_at_or_before(ClockRow<int64_t>{times, 1}, n, target, before);
      drift = before - guess - kSeenRows / 2 + 1;
    }
    if (before < 0 || before + 2 >= n) return false;
    found.before[k] = before;
    found.since[k] = target - times[before];
    found.gap[k] = times[before + 1] - times[before];
    differ &= times[before + 2] != times[before + 1];
    latest = times[before + 2];
  }
  if (!differ || latest >= kFar) return false;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t since = found.since[k];
    const int64_t until = found.gap[k] - since;
    const bool on_row = since == 0 || (since < snap_ns && since <= until);
    found.hit[k] = on_row ? 1 : until < snap_ns ? 2 : 0;
    found.weight[k] = static_cast<double>(since) / static_cast<double>(found.gap[k]);
  }
  return true;
}

// What pick_at() makes of them for a segment's steps, which aim at one moment after the other.
void pick_bracketed(const WindowSegment& s, const Brackets& found, int64_t first, Pick<double>* picks, bool* is_pad,
                    int64_t* age) {
  const bool mixes = !s.causal && !is_step(s.method);
  const bool held = s.causal || mixes || s.method == InterpolationMethod::kPrevious;  // no step takes the later row
  const int64_t max_gap = s.max_gap_ns < 0 ? INT64_MAX : s.max_gap_ns;
  const int64_t tolerance = s.tolerance_ns < 0 || mixes ? INT64_MAX : s.tolerance_ns;
  for (int32_t k = 0; k < s.steps; ++k) {
    const int64_t at = first + k;
    const int64_t since = found.since[at];
    const int64_t gap = found.gap[at];
    const int64_t hit = found.hit[at];
    const bool between = hit == 0;
    const bool nearer =
        s.method == InterpolationMethod::kNext || (s.method == InterpolationMethod::kNearest && gap - since < since);
    const bool later = hit == 2 || (between && !held && nearer);
    Pick<double>& picked = picks[k];
    picked.left = found.before[at] + (later ? 1 : 0);
    picked.right = picked.left + (between && mixes ? 1 : 0);
    picked.weight = found.weight[at];
    picked.kind = between && mixes ? PickKind::kMix : PickKind::kOne;
    if (is_pad != nullptr) {
      const bool far = (s.causal ? since : gap) > max_gap || (later ? gap - since : since) > tolerance;
      is_pad[k] = between && far;
    }
    if (age != nullptr) age[k] = later ? since - gap : since;
  }
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

    void ask_for(int64_t first, int64_t last) {
      const char* line = values + first * row_bytes;
      const char* const stop = values + last * row_bytes + bytes;
      if (line < asked && stop > asked) line = asked;
      for (; line < stop; line += 64) prefetch(line);
      asked = stop;
    }
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
    Brackets found;
    if (n > 0 && clock.in_order &&
        find_brackets(group.moments + clock.moment_begin, clock.moment_end - clock.moment_begin, times.data, rows,
                      anchor.time_ns, snap_ns, found)) {
      for (int32_t segment = 0; segment < group.segment_count; ++segment) {
        const WindowSegment& s = group.segments[segment];
        if (s.clock != at) continue;
        Stream& stream = streams[segment];
        Pick<double>* const own = picks + s.pick_begin;
        pick_bracketed(s, found, s.first_moment - clock.moment_begin, own, stream.is_pad, stream.age);
        if (stream.values == nullptr) continue;
        const int64_t rows_apart = own[s.steps - 1].right - own[0].left;
        if (rows_apart * stream.row_bytes <= s.steps * (2 * stream.bytes + 64)) {
          stream.ask_for(own[0].left, own[s.steps - 1].right);
        } else {
          for (int32_t k = 0; k < s.steps; ++k) stream.ask_for(own[k].left, own[k].right);
        }
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
        Pick<double> chosen{0, 0, 0, PickKind::kAbsent, false};
        if (n > 0) chosen = pick_at(times, n, place, group.segments[step.segment]);
        // Field by field: a whole Pick read back right after its fields were written waits for every one of them.
        Pick<double>& picked = picks[step.pick];
        picked.left = chosen.left;
        picked.right = chosen.right;
        picked.weight = chosen.weight;
        picked.kind = chosen.kind;
        if (stream.is_pad != nullptr) stream.is_pad[step.step] = !chosen.valid;
        if (stream.age != nullptr) stream.age[step.step] = age_of(times, chosen, target);
        if (stream.values == nullptr) continue;
        stream.ask_for(chosen.left, chosen.right);
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
constexpr int64_t kShortGap = 16 << 10;  // bytes

void write_from_file(const WindowSegment& s, const EpisodeRows& rows, const int64_t* times, const Pick<double>* picks,
                     char* out) {
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
    write_steps(s, rows, values, times, picks + k, end - k, out + k * s.step_bytes);
    k = end;
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
    write_steps(s, rows, values, times, own, s.steps, out);
  }
}

bool has_files(const WindowSource& source) {
  for (int32_t g = 0; g < source.group_count; ++g) {
    const Group group(source.groups[g]);
    for (int32_t at = 0; at < group.segment_count; ++at) {
      if (group.segments[at].file.descriptor >= 0) return true;
    }
  }
  return false;
}

bool has_files(const WindowBatch& batch) {
  if (batch.plan.sources == nullptr) return has_files(batch.plan.first);
  for (int32_t source = 0; source < batch.mixture.sources; ++source) {
    if (has_files(batch.plan.sources[source])) return true;
  }
  return false;
}

// Says which rows of files a sample probably reads: those of windows without gaps, where they would be by their times alone.
void expect_files(const WindowSource& source, const Anchor& anchor) {
  for (int32_t g = 0; g < source.group_count; ++g) {
    const Group group(source.groups[g]);
    for (int32_t at = 0; at < group.segment_count; ++at) {
      const WindowSegment& s = group.segments[at];
      const EpisodeRows rows = group.clocks[s.clock].rows.rows_of(anchor.episode);
      if (s.file.descriptor < 0 || s.first_moment < 0 || rows.rows == 0) continue;
      const int64_t last_delta_ns = group.moments[s.first_moment + s.steps - 1].delta_ns;
      const int64_t first = guess_row(rows, saturating_add(anchor.time_ns, s.first_delta_ns));
      const int64_t last = guess_row(rows, saturating_add(anchor.time_ns, last_delta_ns)) + 1;
      const int64_t end = last < rows.rows ? last + 1 : rows.rows;
      if ((end - first) * s.row_bytes > s.steps * (kShortGap + 2 * s.row_bytes))
        continue;  // reads with gaps between them
      expect_rows(s.file, (rows.begin + first) * s.row_bytes, (end - first) * s.row_bytes);
    }
  }
}

// The same of samples [begin, end), as far as the batch has them.
void expect_files(const WindowBatch& batch, int64_t begin, int64_t end) {
  const WindowPlan& plan = batch.plan;
  for (int64_t i = begin; i < end && i < batch.count; ++i) {
    const Draw draw = batch.draw(i);
    const WindowSource& source = plan.sources == nullptr ? plan.first : plan.sources[draw.source];
    expect_files(source, source.anchors.at(draw.anchor));
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
  if (has_files(batch)) {
    constexpr int64_t kAhead = 64;  // samples
    expect_files(batch, begin == 0 ? 0 : begin + kAhead, end + kAhead);
  }
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
