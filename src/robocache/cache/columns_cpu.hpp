// Vector code for columns of numbers. No result depends on the instruction set.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "robocache/core/cpu_isa.hpp"

namespace robocache::cache {

inline constexpr int64_t kCacheLine = 64;  // bytes

// The most numbers that one call of a scanning kernel takes.
inline constexpr int64_t kScanBlock = 1024;

// The number of quantiles that a scan compares numbers with.
inline constexpr size_t kScanQuantiles = 5;
using QuantileCounts = std::array<int64_t, kScanQuantiles>;

// `sum` and `squares` are sums over (number - centre). A NaN makes these two NaN, and the other members ignore it.
template <class Real>
struct ScanSums {
  double sum, squares;
  Real least, greatest;
};

// `sum` and `greatest` are over the sizes of finite steps. `moved` counts the finite steps that are not 0, `still` those that
// are 0.
template <class Real>
struct ScanSteps {
  Real sum, greatest;
  int64_t moved, still;
};

// Kernels for float or double. `count` is the number of numbers, in copy_columns of rows.
template <class Real>
struct ColumnKernels {
  using Key = std::conditional_t<sizeof(Real) == 4, uint32_t, uint64_t>;

  // Copies the first `width` numbers of each row into columns. Rows begin `row_size` numbers apart, columns `column_size`.
  void (*copy_columns)(const Real* rows, int64_t row_size, int64_t count, int64_t width, Real* copies,
                       int64_t column_size);

  int64_t (*count_infinite)(const Real* numbers, int64_t count);

  // `sum` adds each finite number i to lanes[i % 8]; `sum_squares` adds its (number - mean)^2. Both return the count of
  // finite numbers. `count` is a multiple of 8.
  int64_t (*sum)(const Real* numbers, int64_t count, double* lanes);
  int64_t (*sum_squares)(const Real* numbers, int64_t count, double mean, double* lanes);

  // Writes the numbers' keys, as order_key() of core. Widens `least` and `greatest` to include them.
  void (*make_keys)(const Real* numbers, int64_t count, Key* keys, Key& least, Key& greatest);

  // Moves the keys that lie in any of the `ranges` [lows[r], lows[r] + spans[r]] to the front, in their order, and
  // returns their count.
  int64_t (*keep_within)(Key* keys, int64_t count, const Key* lows, const Key* spans, int64_t ranges);

  // The kernels below scan at most kScanBlock numbers.
  ScanSums<Real> (*add_up)(const Real* numbers, int64_t count, double centre);

  // Add the count of the numbers below each quantile, or equal to it.
  void (*count_below)(const Real* numbers, int64_t count, const Real* quantiles, QuantileCounts& below);
  void (*count_equal)(const Real* numbers, int64_t count, const Real* quantiles, QuantileCounts& equal);

  // Find the steps from numbers[i - 1] to numbers[i], also for i = 0. mark_changes writes whether the step is not 0.
  ScanSteps<Real> (*find_steps)(const Real* numbers, int64_t count);
  void (*mark_changes)(const Real* numbers, int64_t count, uint8_t* changed);
};

}  // namespace robocache::cache

namespace robocache {
namespace baseline {
extern const cache::ColumnKernels<float> kFloatColumns;
extern const cache::ColumnKernels<double> kDoubleColumns;
}  // namespace baseline
namespace v3 {
extern const cache::ColumnKernels<float> kFloatColumns;
extern const cache::ColumnKernels<double> kDoubleColumns;
}  // namespace v3
namespace v4 {
extern const cache::ColumnKernels<float> kFloatColumns;
extern const cache::ColumnKernels<double> kDoubleColumns;
}  // namespace v4
}  // namespace robocache

namespace robocache::cache {

// Chooses the kernels by the size of Real alone, because integers use keep_within().
template <class Real>
const auto& column_kernels() {
  if constexpr (sizeof(Real) <= 4) {
    return ROBOCACHE_SELECT_ISA(kFloatColumns);
  } else {
    return ROBOCACHE_SELECT_ISA(kDoubleColumns);
  }
}

}  // namespace robocache::cache
