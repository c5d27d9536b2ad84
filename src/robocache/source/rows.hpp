// The addresses of rows, as plain structs that know no dataset and own no memory. Sampling and alignment read them, and
// kernels get them.
#pragma once

#include <cstdint>

#include "robocache/core/dtype.hpp"
#include "robocache/core/host_device.hpp"

namespace robocache {

// One episode on a clock, in 32 bytes: its rows, and the numbers to guess a row from a time.
struct EpisodeRows {
  int64_t begin;       // the first row on the clock
  int64_t rows;        // 0 if the episode has none
  int64_t first_ns;    // time of the first row
  double rows_per_ns;  // (rows - 1) / (last time - first time); 0 if that is not defined
};

// The times of rows. Streams that were recorded together have one clock: the same pointers.
struct StreamClock {
  const int64_t* time_ns;       // [rows], non-decreasing within an episode
  const EpisodeRows* episodes;  // [episodes], or null for a missing stream, which has no rows

  // Returns the rows of an episode; episode -1 has none.
  ROBOCACHE_HD EpisodeRows rows_of(int64_t episode) const {
    return episodes == nullptr || episode < 0 ? EpisodeRows{0, 0, 0, 0.0} : episodes[episode];
  }

  friend bool operator==(const StreamClock&, const StreamClock&) = default;
};

// Rows in a file that is read with pread. If the file was cut short, pread returns fewer bytes; a mapping would end the
// process.
struct FileRows {
  int32_t descriptor = -1;  // open for reading while the owner of the rows lives; below 0: the rows are in memory
  int64_t offset = 0;       // offset of row 0's first byte
};

// The values of a stream, with a row for each row of its clock.
struct StreamRows {
  StreamClock clock;
  const void* values;  // [rows, features] of dtype, row-major; null if they are in `file`
  int64_t features;
  DType dtype;
  FileRows file = {};
};

}  // namespace robocache
