// A sample on its way through the stages of the CPU loop, built once per instruction set: drawn, searched, written. Each
// stage asks for the memory that the next one reads.
#pragma once

#include <cstdint>

#include "robocache/align/window_math.hpp"
#include "robocache/align/window_params.hpp"
#include "robocache/sample/anchors.hpp"
#include "robocache/source/rows.hpp"

namespace robocache::ROBOCACHE_ISA {

// Into the second cache: the first is shorter than what is asked for of windows on several clocks.
inline void prefetch(const void* at) {
  asm volatile("");  // or the compiler drops the call of a function that does nothing but prefetch
  __builtin_prefetch(at, 0, 2);
}

// Into the first cache, where that holds all that is asked for until it is read.
inline void prefetch_near(const void* at) {
  asm volatile("");
  __builtin_prefetch(at, 0, 3);
}

inline constexpr int64_t kLineBytes = 64;

// Where the line begins that a byte is in.
inline const char* line_of(const char* at) { return at - reinterpret_cast<uintptr_t>(at) % kLineBytes; }

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
    if (begin < end) ranges_[count_++] = {line_of(begin), end};
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
    line_ += kLineBytes;
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
inline const char* values_of(const WindowSegment& s, const EpisodeRows& rows) {
  return static_cast<const char*>(s.values) + rows.begin * s.row_bytes;
}

// Whether a step that takes one row is a copy of it.
inline bool copies_rows(const WindowSegment& s) { return s.value_dtype == s.out_dtype && s.scale == nullptr; }

// A group and its tables.
struct Group : WindowTables {
  explicit Group(const WindowGroup& group)
      : WindowTables(tables_of(group)), segment_count(group.segment_count), clock_count(group.clock_count) {}

  int32_t segment_count;
  int32_t clock_count;
};

// What steps take: a row, or of two rows a mixture, or nothing where `left` is below 0.
struct Picks {
  int64_t* left;
  int64_t* right;  // another row than the left one where the two are mixed
  double* weight;  // of right, of those alone

  Picks from(int64_t step) const { return {left + step, right + step, weight + step}; }
  bool is_nothing(int64_t step) const { return left[step] < 0; }
  bool is_mixed(int64_t step) const { return right[step] != left[step]; }

  Pick<double> operator[](int64_t step) const {
    if (is_nothing(step)) return {0, 0, 0, PickKind::kAbsent, false};
    if (!is_mixed(step)) return pick_one<double>(left[step], true);
    return {left[step], right[step], weight[step], PickKind::kMix, true};
  }

  void set(int64_t step, const Pick<double>& picked) const {
    const bool nothing = picked.kind == PickKind::kAbsent;
    left[step] = nothing ? -1 : picked.left;
    right[step] = nothing ? -1 : picked.right;
    weight[step] = picked.weight;
  }
};

// A group of a sample, from its search until its values are written.
struct Item {
  static constexpr int32_t kMost = kMaxGroupPicks + 8;  // 4096 bytes apart, writing one would hold up reading another

  const WindowGroup* group;
  Anchor anchor;
  int64_t sample;  // its place in the batch
  alignas(64) int64_t left[kMost];
  alignas(64) int64_t right[kMost];
  alignas(64) double weight[kMost];
  int64_t runs[kMaxGroupSegments];  // of steps that take one row after the other: the first; else -1
  Wanted wanted;

  Picks picks() { return {left, right, weight}; }
};

// Asks for what find_rows() of a sample probably reads, and for the first of the values, whose pages are then known.
void ask_for_clocks(const Group& group, const Anchor& anchor);

// What each step of an item takes, and so what is wanted, and whether that is padding. `memory`: the batch's. `asked`: asked for
// in the meantime.
void find_rows(Item& item, int64_t snap_ns, char* memory, Wanted& asked);

// The values of an item's steps, into the batch's memory. Throws FileError where rows lie in a file.
void write_values(Item& item, char* memory, Wanted& asked);

// Gaps between rows of a file that are shorter than a read is long are read, too.
inline constexpr int64_t kShortGap = 16 << 10;  // bytes

}  // namespace robocache::ROBOCACHE_ISA
