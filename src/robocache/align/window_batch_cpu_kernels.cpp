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

// A sample's memory is nowhere near the last one's, so each visit would wait for main memory. Each stage asks for what the
// next one reads instead: so many samples are drawn together, while as many before them are searched, and some are searched
// together and then as many before those are written.
constexpr int64_t kTogether = 8;
constexpr int64_t kSearched = 4;

void prefetch(const void* at) {
  asm volatile("");  // or the compiler drops the call of a function that does nothing but prefetch
  __builtin_prefetch(at, 0, 3);
}

// Memory that is soon read, asked for a line at a time between other work: a processor waits where it has asked for more lines
// than it keeps account of, or for a page that it does not know.
class Wanted {
 public:
  void clear() {
    count_ = 0;
    next_ = 0;
    line_ = nullptr;
    end_ = nullptr;
  }

  // At most kMaxGroupPicks times.
  void add(const char* begin, const char* end) {
    if (begin < end) ranges_[count_++] = {begin, end};
  }

  // For the next line, if any.
  void ask() {
    if (line_ >= end_) {
      if (next_ == count_) return;
      line_ = ranges_[next_].begin;
      end_ = ranges_[next_].end;
      ++next_;
    }
    prefetch(line_);
    line_ += 64;
  }

  void ask_for_all() {
    while (line_ < end_ || next_ < count_) ask();
  }

 private:
  struct Range {
    const char* begin;
    const char* end;
  };

  Range ranges_[kMaxGroupPicks];
  int32_t count_ = 0;
  int32_t next_ = 0;
  const char* line_ = nullptr;
  const char* end_ = nullptr;
};

// Where an episode's values lie: row r of it r * row_bytes on.
const char* values_of(const WindowSegment& s, const EpisodeRows& rows) {
  return static_cast<const char*>(s.values) + rows.begin * s.row_bytes;
}

// ---- one row, or a straight mixture of two -----------------------------------------------------------------------------

// Features [begin, begin + kColumns * kCount) of the steps, or of a column as many as `part` says. The steps are neither curved
// nor without a row to take. Step by step, so that scale and shift are loaded once.
template <int kColumns, int kCount, bool kScaled, class In, class Out, class Part>
void write_column(const WindowSegment& s, const char* values, const Pick<double>* picks, int64_t count, int64_t begin,
                  Part part, char* out, Wanted& asked) {
  using Work = WorkType<In>;
  using Column = Lanes<Work, kCount>;
  Column scale[kColumns];
  Column shift[kColumns];
  if constexpr (kScaled) {
    for (int c = 0; c < kColumns; ++c) {
      part.template load<kCount, Work>(static_cast<const Work*>(s.scale) + begin + c * kCount, scale[c]);
      part.template load<kCount, Work>(static_cast<const Work*>(s.shift) + begin + c * kCount, shift[c]);
    }
  }
  const char* const column = values + begin * static_cast<int64_t>(sizeof(In));
  auto* to = reinterpret_cast<Out*>(out) + begin;
  for (const Pick<double>* picked = picks; picked != picks + count; ++picked) {
    asked.ask();
    const auto* const a = reinterpret_cast<const In*>(column + picked->left * s.row_bytes);
    const auto* const b = reinterpret_cast<const In*>(column + picked->right * s.row_bytes);
    const bool mixed = picked->kind == PickKind::kMix;
    const Column weight = static_cast<Work>(picked->weight) - Column{};
    for (int c = 0; c < kColumns; ++c) {
      Column y;
      if (mixed) {
        Column left;
        Column right;
        part.template load<kCount, Work>(a + c * kCount, left);
        part.template load<kCount, Work>(b + c * kCount, right);
        lerp_lanes(left, right, weight, y);
      } else if constexpr (std::is_same_v<In, Out> && !kScaled) {
        part.template copy<kCount>(a + c * kCount, to + c * kCount);  // with every bit
        continue;
      } else {
        part.template load<kCount, Work>(a + c * kCount, y);
      }
      if constexpr (kScaled) {
        multiply_add_lanes(scale[c], y, shift[c]);
      }
      part.template store<kCount, Work>(y, to + c * kCount);
    }
    to = reinterpret_cast<Out*>(reinterpret_cast<char*>(to) + s.step_bytes);
  }
}

