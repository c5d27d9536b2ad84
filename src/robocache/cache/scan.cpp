#include "robocache/cache/scan.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <memory>
#include <numbers>
#include <optional>
#include <type_traits>
#include <utility>

#include "robocache/cache/columns_cpu.hpp"
#include "robocache/core/thread_pool.hpp"
#include "robocache/core/with_type.hpp"
#include "robocache/interpolation/number.hpp"

namespace robocache::cache {
namespace {

// The size of a chunk in numbers and in rows. Jumps are found within a chunk.
constexpr int64_t kChunk = int64_t{1} << 22;
constexpr int64_t kChunkRows = int64_t{1} << 15;
// The fewest numbers that are worth a thread.
constexpr int64_t kTask = int64_t{1} << 16;
// The number of columns that are copied together: the values are then read in order, and the copies stay in the
// processor's cache.
constexpr int64_t kGroup = 32;

// The type for computing with numbers of type T.
template <class T>
using RealOf = std::conditional_t<std::is_same_v<WorkType<T>, float>, float, double>;

// Does what ColumnKernels::copy_columns does, for every type.
template <class T>
void copy_columns(const T* rows, int64_t row_size, int64_t count, int64_t width, RealOf<T>* copies,
                  int64_t column_size) {
  if constexpr (std::is_same_v<T, RealOf<T>>) {
    column_kernels<T>().copy_columns(rows, row_size, count, width, copies, column_size);
  } else {
    for (int64_t row = 0; row < count; ++row, rows += row_size) {
      for (int64_t column = 0; column < width; ++column)
        copies[column * column_size + row] = to_work<RealOf<T>>(rows[column]);
    }
  }
}

bool is_wrap(double step) {
  return std::ranges::any_of(kTurns, [&](double turn) { return std::abs(std::abs(step) / turn - 1) < kWrapNear; });
}

// Whether a step leads from one end of an angle's range to the other: from -turn / 2 to turn / 2, or from 0 to turn.
bool passes_end(double from, double to) {
  return std::ranges::any_of(kTurns, [&](double turn) {
    const double sum = std::abs(from + to);
    return std::abs(std::abs(to - from) / turn - 1) < kWrapNear &&
           (sum < kWrapNear * turn || std::abs(sum / turn - 1) < kWrapNear);
  });
}

// Returns the 99th percentile of sizes, and reorders them.
template <class Real>
double percentile_of(std::vector<Real>& sizes) {
  const auto percentile = sizes.begin() + static_cast<ptrdiff_t>(0.99 * static_cast<double>(sizes.size() - 1));
  std::ranges::nth_element(sizes, percentile);
  return static_cast<double>(*percentile);
}

// An angle that wraps so often that the 99th percentile of its steps is a wrap.
struct FrequentWraps {
  double turn;
  double ordinary;  // the 99th percentile of the other steps

  // Whether a step is a wrap: a full turn, give or take kWrapNear of it or two ordinary steps.
  bool has(double step) const {
    const double size = std::abs(step);
    return size > kWrapRatio * ordinary && std::abs(size - turn) <= std::max(kWrapNear * turn, 2 * ordinary);
  }
};

// Finds frequent wraps by the sizes of the steps. Values that merely jump have other large steps, too.
template <class Real>
std::optional<FrequentWraps> find_frequent_wraps(const std::vector<Real>& sizes) {
  for (const double turn : kTurns) {
    std::vector<Real> rest;
    std::ranges::copy_if(sizes, std::back_inserter(rest),
                         [&](Real size) { return static_cast<double>(size) < turn / 2; });
    const size_t large = sizes.size() - rest.size();
    if (rest.empty() || large * 100 <= sizes.size()) continue;
    const FrequentWraps wraps{turn, percentile_of(rest)};
    const auto wrapping = std::ranges::count_if(sizes, [&](Real size) { return wraps.has(static_cast<double>(size)); });
    if (static_cast<double>(wrapping) >= kWrapShare * static_cast<double>(large)) return wraps;
  }
  return std::nullopt;
}

void add_beyond(std::vector<Beyond>& findings, const Beyond& finding) {
  if (finding.count == 0) return;
  const auto known = std::ranges::find_if(
      findings, [&](const Beyond& entry) { return entry.kind == finding.kind && entry.feature == finding.feature; });
  if (known == findings.end()) {
    findings.push_back(finding);
  } else {
    known->count += finding.count;
    known->worst = std::max(known->worst, finding.worst);
  }
}

}  // namespace

// The results for some columns of a chunk, before they are added to those of earlier chunks.
struct ValueScan::ChunkResults {
  struct Column {
    ColumnScan scan;
    int64_t first_change = -1;  // the first and the last row that differ from the row before
    int64_t last_change = -1;
  };

