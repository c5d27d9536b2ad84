// What the doctor asks of a stream's numbers, in one pass over them. docs/doctor.md says what comes of it.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/cache/scan_cpu.hpp"
#include "robocache/core/dtype.hpp"

namespace robocache::cache {

// A number that is repeated in so many rows is told.
inline constexpr int64_t kStuckRows = 20;
// A step is a jump where it is so many times the 99th percentile of the steps around it, of which there must be some that move.
inline constexpr double kJump = 10;
inline constexpr int64_t kJumpRows = 100;
inline constexpr double kJumpMoving = 0.5;
// What goes back this near to where it was is a spike, what steps by a turn as near a wrap.
inline constexpr double kSpikeReturn = 0.2;
inline constexpr double kWrapNear = 0.05;
inline constexpr double kQuaternionNorm = 0.01;
inline constexpr double kQuaternionFlip = -0.5;
// Of a column, runs and jumps are kept up to about as many.
inline constexpr int64_t kMostTold = 1000;

// Of one feature. NaN is left out of all but `still`.
struct ColumnScan {
  int64_t count = 0;
  double sum = 0;  // of what numbers are off the centre, as of squares
  double squares = 0;
  double least = std::numeric_limits<double>::infinity();
  double greatest = -std::numeric_limits<double>::infinity();
  PlaceCounts below{};  // of numbers below each quantile, and those that are it
  PlaceCounts at{};
  int64_t still = 0;  // rows with the number of the row before
};

// Rows [begin, end) of a feature that hold one number.
struct StuckRun {
  int64_t feature, begin, end;
};

enum class JumpKind : uint8_t { kSpike, kWrap, kStep };

struct Jump {
  int64_t feature, row;
  JumpKind kind;
  double step;
};

// Numbers of a feature in an episode that are NaN, or infinite. There may be several of one episode.
struct NotFinite {
  int64_t feature, episode;
  bool is_nan;
  int64_t count, first_row;
};

// What lies outside of the limits of a feature; a quaternion's length off 1; its sign turned. By the first feature.
enum class BeyondKind : uint8_t { kLimits, kNorm, kFlip };

struct Beyond {
  BeyondKind kind;
  int64_t feature;
  int64_t count, first_row;
  double worst;
};

// A step leads from a row to the next of its episode; jumps are looked for in chunks of rows, each against its own steps. No
// result depends on the number of threads, nor on how much is added at a time. Memory does not grow with `rows`, but with what is
// found.
class ValueScan {
 public:
  // What is held against the numbers: quantiles and, as the centre of sums, the mean of `stats`; the limits [features] each, or
  // empty; the first features of quaternions.
  struct Reference {
    FeatureStats stats;
    std::span<const double> low, high;
    std::span<const int64_t> quaternions;
  };

  // Of `values` [rows, features] of `dtype` in episodes that begin at `row_offsets` [episodes + 1]. All of it, and the reference,
  // must outlive the scan.
  ValueScan(const void* values, DType dtype, int64_t rows, int64_t features, std::span<const int64_t> row_offsets,
            Reference reference);

  // Looks at the chunks that come next, so many bytes of them and at least one. Returns how many rows it has looked at; what
  // follows is known once that is all of them.
  int64_t add(int64_t bytes);

  const std::vector<ColumnScan>& columns() const { return columns_; }
  const std::vector<StuckRun>& runs() const { return runs_; }
  const std::vector<Jump>& jumps() const { return jumps_; }
  const std::vector<NotFinite>& not_finite() const { return not_finite_; }
  const std::vector<Beyond>& beyond() const { return beyond_; }

 private:
  template <class T>
  class Chunk;
  struct Found;

  void take(const std::vector<Found>& found);
  void end_run(int64_t feature, int64_t begin, int64_t end);

  const void* values_;
  DType dtype_;
  int64_t rows_;
  int64_t features_;
  std::span<const int64_t> row_offsets_;
  Reference reference_;
  int64_t chunk_rows_;
  int64_t added_ = 0;

  std::vector<ColumnScan> columns_;
  std::vector<int64_t> run_;                     // where the number began that each feature held last
  std::vector<int64_t> told_runs_, told_jumps_;  // of each feature
  std::vector<StuckRun> runs_;
  std::vector<Jump> jumps_;
  std::vector<NotFinite> not_finite_;
  std::vector<Beyond> beyond_;
};

}  // namespace robocache::cache