// Columns of kCount, four at once as long as there are. Where they do not come out even, the last is a part of one, or where
// there are no such loads and stores it reaches back over what is already written.
template <int kCount, bool kScaled, class In, class Out>
void write_columns(const WindowSegment& s, const char* values, const Pick<double>* picks, int64_t count, char* out,
                   Wanted& asked) {
  constexpr int64_t kFour = int64_t{4} * kCount;
  int64_t d = 0;
  for (; d + kFour <= s.features; d += kFour) {
    write_column<4, kCount, kScaled, In, Out>(s, values, picks, count, d, AllLanes{}, out, asked);
  }
  const auto write = [&](int64_t begin, auto part) {
    write_column<1, kCount, kScaled, In, Out>(s, values, picks, count, begin, part, out, asked);
  };
  for (; d + kCount <= s.features; d += kCount) write(d, AllLanes{});
  if (d == s.features) return;
  if constexpr (kHasParts) {
    write(d, FirstLanes(s.features - d));
  } else if constexpr (kCount > 1) {
    if (d > 0) return write(s.features - kCount, AllLanes{});
    write_columns<kCount / 2, kScaled, In, Out>(s, values, picks, count, out, asked);
  }
}

// Steps of floats that copy a row or mix two.
void write_rows(const WindowSegment& s, const char* values, const Pick<double>* picks, int64_t count, char* out,
                Wanted& asked) {
  with_floating(s.value_dtype, [&](auto in) {
    with_floating(s.out_dtype, [&](auto made) {
      using In = decltype(in);
      using Out = decltype(made);
      constexpr int kCount = kRegisterBytes / static_cast<int>(sizeof(WorkType<In>));
      s.scale == nullptr ? write_columns<kCount, false, In, Out>(s, values, picks, count, out, asked)
                         : write_columns<kCount, true, In, Out>(s, values, picks, count, out, asked);
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
                 const Pick<double>* picks, int64_t count, char* out, Wanted& asked) {
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
      write_rows(s, values, picks + k, end - k, to, asked);
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
  const int64_t near = snap_ns > 0 ? snap_ns : 1;
  const auto is_on_row = [&](int64_t k) {
    const int64_t target = anchor_ns + moments[k].delta_ns;
    const int64_t* const row = times.data + first + k;
    return (row[0] < target + near) & (row[0] > target - near) & (row[-1] <= target - near) & (row[1] >= target + near);
  };
  // The first is often the anchor's own row, whatever the clock, and rows far on may not be at hand.
  if (!is_on_row(count > 1 ? 1 : 0) || times[first + count] >= kFar) return -1;
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
                   int64_t anchor_ns, int64_t snap_ns, Brackets& found, Wanted& asked) {
  const int64_t n = rows.rows;
  if (n < kSeenRows || !is_near(moments, count, rows, anchor_ns, snap_ns)) return false;
  int64_t* const targets = found.since;
  int64_t* const looked_at = found.before;  // of the rows that are seen, the first
  for (int64_t k = 0; k < count; ++k) {
    const int64_t target = anchor_ns + moments[k].delta_ns;
    const int64_t first = guess_row(rows, target) - kSeenRows / 2 + 1;
    targets[k] = target;
    looked_at[k] = first < 0 ? 0 : first < n - kSeenRows ? first : n - kSeenRows;
  }
  int64_t drift = 0;  // of the rows from where their times alone say
  int64_t latest = 0;
  bool differ = true;
  for (int64_t k = 0; k < count; ++k) {
    asked.ask();
    const int64_t target = targets[k];
    const int64_t passed = count_passed(times + looked_at[k], target);
    int64_t before = looked_at[k] + passed - 1;
    if (passed == 0 || passed == kSeenRows) {
      const int64_t guess = before;
      before = last_at_or_before(ClockRow<int64_t>{times, 1}, n, target, guess + drift);
      drift = before - guess;
    }
    if (before < 0 || before + 2 >= n) return false;
    const int64_t* const row = times + before;
    found.before[k] = before;
    found.since[k] = target - row[0];
    found.gap[k] = row[1] - row[0];
    differ &= row[2] != row[1];
    latest = row[2];
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
  const bool next = s.method == InterpolationMethod::kNext;
  const bool nearest = s.method == InterpolationMethod::kNearest;
  const int64_t max_gap = s.max_gap_ns < 0 ? INT64_MAX : s.max_gap_ns;
  const int64_t tolerance = s.tolerance_ns < 0 || mixes ? INT64_MAX : s.tolerance_ns;
  const int64_t* const since = found.since + first;
  const int64_t* const gap = found.gap + first;
  const int64_t* const hit = found.hit + first;
  int64_t later[kMaxGroupPicks];
  for (int32_t k = 0; k < s.steps; ++k) {
    const bool nearer = next | (nearest & (gap[k] - since[k] < since[k]));
    later[k] = (hit[k] == 2) | ((hit[k] == 0) & !held & nearer) ? 1 : 0;
  }
  for (int32_t k = 0; k < s.steps; ++k) {
    const bool mixed = mixes & (hit[k] == 0);
    Pick<double>& picked = picks[k];
    picked.left = found.before[first + k] + later[k];
    picked.right = picked.left + (mixed ? 1 : 0);
    picked.weight = found.weight[first + k];
    picked.kind = mixed ? PickKind::kMix : PickKind::kOne;
  }
  if (is_pad != nullptr) {
    const int64_t* const wide = s.causal ? since : gap;
    for (int32_t k = 0; k < s.steps; ++k) {
      const int64_t distance = later[k] != 0 ? gap[k] - since[k] : since[k];
      is_pad[k] = (hit[k] == 0) & ((wide[k] > max_gap) | (distance > tolerance));
    }
  }
  if (age != nullptr) {
    for (int32_t k = 0; k < s.steps; ++k) age[k] = later[k] != 0 ? since[k] - gap[k] : since[k];
  }
}

// A group and its tables.
struct Group : WindowTables {
  explicit Group(const WindowGroup& group)
      : WindowTables(tables_of(group)), segment_count(group.segment_count), clock_count(group.clock_count) {}

  int32_t segment_count;
  int32_t clock_count;
};

// Asks for what find() of a sample probably reads, and for the first of the values, whose pages are then known.
void prefetch_sample(const Group& group, const Anchor& anchor) {
  constexpr int64_t kTimesPerLine = 64 / sizeof(int64_t);
  for (int32_t at = 0; at < group.clock_count; ++at) {
    const WindowClock& clock = group.clocks[at];
    const EpisodeRows rows = clock.rows.rows_of(anchor.episode);
    if (rows.rows == 0) continue;
    const int64_t* const times = clock.rows.time_ns + rows.begin;
    const auto guess = [&](int32_t moment) {
      return guess_row(rows, saturating_add(anchor.time_ns, group.moments[moment].delta_ns));
    };
    const int64_t last = guess(clock.moment_end - 1) + kSeenRows / 2 + 1;
    for (int64_t row = guess(clock.moment_begin) - kSeenRows / 2 + 1; row < last; row += kTimesPerLine) {
      prefetch(times + row);
    }
    prefetch(times + last);
  }
  for (int32_t at = 0; at < group.segment_count; ++at) {
    const WindowSegment& s = group.segments[at];
    const EpisodeRows rows = group.clocks[s.clock].rows.rows_of(anchor.episode);
    if (s.values == nullptr) continue;
    prefetch(values_of(s, rows) + guess_row(rows, saturating_add(anchor.time_ns, s.first_delta_ns)) * s.row_bytes);
  }
}

// A group of a sample, from its search until its values are written.
struct Item {
  const WindowGroup* group;
  Anchor anchor;
  int64_t sample;  // its place in the batch
  Pick<double> picks[kMaxGroupPicks];
  int64_t runs[kMaxGroupSegments];  // of steps that take one row after the other: the first; else -1
  Wanted wanted;
};

// What each step of an item takes, and so what is wanted, and whether that is padding. `memory`: the batch's. `asked`: asked for
// in the meantime.
void find(Item& item, int64_t snap_ns, char* memory, Wanted& asked) {
  const Group group(*item.group);
  const Anchor& anchor = item.anchor;
  Pick<double>* const picks = item.picks;
  item.wanted.clear();
  struct Stream {
    const char* values;  // of the episode's first row
    const char* wanted;  // up to where they are
    bool* is_pad;
    int64_t* age;
    int64_t row_bytes;
    int64_t bytes;

    void want(int64_t first, int64_t last, Wanted& lines) {
      const char* begin = values + first * row_bytes;
      const char* const end = values + last * row_bytes + bytes;
      if (begin < wanted && end > wanted) begin = wanted;
      lines.add(begin, end);
      wanted = end;
    }
  };
  Stream streams[kMaxGroupSegments];  // of each segment
  for (int32_t at = 0; at < group.segment_count; ++at) {
    const WindowSegment& s = group.segments[at];
    const EpisodeRows rows = group.clocks[s.clock].rows.rows_of(anchor.episode);
    const int64_t masks = item.sample * s.mask_steps;
    streams[at].values = s.values == nullptr ? nullptr : values_of(s, rows);
    streams[at].wanted = nullptr;
    streams[at].is_pad = s.pad_offset < 0 ? nullptr : reinterpret_cast<bool*>(memory + s.pad_offset) + masks;
    streams[at].age = s.age_offset < 0 ? nullptr : reinterpret_cast<int64_t*>(memory + s.age_offset) + masks;
    streams[at].row_bytes = s.row_bytes;
    streams[at].bytes = s.features * dtype_size(s.value_dtype);
    item.runs[at] = -1;
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
        item.runs[segment] = first;
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
        const char* const end = stream.values + (first + s.steps - 1) * s.row_bytes + stream.bytes;
        for (const char* line = stream.values + first * s.row_bytes; line < end; line += 64) prefetch(line);
      }
      continue;
    }
    Brackets found;
    if (n > 0 && clock.in_order &&
        find_brackets(group.moments + clock.moment_begin, clock.moment_end - clock.moment_begin, times.data, rows,
                      anchor.time_ns, snap_ns, found, asked)) {
      for (int32_t segment = 0; segment < group.segment_count; ++segment) {
        const WindowSegment& s = group.segments[segment];
        if (s.clock != at) continue;
        Stream& stream = streams[segment];
        Pick<double>* const own = picks + s.pick_begin;
        pick_bracketed(s, found, s.first_moment - clock.moment_begin, own, stream.is_pad, stream.age);
        if (stream.values == nullptr) continue;
        const int64_t rows_apart = own[s.steps - 1].right - own[0].left;
        if (rows_apart * stream.row_bytes <= s.steps * (2 * stream.bytes + 64)) {
          stream.want(own[0].left, own[s.steps - 1].right, item.wanted);
        } else {
          for (int32_t k = 0; k < s.steps; ++k) stream.want(own[k].left, own[k].right, item.wanted);
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
        stream.want(chosen.left, chosen.right, item.wanted);
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
                     char* out, Wanted& asked) {
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
    write_steps(s, rows, values, times, picks + k, end - k, out + k * s.step_bytes, asked);
    k = end;
  }
}

void write(const Item& item, char* memory, Wanted& asked) {
  const Group group(*item.group);
  for (int32_t at = 0; at < group.segment_count; ++at) {
    const WindowSegment& s = group.segments[at];
    const StreamClock& clock = group.clocks[s.clock].rows;
    const EpisodeRows rows = clock.rows_of(item.anchor.episode);
    const int64_t* const times = clock.time_ns + rows.begin;
    const Pick<double>* const own = item.picks + s.pick_begin;
    char* const out = memory + s.out_offset + item.sample * s.out_sample;
    if (s.file.descriptor >= 0) {
      write_from_file(s, rows, times, own, out, asked);
      continue;
    }
    const char* const values = values_of(s, rows);
    if (item.runs[at] >= 0 && copies_rows(s)) {
      copy_run(s, values + item.runs[at] * s.row_bytes, out);
      continue;
    }
    write_steps(s, rows, values, times, own, s.steps, out, asked);
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
  if (has_files(batch)) {
    constexpr int64_t kAhead = 64;  // samples
    expect_files(batch, begin == 0 ? 0 : begin + kAhead, end + kAhead);
  }
  struct Drawn {
    const WindowSource* source;
    Anchor anchor;
  };
  Drawn drawn[2 * kTogether];
  // Samples [first, first + kTogether), as far as there are.
  const auto draw = [&](int64_t first) {
    const int64_t count = end - first < kTogether ? end - first : kTogether;
    Drawn* const own = drawn + (first - begin) % (2 * kTogether);
    int64_t indices[kTogether];
    for (int64_t i = 0; i < count; ++i) {
      const Draw one = batch.draw(first + i);
      own[i].source = plan.sources == nullptr ? &plan.first : plan.sources + one.source;
      if (plan.source_offset >= 0) reinterpret_cast<int64_t*>(memory + plan.source_offset)[first + i] = one.source;
      indices[i] = one.anchor;
      const AnchorIndex& anchors = own[i].source->anchors;
      prefetch(&anchors.first_of[one.anchor >> anchors.shift]);
    }
    for (int64_t i = 0; i < count; ++i) {
      const Anchor anchor = own[i].anchor = own[i].source->anchors.at(indices[i]);
      if (plan.time_offset >= 0) reinterpret_cast<int64_t*>(memory + plan.time_offset)[first + i] = anchor.time_ns;
      if (plan.episode_offset >= 0) {
        reinterpret_cast<int64_t*>(memory + plan.episode_offset)[first + i] = anchor.episode;
      }
      write_constants(*own[i].source, first + i, memory);
    }
    for (int64_t i = 0; i < count; ++i) {
      for (int32_t g = 0; g < own[i].source->group_count; ++g) {
        prefetch_sample(Group(own[i].source->groups[g]), own[i].anchor);
      }
    }
  };
  Item items[2 * kSearched];  // in turn
  int64_t found = 0;
  int64_t written = 0;
  const auto nth = [&](int64_t n) -> Item& { return items[n % (2 * kSearched)]; };
  draw(begin);
  for (int64_t i = begin; i < end; ++i) {
    if ((i - begin) % kTogether == 0) draw(i + kTogether);
    const Drawn& own = drawn[(i - begin) % (2 * kTogether)];
    for (int32_t g = 0; g < own.source->group_count; ++g) {
      Item& item = nth(found);
      item.group = own.source->groups + g;
      item.anchor = own.anchor;
      item.sample = i;
      find(item, plan.snap_ns, memory, nth(found + 2 * kSearched - 1).wanted);
      if (++found % kSearched != 0) continue;
      for (int64_t n = found - kSearched; n < found; ++n) {
        Wanted& next = nth(n).wanted;
        if (n >= kSearched) write(nth(written++), memory, next);
        next.ask_for_all();
      }
    }
  }
  Wanted* last = &items[0].wanted;
  for (int64_t n = written; n < found; ++n) {
    last = &nth(n).wanted;
    last->ask_for_all();
  }
  while (written < found) write(nth(written++), memory, *last);
}

}  // namespace robocache::ROBOCACHE_ISA
