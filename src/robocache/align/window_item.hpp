// A sample in the stages of the CPU loop: drawn, searched, written. The loop is built once per instruction set. Each
// stage prefetches the memory that the next one reads.
#pragma once

#include <cstdint>

#include "robocache/align/window_math.hpp"
#include "robocache/align/window_params.hpp"
#include "robocache/sample/anchors.hpp"
#include "robocache/source/rows.hpp"

namespace robocache::ROBOCACHE_ISA {

// Prefetches into the second-level cache. The first is too small for windows on several clocks.
inline void prefetch(const void* address) {
  asm volatile("");  // without it the compiler drops calls of a function that only prefetches
  __builtin_prefetch(address, 0, 2);
}

// Prefetches into the first-level cache, for little memory that is read soon.
inline void prefetch_near(const void* address) {
  asm volatile("");
  __builtin_prefetch(address, 0, 3);
}

inline constexpr int64_t kLineBytes = 64;

// Returns the start of a byte's cache line.
inline const char* line_of(const char* address) { return address - reinterpret_cast<uintptr_t>(address) % kLineBytes; }

// Memory that will be read soon. It is prefetched one line at a time between other work, because a processor stops when
// too many lines are in flight, or when it must look up a page.
class Wanted {
 public:
  void clear() {
    count_ = 0;
    next_ = 0;
    line_ = nullptr;
    end_ = nullptr;
  }

  // Adds a range; at most kMaxGroupPicks times.
  void add(const char* begin, const char* end) {
    if (begin < end) ranges_[count_++] = {line_of(begin), end};
  }

  // Prefetches the next line, if there is one.
  void prefetch_next() {
    if (line_ >= end_) {
      if (next_ == count_) return;
      line_ = ranges_[next_].begin;
      end_ = ranges_[next_].end;
      ++next_;
    }
    prefetch(line_);
    line_ += kLineBytes;
  }

  void prefetch_rest() {
    while (line_ < end_ || next_ < count_) prefetch_next();
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

// The values of an episode: row r begins at r * row_bytes.
inline const char* values_of(const WindowSegment& s, const EpisodeRows& rows) {
  return static_cast<const char*>(s.values) + rows.begin * s.row_bytes;
}

// Whether a step that uses one row copies the row unchanged.
inline bool copies_rows(const WindowSegment& s) {
  return s.value_dtype == s.out_dtype && s.scale == nullptr && s.subtracted == nullptr;
}

// A group and its tables.
struct Group : WindowTables {
  explicit Group(const WindowGroup& group)
      : WindowTables(tables_of(group)), segment_count(group.segment_count), clock_count(group.clock_count) {}

  int32_t segment_count;
  int32_t clock_count;
};

// The rows that steps use: one, a mixture of two, or none if `left` is negative.
struct Picks {
  int64_t* left;
  int64_t* right;  // another row than `left` if the two are mixed
  double* weight;  // the share of `right`, for mixtures only

  Picks from(int64_t step) const { return {left + step, right + step, weight + step}; }
  bool is_absent(int64_t step) const { return left[step] < 0; }
  bool is_mixed(int64_t step) const { return right[step] != left[step]; }

  Pick<double> operator[](int64_t step) const {
    if (is_absent(step)) return {0, 0, 0, PickKind::kAbsent, false};
    if (!is_mixed(step)) return pick_one<double>(left[step], true);
    return {left[step], right[step], weight[step], PickKind::kMix, true};
  }

  void set(int64_t step, const Pick<double>& picked) const {
    const bool is_none = picked.kind == PickKind::kAbsent;
    left[step] = is_none ? -1 : picked.left;
    right[step] = is_none ? -1 : picked.right;
    weight[step] = picked.weight;
  }
};

// Steps [begin, end) of a segment that use consecutive rows, from `row` on.
struct Run {
  int64_t row;
  int32_t begin;
  int32_t end;
};

// A group of a sample, from its search until its values are written.
struct Item {
  static constexpr int32_t kMost = kMaxGroupPicks + 8;  // spacing: arrays 4096 bytes apart would slow each other down

  const WindowSource* source;
  const WindowGroup* group;
  Anchor anchor;
  int64_t sample;  // its index in the batch
  alignas(64) int64_t left[kMost];
  alignas(64) int64_t right[kMost];
  alignas(64) double weight[kMost];
  Run runs[kMaxGroupSegments];  // one for each segment
  Wanted wanted;

  Picks picks() { return {left, right, weight}; }
};

// Prefetches the memory that find_rows() of a sample will probably read, and the first values, so that the processor
// also looks up their page.
void prefetch_clocks(const Group& group, const Anchor& anchor);

// Finds the rows of each step of an item and the memory that they need, and writes masks and ages to the batch at
// `memory`. Meanwhile prefetches the memory in `prefetches`.
void find_rows(Item& item, int64_t snap_ns, char* memory, Wanted& prefetches);

// Writes the values of an item's steps to the batch. Throws FileError for rows in a file.
void write_values(Item& item, char* memory, Wanted& prefetches);

// A read of a file includes gaps between rows that are shorter than this.
inline constexpr int64_t kShortGap = 16 << 10;  // bytes

}  // namespace robocache::ROBOCACHE_ISA
