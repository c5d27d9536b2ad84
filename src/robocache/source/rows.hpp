// Where rows lie, as plain structs that know no file and own nothing: what sampling and alignment read, and what is
// handed to a kernel, whoever keeps the memory.
#pragma once

#include <cstdint>

#include "robocache/core/dtype.hpp"
#include "robocache/core/host_device.hpp"

namespace robocache {

// One episode on a clock, 32 bytes: where its rows are and what is needed to guess a row from a time.
struct EpisodeRows {
  int64_t begin;       // first row on the clock
  int64_t rows;        // 0 where the episode has none
  int64_t first_ns;    // time of the first row
  double rows_per_ns;  // (rows - 1) / (last time - first time), 0 where that has no value
};

// When rows were recorded. Streams that were recorded together are on one clock: the same pointers.
struct StreamClock {
  const int64_t* time_ns;       // [rows], non-decreasing within an episode
  const EpisodeRows* episodes;  // [episodes], or null: the clock of a stream that is not there, without rows anywhere

  ROBOCACHE_HD EpisodeRows rows_of(int64_t episode) const {
    return episodes == nullptr ? EpisodeRows{0, 0, 0, 0.0} : episodes[episode];
  }

  friend bool operator==(const StreamClock&, const StreamClock&) = default;
};

// Rows [begin, end) of a clock.
struct RowSpan {
  int64_t begin;
  int64_t end;

  friend bool operator==(const RowSpan&, const RowSpan&) = default;
};

// Rows in a file that is read with pread: a read of one that was cut short comes out short, where a mapping would end
// the process.
struct FileRows {
  int32_t descriptor = -1;  // open for reading as long as whoever keeps the rows; below 0: they are in memory
  int64_t offset = 0;       // of row 0, in bytes
};

// What was recorded: the values of a stream, a row for each of its clock's.
struct StreamRows {
  StreamClock clock;
  const void* values;  // [rows, features] of dtype, row-major; null where they are in `file`
  int64_t features;
  DType dtype;
  FileRows file = {};
};

}  // namespace robocache