  int64_t first;  // the first feature
  std::vector<Column> columns;
  std::vector<StuckRun> runs;  // runs between the first and the last change
  std::vector<Jump> jumps;
  std::vector<NotFinite> not_finite;
  std::vector<Beyond> beyond;
};

// A chunk of rows of a stream with values of type T.
template <class T>
class ValueScan::Chunk {
 public:
  using Real = RealOf<T>;

  Chunk(const ValueScan& scan, int64_t begin, int64_t end)
      : scan_(scan), values_(static_cast<const T*>(scan.values_)), begin_(begin), end_(end) {}

  // Scans `width` columns, from `first` on.
  ChunkResults scan(int64_t first, int64_t width) const {
    ChunkResults results{first, std::vector<ChunkResults::Column>(static_cast<size_t>(width))};
    std::vector<Quantiles> quantiles;
    for (int64_t f = first; f < first + width; ++f)
      quantiles.emplace_back(scan_.reference_.stats, static_cast<size_t>(f));
    std::vector<ScanSteps<Real>> steps(static_cast<size_t>(width));
    std::vector<double> step_sums(static_cast<size_t>(width));
    const auto copies = std::make_unique_for_overwrite<Real[]>(static_cast<size_t>(width * kColumnSize));
    for (int64_t row = begin_; row < end_; row += kScanBlock) {
      const int64_t count = std::min(kScanBlock, end_ - row);
      const std::span<const int64_t> episodes = episode_starts(row, row + count);
      copy_columns(values_ + row * scan_.features_ + first, scan_.features_, count, width, copies.get() + kAhead,
                   kColumnSize);
      for (int64_t c = 0; c < width; ++c) {
        const auto column = static_cast<size_t>(c);
        Real* const numbers = copies.get() + c * kColumnSize + kAhead;
        numbers[-1] = row > 0 ? number(row - 1, first + c) : 0;
        add_numbers(results, first + c, quantiles[column], row, {numbers, static_cast<size_t>(count)});
        const ScanSteps<Real> more = add_steps(results, first + c, row, numbers, count, episodes);
        steps[column].greatest = std::max(steps[column].greatest, more.greatest);
        steps[column].moved += more.moved;
        step_sums[column] += static_cast<double>(more.sum);
      }
    }
    if (!is_floating(scan_.dtype_)) return results;
    for (int64_t c = 0; c < width; ++c) {
      const auto column = static_cast<size_t>(c);
      if (may_jump(steps[column], step_sums[column], results.columns[column].scan)) find_jumps(results, first + c);
    }
    return results;
  }

  // Scans the quaternion in four columns, from `first` on.
  ChunkResults scan_quaternion(int64_t first) const {
    Beyond wrong_norm{BeyondKind::kNorm, first, 0, 0, 0};
    Beyond flip{BeyondKind::kFlip, first, 0, 0, 0};
    std::array<double, 4> previous{};
    auto start = episode_starts(begin_, end_).begin();
    const auto no_start = episode_starts(begin_, end_).end();
    for (int64_t row = std::max<int64_t>(begin_ - 1, 0); row < end_; ++row) {
      std::array<double, 4> q;
      for (int64_t part = 0; part < 4; ++part) q[static_cast<size_t>(part)] = number(row, first + part);
      if (row >= begin_) {
        const double square = q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3];
        // Within these bounds the norm is close enough to 1, so no root is needed.
        const double length_error = square > 0.981 && square < 1.02 ? 0 : std::abs(std::sqrt(square) - 1);
        if (length_error > kQuaternionNorm) count_one(wrong_norm, row, length_error);
        const bool is_first = start != no_start && *start == row;
        while (start != no_start && *start == row) ++start;
        const double dot = q[0] * previous[0] + q[1] * previous[1] + q[2] * previous[2] + q[3] * previous[3];
        if (!is_first && dot < kQuaternionFlip) count_one(flip, row, -dot);
      }
      previous = q;
    }
    ChunkResults results{first};
    for (const Beyond& beyond : {wrong_norm, flip}) add_beyond(results.beyond, beyond);
    return results;
  }

