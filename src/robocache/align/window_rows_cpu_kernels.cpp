// Built once per instruction set, into namespace robocache::ROBOCACHE_ISA.
// Finds the rows that the steps of a sample use. It reads only the clocks.
#include <cstdint>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "robocache/align/lanes.hpp"
#include "robocache/align/window_item.hpp"
#include "robocache/align/window_math.hpp"

namespace robocache::ROBOCACHE_ISA {
namespace {

// Returns the hint for a target that is a few rows after the previous one: compares kRows rows at once, without a
// branch to predict.
int64_t advanced(const int64_t* times, int64_t n, int64_t target, int64_t hint) {
  constexpr int kRows = 8;
  if (hint + kRows >= n) return hint;
  int64_t passed = 0;
  for (int k = 1; k <= kRows; ++k) passed += times[hint + k] <= target ? 1 : 0;
  return hint + passed;
}

// Differences between times closer to 0 than this fit in int64. Today's time, 1.8e18 ns after 1970, is closer.
constexpr int64_t kFar = int64_t{1} << 62;

// Whether the moments around an anchor, including snap_ns, are this close to 0.
bool is_near(const WindowMoment* moments, int64_t count, const EpisodeRows& rows, int64_t anchor_ns, int64_t snap_ns) {
  return anchor_ns > -kFar / 2 && anchor_ns < kFar / 2 && moments[0].delta > -kFar / 2 &&
         moments[count - 1].delta < kFar / 2 && rows.first_ns > -kFar && rows.first_ns < kFar && snap_ns < kFar / 2;
}

// Returns the row of a clock's first moment, if the moments match consecutive rows: each is closer than snap_ns to its
// row and to no other. Else returns -1. find_target() would find the same rows, and every method uses them.
int64_t run_of(const WindowMoment* moments, int64_t count, const ClockRow<int64_t>& times, const EpisodeRows& rows,
               int64_t anchor_ns, int64_t snap_ns) {
  if (!is_near(moments, count, rows, anchor_ns, snap_ns)) return -1;
  const int64_t after_first = anchor_ns + moments[0].delta - rows.first_ns;
  const double guess = static_cast<double>(after_first) * rows.rows_per_ns + 0.5;
  if (!(guess >= 1 && guess < static_cast<double>(rows.rows - count))) return -1;
  const auto first = static_cast<int64_t>(guess);
  const int64_t reach = snap_ns > 0 ? snap_ns : 1;
  // This type is as wide as the times, so that the compiler uses vectors.
  const auto is_off_row = [&](int64_t k) -> int64_t {
    const int64_t target = anchor_ns + moments[k].delta;
    const int64_t* const row = times.data + first + k;
    return (row[0] >= target + reach) | (row[0] <= target - reach) | (row[-1] > target - reach) |
           (row[1] < target + reach);
  };
  const double rows_apart = static_cast<double>(moments[count - 1].delta - moments[0].delta) * rows.rows_per_ns;
  if (rows_apart < static_cast<double>(count) - 1.5 || rows_apart > static_cast<double>(count) - 0.5) return -1;
  // Looks at one moment before it reads the far end, which may not be in the processor's cache: at the second, since
  // the first is often the anchor's own row.
  if (is_off_row(count > 1 ? 1 : 0) != 0 || times[first + count] >= kFar) return -1;
  int64_t off_rows = 0;
  for (int64_t k = 0; k < count; ++k) off_rows |= is_off_row(k);
  return off_rows == 0 ? first : -1;
}

// Sets the picks and masks of a segment's steps, which are the n rows from `first` on, as row_at() does. Returns their
// run.
Run pick_rows(const WindowSegment& s, int64_t first, int64_t n, const Picks& picks, bool* is_pad) {
  const auto step_of = [&](int64_t row) {
    return static_cast<int32_t>(row < first ? 0 : row - first < s.steps ? row - first : s.steps);
  };
  const Run run{first < 0 ? 0 : first, step_of(0), step_of(n)};
  const auto set = [&](int32_t begin, int32_t end, int64_t row, int64_t row_step) {
    for (int64_t k = begin; k < end; ++k) picks.left[k] = picks.right[k] = row + (k - begin) * row_step;
  };
  set(0, run.begin, s.causal ? -1 : 0, 0);
  if (!copies_rows(s) || s.file.descriptor >= 0) set(run.begin, run.end, run.row, 1);
  set(run.end, s.steps, n - 1, 0);
  if (is_pad != nullptr) {
    __builtin_memset(is_pad, 1, static_cast<size_t>(s.steps));
    __builtin_memset(is_pad + run.begin, 0, static_cast<size_t>(run.end - run.begin));
  }
  return run;
}

// The number of neighbouring moments or steps in one vector.
constexpr int kLanes = 8;
using Longs = Lanes<int64_t, kLanes>;

// The rows around a clock's moments. All moments lie inside the recording and between stamps that differ.
struct Brackets {
  static constexpr int32_t kMost = Item::kMost;
  static_assert(kMost >= kMaxGroupPicks + kLanes);  // entries after the last moment may hold anything

