// Scans a stream's numbers for the doctor in one pass. docs/doctor.md explains the findings.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <numbers>
#include <span>
#include <vector>

#include "robocache/cache/columns_cpu.hpp"
#include "robocache/cache/dataset.hpp"
#include "robocache/core/dtype.hpp"

namespace robocache::cache {

// A full turn in radians and in degrees.
inline constexpr std::array kTurns{2 * std::numbers::pi, 360.0};
// Runs of equal numbers are reported from this length on.
inline constexpr int64_t kStuckRows = 20;
// A step is a jump if it is kJump times the 99th percentile of the steps around it, and if a share kJumpMoving of those
// steps is nonzero. Chunks with fewer than kJumpRows steps have none.
inline constexpr double kJump = 10;
inline constexpr int64_t kJumpRows = 100;
inline constexpr double kJumpMoving = 0.5;
// A spike is a jump that the next step undoes but for a share kSpikeReturn. A wrap is a step of a full turn, within
// kWrapNear of it.
inline constexpr double kSpikeReturn = 0.2;
inline constexpr double kWrapNear = 0.05;
// An angle wraps often if more than a hundredth of its steps exceed half a turn, and a share kWrapShare of these are wraps: a
// full turn, give or take an ordinary step. A wrap exceeds kWrapRatio times the 99th percentile of the other steps.
inline constexpr double kWrapShare = 0.9;
inline constexpr double kWrapRatio = 3;
// A quaternion's length may differ from 1 by kQuaternionNorm. Its sign flips if its dot product with the row before is below
// kQuaternionFlip.
inline constexpr double kQuaternionNorm = 0.01;
inline constexpr double kQuaternionFlip = -0.5;
// About this many runs, and this many jumps, are kept per feature.
inline constexpr int64_t kMostReported = 1000;

// The results for one feature. All of them except `still` ignore NaN and infinity.
struct ColumnScan {
  int64_t count = 0;
  double sum = 0;  // of (number - centre); `squares` sums its square
  double squares = 0;
  double least = std::numeric_limits<double>::infinity();
  double greatest = -std::numeric_limits<double>::infinity();
  QuantileCounts below{};  // counts of the numbers below each quantile; `equal` counts those equal to it
  QuantileCounts equal{};
  int64_t still = 0;  // rows whose number equals that of the previous row
};

// Rows [begin, end) of a feature that have the same number.
struct StuckRun {
  int64_t feature, begin, end;
};

enum class JumpKind : uint8_t { kSpike, kWrap, kStep };  // kStep: any other jump

struct Jump {
  int64_t feature, row;
  JumpKind kind;
  double step;
};

// How many NaN, or infinities, a feature has in an episode. An episode may have several entries.
struct NotFinite {
  int64_t feature, episode;
  bool is_nan;
  int64_t count, first_row;
};

// Numbers outside a feature's limits; and quaternions whose length is not 1, or whose sign flips, under their first feature.
enum class BeyondKind : uint8_t { kLimits, kNorm, kFlip };

struct Beyond {
  BeyondKind kind;
  int64_t feature;
  int64_t count, first_row;
  double worst;  // the largest distance from the limit, or from length 1; for kFlip the largest -dot
};

// Scans a stream. A step leads from a row to the next row of its episode. Jumps are judged by the steps of their chunk
// of rows. No result depends on the number of threads or on the size of a part. Memory grows with the findings, not
// with `rows`.
class ValueScan {
 public:
  // Values are compared with these: the quantiles and means of `stats`; the limits, [features] each or empty; the first
  // features of quaternions.
  struct Reference {
    FeatureStats stats;
    std::span<const double> low, high;
    std::span<const int64_t> quaternions;
  };

  // Scans `values` [rows, features] of `dtype`, in episodes that begin at `row_offsets` [episodes + 1]. All of these
  // and `reference` must outlive the scan.
  ValueScan(const void* values, DType dtype, int64_t rows, int64_t features, std::span<const int64_t> row_offsets,
            Reference reference);

  // Scans the next chunks: up to `bytes` of them, and at least one. Returns the number of rows scanned so far. The
  // results below are complete once all rows are scanned.
  int64_t add(int64_t bytes);

  const std::vector<ColumnScan>& columns() const { return columns_; }
  const std::vector<StuckRun>& runs() const { return runs_; }
  const std::vector<Jump>& jumps() const { return jumps_; }
  const std::vector<NotFinite>& not_finite() const { return not_finite_; }
  const std::vector<Beyond>& beyond() const { return beyond_; }

 private:
  template <class T>
  class Chunk;
  struct ChunkResults;

  void add_results(const std::vector<ChunkResults>& results);
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
  std::vector<int64_t> run_;                             // of each feature: the row where its current run began
  std::vector<int64_t> reported_runs_, reported_jumps_;  // of each feature
  std::vector<StuckRun> runs_;
  std::vector<Jump> jumps_;
  std::vector<NotFinite> not_finite_;
  std::vector<Beyond> beyond_;
};

}  // namespace robocache::cache