 private:
  // The numbers before a column: the last holds the number of the row before, the others keep the column aligned.
  static constexpr int64_t kAhead = kCacheLine / static_cast<int64_t>(sizeof(Real));
  // Not a power of two, which would map many columns to the same cache lines.
  static constexpr int64_t kColumnSize = kScanBlock + 2 * kAhead;

  // The quantiles of a feature, in its own type.
  struct Quantiles {
    Quantiles(const FeatureStats& stats, size_t feature) {
      const std::array all{stats.q01, stats.q10, stats.q50, stats.q90, stats.q99};
      for (size_t q = 0; q < kScanQuantiles; ++q) {
        const double quantile = all[q][feature];
        const auto rounded = static_cast<Real>(quantile);
        const bool is_exact = static_cast<double>(rounded) == quantile;
        any_exact = any_exact || is_exact;
        exact[q] = is_exact ? rounded : std::numeric_limits<Real>::quiet_NaN();
        // Rounds up to the next number of that type, so the same numbers are below it.
        rounded_up[q] = static_cast<double>(rounded) < quantile
                            ? std::nextafter(rounded, std::numeric_limits<Real>::infinity())
                            : rounded;
      }
      const double mean = stats.mean[feature];
      centre = std::isfinite(mean) ? mean : 0;
    }

    double centre;
    std::array<Real, kScanQuantiles> rounded_up;
    std::array<Real, kScanQuantiles> exact;
    bool any_exact = false;
  };

  Real number(int64_t row, int64_t feature) const { return to_work<Real>(values_[row * scan_.features_ + feature]); }

  // Returns the rows of [begin, end) that begin an episode. An empty episode repeats the row of the next one.
  std::span<const int64_t> episode_starts(int64_t begin, int64_t end) const {
    const auto low = std::ranges::lower_bound(scan_.row_offsets_, begin);
    return {low, std::lower_bound(low, scan_.row_offsets_.end(), end)};
  }

  static void count_one(Beyond& beyond, int64_t row, double size) {
    if (beyond.count++ == 0) beyond.first_row = row;
    beyond.worst = std::max(beyond.worst, size);
  }

  static ChunkResults::Column& column_of(ChunkResults& results, int64_t feature) {
    return results.columns[static_cast<size_t>(feature - results.first)];
  }

  void add_numbers(ChunkResults& results, int64_t feature, const Quantiles& quantiles, int64_t row,
                   std::span<const Real> numbers) const {
    const auto& kernels = column_kernels<Real>();
    ColumnScan& column = column_of(results, feature).scan;
    ScanSums<Real> sums = kernels.add_up(numbers.data(), std::ssize(numbers), quantiles.centre);
    if (!scan_.reference_.low.empty()) compare_with_limits(results, feature, row, numbers, sums);
    std::array<Real, kScanBlock> kept;
    if (!std::isfinite(sums.sum)) {
      note_not_finite(results, feature, row, numbers);
      const auto end = std::ranges::copy_if(numbers, kept.begin(), [](Real x) { return std::isfinite(x); }).out;
      numbers = {kept.begin(), end};
      sums = kernels.add_up(numbers.data(), std::ssize(numbers), quantiles.centre);
    }
    column.count += std::ssize(numbers);
    column.sum += sums.sum;
    column.squares += sums.squares;
    column.least = std::min(column.least, static_cast<double>(sums.least));
    column.greatest = std::max(column.greatest, static_cast<double>(sums.greatest));
    kernels.count_below(numbers.data(), std::ssize(numbers), quantiles.rounded_up.data(), column.below);
    if (quantiles.any_exact)
      kernels.count_equal(numbers.data(), std::ssize(numbers), quantiles.exact.data(), column.equal);
  }