  int64_t before[kMost];  // the last row at or before the moment, counted from the episode's first
  int64_t since[kMost];   // from that row to the moment
  int64_t gap[kMost];     // from that row to the next
  double weight[kMost];   // the next row's share
  int64_t hit[kMost];     // 1: the moment counts as on that row; 2: on the next row; else 0
};

constexpr int kSeenRows = 8;

// Returns how many of the kSeenRows ascending rows from `times` on are at or before `target`.
int64_t count_passed(const int64_t* times, int64_t target) {
#ifdef __AVX512F__
  return __builtin_popcount(_mm512_cmple_epi64_mask(_mm512_loadu_si512(times), _mm512_set1_epi64(target)));
#else
  int64_t passed = 0;
  for (int k = 0; k < kSeenRows; ++k) passed += times[k] <= target ? 1 : 0;
  return passed;
#endif
}

// Finds the rows around all moments of a clock, as pick_at() does. Returns false if a moment is outside the recording,
// between rows with one stamp, or has differences beyond int64. Each moment is searched separately, so that none waits
// for another.
bool find_brackets(const WindowMoment* moments, int64_t count, const int64_t* times, const EpisodeRows& rows,
                   int64_t anchor_ns, int64_t snap_ns, Brackets& brackets, Wanted& prefetches) {
  const int64_t n = rows.rows;
  if (n < kSeenRows || !is_near(moments, count, rows, anchor_ns, snap_ns)) return false;
  int64_t* const targets = brackets.since;
  int64_t* const first_seen = brackets.before;  // the first of the compared rows
  for (int64_t k = 0; k < count; ++k) {
    const int64_t target = anchor_ns + moments[k].delta;
    const int64_t first = guess_row(rows, target) - kSeenRows / 2 + 1;
    targets[k] = target;
    first_seen[k] = first < 0 ? 0 : first < n - kSeenRows ? first : n - kSeenRows;
  }
  int64_t drift = 0;  // distance of the found rows from the rows that the times suggest
  int64_t latest = 0;
  bool stamps_differ = true;
  for (int64_t k = 0; k < count; ++k) {
    prefetches.prefetch_next();
    const int64_t target = targets[k];
    const int64_t passed = count_passed(times + first_seen[k], target);
    int64_t before = first_seen[k] + passed - 1;
    if (passed == 0 || passed == kSeenRows) {
      const int64_t guess = before;
      before = last_at_or_before(ClockRow<int64_t>{times, 1}, n, target, guess + drift);
      drift = before - guess;
      if (before < 0) return false;
    }
    if (before + 2 >= n) return false;
    const int64_t* const row = times + before;
    latest = row[2];
    stamps_differ &= row[1] != latest;
    brackets.before[k] = before;
    brackets.since[k] = target - row[0];
    // A gap beyond int64 wraps. Then `latest` is at least kFar, and the result is not used.
    brackets.gap[k] = static_cast<int64_t>(static_cast<uint64_t>(row[1]) - static_cast<uint64_t>(row[0]));
  }
  if (!stamps_differ || latest >= kFar) return false;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t since = brackets.since[k];
    const int64_t until = brackets.gap[k] - since;
    const bool on_row = since == 0 || (since < snap_ns && since <= until);
    brackets.hit[k] = on_row ? 1 : until < snap_ns ? 2 : 0;
    brackets.weight[k] = static_cast<double>(since) / static_cast<double>(brackets.gap[k]);
  }
  return true;
}

// Stores the first `count` lanes, at most all.
template <class T>
void store_first(const Lanes<T, kLanes>& lanes, int64_t count, T* to) {
  if (count >= kLanes) {
    __builtin_memcpy(to, &lanes, sizeof(lanes));
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = lanes[i];
  }
}

// Sets the picks of a segment's steps, which have consecutive moments, as pick_at() would.
void pick_bracketed(const WindowSegment& s, const Brackets& brackets, int64_t first, const Picks& picks, bool* is_pad,
                    int64_t* age) {
  const bool mixes = !s.causal && !is_step(s.method);
  // Steps take the earlier row, or mix.
  const bool takes_earlier = s.causal || mixes || s.method == InterpolationMethod::kPrevious;
  // Each lane is -1 if the condition holds, else 0.
  const Longs next = Longs{} - (s.method == InterpolationMethod::kNext && !takes_earlier);
  const Longs nearest = Longs{} - (s.method == InterpolationMethod::kNearest && !takes_earlier);
  const Longs mixing = Longs{} - mixes;
  const Longs causal = Longs{} - s.causal;
  const int64_t max_gap = s.max_gap_ns < 0 ? INT64_MAX : s.max_gap_ns;
  const int64_t tolerance = s.tolerance_ns < 0 || mixes ? INT64_MAX : s.tolerance_ns;
  for (int64_t k = 0; k < s.steps; k += kLanes) {
    const int64_t remaining = s.steps - k;
    Longs before;
    Longs since;
    Longs gap;
    Longs hit;
    Lanes<double, kLanes> weight;
    load_lanes<kLanes, int64_t>(brackets.before + first + k, before);
    load_lanes<kLanes, int64_t>(brackets.since + first + k, since);
    load_lanes<kLanes, int64_t>(brackets.gap + first + k, gap);
    load_lanes<kLanes, int64_t>(brackets.hit + first + k, hit);
    load_lanes<kLanes, double>(brackets.weight + first + k, weight);
    const Longs between = hit == 0;
    const Longs later = (hit == 2) | (between & (next | (nearest & (gap - since < since))));
    const Longs row = before - later;
    store_first<int64_t>(row, remaining, picks.left + k);
    store_first<int64_t>(row - (between & mixing), remaining, picks.right + k);
    store_first<double>(weight, remaining, picks.weight + k);
    if (is_pad != nullptr) {
      const Longs limited = causal ? since : gap;
      const Longs distance = later ? gap - since : since;
      const Longs pad = between & ((limited > max_gap) | (distance > tolerance)) & 1;
      store_first<uint8_t>(__builtin_convertvector(pad, Lanes<uint8_t, kLanes>), remaining,
                           reinterpret_cast<uint8_t*>(is_pad) + k);
    }
    if (age != nullptr) {
      const Longs distance = later ? since - gap : since;
      store_first<int64_t>(distance, remaining, age + k);
    }
  }
}

}  // namespace