  void note_not_finite(ChunkResults& results, int64_t feature, int64_t row, std::span<const Real> numbers) const {
    int64_t episode = -1;
    for (int64_t i = 0; i < std::ssize(numbers); ++i) {
      const Real x = numbers[static_cast<size_t>(i)];
      if (std::isfinite(x)) continue;
      const auto next_episode = static_cast<size_t>(episode + 1);
      if (episode < 0 || row + i >= scan_.row_offsets_[next_episode]) {
        episode = std::ranges::upper_bound(scan_.row_offsets_, row + i) - scan_.row_offsets_.begin() - 1;
      }
      const bool is_nan = std::isnan(x);
      // If this episode has an entry, it is one of the last two.
      const auto last = std::span(results.not_finite).last(std::min<size_t>(results.not_finite.size(), 2));
      const auto known = std::ranges::find_if(last, [&](const NotFinite& entry) {
        return entry.feature == feature && entry.episode == episode && entry.is_nan == is_nan;
      });
      if (known == last.end()) {
        results.not_finite.push_back({feature, episode, is_nan, 1, row + i});
      } else {
        ++known->count;
      }
    }
  }

  void compare_with_limits(ChunkResults& results, int64_t feature, int64_t row, std::span<const Real> numbers,
                           const ScanSums<Real>& sums) const {
    const double low = scan_.reference_.low[static_cast<size_t>(feature)];
    const double high = scan_.reference_.high[static_cast<size_t>(feature)];
    if (!(static_cast<double>(sums.least) < low || static_cast<double>(sums.greatest) > high)) return;
    Beyond outside{BeyondKind::kLimits, feature, 0, 0, 0};
    for (int64_t i = 0; i < std::ssize(numbers); ++i) {
      const auto x = static_cast<double>(numbers[static_cast<size_t>(i)]);
      const double below = low - x;
      const double above = x - high;
      // If one limit is NaN, the other is ignored too.
      if (std::isnan(below) || std::isnan(above)) continue;
      if (std::max(below, above) > 0) count_one(outside, row + i, std::max(below, above));
    }
    add_beyond(results.beyond, outside);
  }

  // Adds the steps that lead to the rows from `row` on, without steps into another episode.
  ScanSteps<Real> add_steps(ChunkResults& results, int64_t feature, int64_t row, const Real* numbers, int64_t count,
                            std::span<const int64_t> episodes) const {
    const auto& kernels = column_kernels<Real>();
    ScanSteps<Real> steps{};
    int64_t begin = 0;
    const auto add_until = [&](int64_t end) {
      if (begin >= end) return;
      const ScanSteps<Real> more = kernels.find_steps(numbers + begin, end - begin);
      steps.sum += more.sum;
      steps.greatest = std::max(steps.greatest, more.greatest);
      steps.moved += more.moved;
      steps.still += more.still;
    };
    for (const int64_t start : episodes) {
      add_until(start - row);
      begin = start - row + 1;
    }
    add_until(count);
    ChunkResults::Column& column = column_of(results, feature);
    column.scan.still += steps.still;
    if (steps.still == 0) {
      end_run(results, column, feature, row);
      column.last_change = row + count - 1;
      return steps;
    }
    std::array<uint8_t, kScanBlock> changed;
    kernels.mark_changes(numbers, count, changed.data());
    for (const int64_t start : episodes) changed[static_cast<size_t>(start - row)] = 1;
    add_changes(results, column, feature, row, {changed.data(), static_cast<size_t>(count)});
    return steps;
  }