void prefetch_clocks(const Group& group, const Anchor& anchor) {
  constexpr int64_t kTimesPerLine = kLineBytes / static_cast<int64_t>(sizeof(int64_t));
  for (int32_t i = 0; i < group.clock_count; ++i) {
    const WindowClock& clock = group.clocks[i];
    const EpisodeRows rows = clock.rows.rows_of(anchor.episode);
    if (rows.rows == 0) continue;
    const int64_t* const times = clock.rows.time_ns + rows.begin;
    const auto guess = [&](int32_t moment) {
      return guess_moment(clock, rows, group.moments[moment].delta, anchor.time_ns);
    };
    const int64_t last = guess(clock.moment_end - 1) + kSeenRows / 2 + 1;
    for (int64_t row = guess(clock.moment_begin) - kSeenRows / 2 + 1; row < last; row += kTimesPerLine) {
      prefetch(times + row);
    }
    prefetch(times + last);
  }
  for (int32_t i = 0; i < group.segment_count; ++i) {
    const WindowSegment& s = group.segments[i];
    const WindowClock& clock = group.clocks[s.clock];
    const EpisodeRows rows = clock.rows.rows_of(anchor.episode);
    if (s.values == nullptr || rows.rows == 0) continue;
    prefetch(values_of(s, rows) + guess_moment(clock, rows, s.first_delta, anchor.time_ns) * s.row_bytes);
  }
}