  // A run ends at a row that changes. Among eight rows only the first and the last change can end a run that is long enough.
  static void add_changes(ChunkResults& results, ChunkResults::Column& column, int64_t feature, int64_t row,
                          std::span<const uint8_t> changed) {
    static_assert(kStuckRows >= 8 && std::endian::native == std::endian::little);
    for (size_t i = 0; i < changed.size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, changed.data() + i, std::min<size_t>(8, changed.size() - i));
      if (word == 0) continue;
      const int64_t begin = row + static_cast<int64_t>(i);
      end_run(results, column, feature, begin + std::countr_zero(word) / 8);
      column.last_change = begin + (63 - std::countl_zero(word)) / 8;
    }
  }

  static void end_run(ChunkResults& results, ChunkResults::Column& column, int64_t feature, int64_t row) {
    if (column.first_change < 0) {
      column.first_change = row;
    } else if (row - column.last_change >= kStuckRows) {
      results.runs.push_back({feature, column.last_change, row});
    }
  }

  // A cheap test whether a jump is possible. If the largest step is kJump times the 99th percentile, the mean step is at
  // most (0.99 / kJump + 0.01) of the largest; 1.001 covers the rounding of the sums.
  // Frequent wraps raise the mean, so a column that spans a turn passes too.
  bool may_jump(const ScanSteps<Real>& steps, double sum, const ColumnScan& column) const {
    const int64_t count = end_ - std::max<int64_t>(begin_, 1);
    if (count < kJumpRows || steps.moved < kJumpRows) return false;
    if (static_cast<double>(steps.moved) < kJumpMoving * static_cast<double>(count)) return false;
    const double span = column.greatest - column.least;
    const auto spans_turn = [&](double turn) { return 0.75 * turn < span && span < (1 + kWrapNear) * turn; };
    if (std::ranges::any_of(kTurns, spans_turn) && static_cast<double>(steps.greatest) > 0.75 * span) return true;
    const double most_sum = static_cast<double>(steps.greatest) * (0.99 / kJump + 0.01) * static_cast<double>(count);
    return !std::isfinite(sum) || !(most_sum * 1.001 < sum);
  }

  void find_jumps(ChunkResults& results, int64_t feature) const {
    std::vector<Real> steps;  // the step to each row; 0 if the row begins an episode or has no number before it
    const int64_t first = std::max<int64_t>(begin_, 1);
    for (int64_t row = first; row < end_; ++row) {
      const Real step = number(row, feature) - number(row - 1, feature);
      steps.push_back(std::isfinite(step) ? step : Real{0});
    }
    for (const int64_t start : episode_starts(first, end_)) steps[static_cast<size_t>(start - first)] = 0;
    std::vector<Real> sizes;
    for (const Real step : steps) {
      if (step != 0) sizes.push_back(std::abs(step));
    }
    const std::optional<FrequentWraps> wraps = find_frequent_wraps(sizes);
    const auto bound = static_cast<Real>(kJump * (wraps ? wraps->ordinary : percentile_of(sizes)));
    for (size_t i = 0; i < steps.size(); ++i) {
      const int64_t row = first + static_cast<int64_t>(i);
      const auto step = static_cast<double>(steps[i]);
      if (wraps && wraps->has(step)) {
        results.jumps.push_back({feature, row, JumpKind::kWrap, step});
        continue;
      }
      if (!(std::abs(steps[i]) > bound)) continue;
      const double next_step = i + 1 < steps.size() ? static_cast<double>(steps[i + 1]) : 0;
      const bool is_spike =
          std::abs(next_step) > bound && std::abs(step + next_step) < kSpikeReturn * std::abs(step) &&
          !passes_end(static_cast<double>(number(row - 1, feature)), static_cast<double>(number(row, feature)));
      const JumpKind kind = is_spike ? JumpKind::kSpike : is_wrap(step) ? JumpKind::kWrap : JumpKind::kStep;
      results.jumps.push_back({feature, row, kind, step});
      if (is_spike) ++i;  // skips the step back
    }
  }

  const ValueScan& scan_;
  const T* values_;
  int64_t begin_;
  int64_t end_;
};

ValueScan::ValueScan(const void* values, DType dtype, int64_t rows, int64_t features,
                     std::span<const int64_t> row_offsets, Reference reference)
    : values_(values),
      dtype_(dtype),
      rows_(rows),
      features_(features),
      row_offsets_(row_offsets),
      reference_(reference),
      chunk_rows_(std::clamp<int64_t>(kChunk / std::max<int64_t>(features, 1), 1, kChunkRows)),
      columns_(static_cast<size_t>(features)),
      run_(columns_.size()),
      reported_runs_(columns_.size()),
      reported_jumps_(columns_.size()) {}