void find_rows(Item& item, int64_t snap_ns, char* memory, Wanted& prefetches) {
  const Group group(*item.group);
  const Anchor& anchor = item.anchor;
  const Picks picks = item.picks();
  item.wanted.clear();
  struct Stream {
    const char* values;  // the episode's first row
    const char* wanted;  // the end of the last wanted range
    bool* is_pad;
    int64_t* age;
    int64_t row_bytes;
    int64_t bytes;

    void want(int64_t first, int64_t last, Wanted& lines) {
      const char* begin = values + first * row_bytes;
      const char* const end = values + last * row_bytes + bytes;
      if (begin < wanted && end > wanted) begin = wanted;  // the ranges overlap
      lines.add(begin, end);
      wanted = end;
    }
  };
  Stream streams[kMaxGroupSegments];  // one for each segment
  for (int32_t i = 0; i < group.segment_count; ++i) {
    const WindowSegment& s = group.segments[i];
    const EpisodeRows rows = group.clocks[s.clock].rows.rows_of(anchor.episode);
    const int64_t masks = item.sample * s.mask_steps;
    streams[i].values = s.values == nullptr ? nullptr : values_of(s, rows);
    streams[i].wanted = nullptr;
    streams[i].is_pad = s.pad_offset < 0 ? nullptr : reinterpret_cast<bool*>(memory + s.pad_offset) + masks;
    streams[i].age = s.age_offset < 0 ? nullptr : reinterpret_cast<int64_t*>(memory + s.age_offset) + masks;
    streams[i].row_bytes = s.row_bytes;
    streams[i].bytes = s.features * dtype_size(s.value_dtype);
    item.runs[i] = {};
  }
  for (int32_t i = 0; i < group.clock_count; ++i) {
    const WindowClock& clock = group.clocks[i];
    const EpisodeRows rows = clock.rows.rows_of(anchor.episode);
    const int64_t n = rows.rows;
    const ClockRow<int64_t> times{clock.rows.time_ns + rows.begin, 1};
    const WindowMoment* const moments = group.moments + clock.moment_begin;
    const int64_t moment_count = clock.moment_end - clock.moment_begin;
    WindowTarget<> anchor_row{};  // the anchor's, if the clock counts rows
    if (n > 0 && clock.counts_rows) {
      const int64_t target = target_of(clock, 0, anchor.time_ns);
      int64_t hint = guess_row(rows, target);
      anchor_row = find_target(times, n, target, snap_ns, hint);
    }
    const bool has_row_steps = n > 0 && clock.in_order && clock.counts_rows;
    int64_t row = -1;  // of the first moment, if the moments have consecutive rows; else -1
    if (has_row_steps) {
      row = anchor_row.before + moments[0].delta;
    } else if (n > 0 && clock.in_order) {
      row = run_of(moments, moment_count, times, rows, anchor.time_ns, snap_ns);
    }
    if (has_row_steps || row >= 0) {
      const auto clamped_row = [n](int64_t any_row) { return any_row < 0 ? 0 : any_row < n ? any_row : n - 1; };
      for (int32_t segment = 0; segment < group.segment_count; ++segment) {
        const WindowSegment& s = group.segments[segment];
        if (s.clock != i) continue;
        const int64_t first = row + s.first_moment - clock.moment_begin;
        Stream& stream = streams[segment];
        item.runs[segment] = pick_rows(s, first, n, picks.from(s.pick_begin), stream.is_pad);
        if (stream.age != nullptr) {
          for (int32_t k = 0; k < s.steps; ++k) {
            const int64_t target = target_of(clock, group.moments[s.first_moment + k].delta, anchor.time_ns);
            const bool is_absent = s.causal && first + k < 0;
            stream.age[k] =
                is_absent ? INT64_MIN : age_of(times, pick_one<double>(clamped_row(first + k), true), target);
          }
        }
        if (stream.values == nullptr) continue;
        const char* const end = stream.values + clamped_row(first + s.steps - 1) * s.row_bytes + stream.bytes;
        for (const char* line = line_of(stream.values + clamped_row(first) * s.row_bytes); line < end;
             line += kLineBytes) {
          prefetch_near(line);
        }
      }
      continue;
    }
    Brackets brackets;
    if (n > 0 && clock.in_order && !clock.counts_rows &&
        find_brackets(moments, moment_count, times.data, rows, anchor.time_ns, snap_ns, brackets, prefetches)) {
      for (int32_t segment = 0; segment < group.segment_count; ++segment) {
        const WindowSegment& s = group.segments[segment];
        if (s.clock != i) continue;
        Stream& stream = streams[segment];
        const Picks segment_picks = picks.from(s.pick_begin);
        pick_bracketed(s, brackets, s.first_moment - clock.moment_begin, segment_picks, stream.is_pad, stream.age);
        if (stream.values == nullptr) continue;
        const int64_t* const before = brackets.before + s.first_moment - clock.moment_begin;
        // `segment_picks` would be slow to read: it was just written as vectors.
        const int64_t end = before[s.steps - 1] + 1;
        if ((end - before[0]) * stream.row_bytes <= s.steps * (2 * stream.bytes + 64)) {
          stream.want(before[0], end, item.wanted);
        } else {
          for (int32_t k = 0; k < s.steps; ++k) stream.want(segment_picks.left[k], segment_picks.right[k], item.wanted);
        }
      }
      continue;
    }
    int64_t hint = guess_row(rows, target_of(clock, moments[0].delta, anchor.time_ns));
    for (int32_t m = clock.moment_begin; m < clock.moment_end; ++m) {
      const WindowMoment moment = group.moments[m];
      const int64_t target = target_of(clock, moment.delta, anchor.time_ns);
      WindowTarget<> on_clock = anchor_row;
      if (n > 0 && !clock.counts_rows) {
        hint = advanced(times.data, n, target, hint);
        on_clock = find_target(times, n, target, snap_ns, hint);
      }
      for (int32_t slot = 0; slot < moment.slots; ++slot) {
        const WindowSlot step = group.slots[moment.slot_begin + slot];
        Stream& stream = streams[step.segment];
        const WindowSegment& segment = group.segments[step.segment];
        Pick<double> chosen{0, 0, 0, PickKind::kAbsent, false};
        if (n > 0) {
          chosen = clock.counts_rows ? row_at(times, 0, n, on_clock, moment.delta, segment)
                                     : pick_at(times, n, on_clock, segment);
        }
        picks.set(step.pick, chosen);
        if (stream.is_pad != nullptr) stream.is_pad[step.step] = !chosen.valid;
        if (stream.age != nullptr) stream.age[step.step] = age_of(times, chosen, target);
        if (stream.values == nullptr) continue;
        stream.want(chosen.left, chosen.right, item.wanted);
      }
    }
  }
}

}  // namespace robocache::ROBOCACHE_ISA