int64_t ValueScan::add(int64_t bytes) {
  if (added_ == rows_) return added_;
  const int64_t chunk_bytes = std::max<int64_t>(1, chunk_rows_ * features_ * dtype_size(dtype_));
  const int64_t chunks = std::clamp<int64_t>(bytes / chunk_bytes, 1, (rows_ - added_ + chunk_rows_ - 1) / chunk_rows_);
  const int64_t end = std::min(rows_, added_ + chunks * chunk_rows_);
  const int64_t group = std::clamp<int64_t>(features_, 1, kGroup);
  const int64_t groups = (features_ + group - 1) / group;
  const int64_t tasks = groups + std::ssize(reference_.quaternions);  // of a chunk
  std::vector<ChunkResults> results(static_cast<size_t>(chunks * tasks));
  const int64_t grain = std::max<int64_t>(1, kTask / (group * std::min(chunk_rows_, end - added_)));
  parallel_for(std::ssize(results), grain, [&](int64_t first_task, int64_t end_task) {
    for (int64_t task = first_task; task < end_task; ++task) {
      const int64_t begin = added_ + task / tasks * chunk_rows_;
      const int64_t task_in_chunk = task % tasks;
      with_type(dtype_, [&]<class T>(T) {
        const Chunk<T> chunk(*this, begin, std::min(begin + chunk_rows_, end));
        results[static_cast<size_t>(task)] =
            task_in_chunk < groups
                ? chunk.scan(task_in_chunk * group, std::min(group, features_ - task_in_chunk * group))
                : chunk.scan_quaternion(reference_.quaternions[static_cast<size_t>(task_in_chunk - groups)]);
      });
    }
  });
  added_ = end;
  add_results(results);
  for (int64_t f = 0; added_ == rows_ && f < features_; ++f) end_run(f, run_[static_cast<size_t>(f)], rows_);
  return added_;
}

// Adds results, in the order of the rows.
void ValueScan::add_results(const std::vector<ChunkResults>& results) {
  for (const ChunkResults& chunk : results) {
    for (size_t c = 0; c < chunk.columns.size(); ++c) {
      const int64_t feature = chunk.first + static_cast<int64_t>(c);
      const ColumnScan& column = chunk.columns[c].scan;
      ColumnScan& total = columns_[static_cast<size_t>(feature)];
      total.count += column.count;
      total.sum += column.sum;
      total.squares += column.squares;
      total.least = std::min(total.least, column.least);
      total.greatest = std::max(total.greatest, column.greatest);
      for (size_t q = 0; q < kScanQuantiles; ++q) {
        total.below[q] += column.below[q];
        total.equal[q] += column.equal[q];
      }
      total.still += column.still;
      if (chunk.columns[c].first_change >= 0)
        end_run(feature, run_[static_cast<size_t>(feature)], chunk.columns[c].first_change);
    }
    for (const StuckRun& run : chunk.runs) end_run(run.feature, run.begin, run.end);
    for (size_t c = 0; c < chunk.columns.size(); ++c) {
      if (chunk.columns[c].last_change >= 0) run_[static_cast<size_t>(chunk.first) + c] = chunk.columns[c].last_change;
    }
    for (auto jump = chunk.jumps.begin(); jump != chunk.jumps.end();) {
      const int64_t feature = jump->feature;
      const auto end =
          std::find_if(jump, chunk.jumps.end(), [&](const Jump& other) { return other.feature != feature; });
      int64_t& reported = reported_jumps_[static_cast<size_t>(feature)];
      if (reported <= kMostReported) jumps_.insert(jumps_.end(), jump, end);
      reported += end - jump;
      jump = end;
    }
    not_finite_.insert(not_finite_.end(), chunk.not_finite.begin(), chunk.not_finite.end());
    for (const Beyond& beyond : chunk.beyond) add_beyond(beyond_, beyond);
  }
}

void ValueScan::end_run(int64_t feature, int64_t begin, int64_t end) {
  int64_t& reported = reported_runs_[static_cast<size_t>(feature)];
  if (end - begin < kStuckRows || reported > kMostReported) return;
  ++reported;
  runs_.push_back({feature, begin, end});
}

}  // namespace robocache::cache
