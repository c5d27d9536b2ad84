// Vector code for columns of numbers. No result depends on the instruction set.
#pragma once

#include <cstdint>
#include <type_traits>

#include "robocache/core/cpu_isa.hpp"

namespace robocache::cache {

inline constexpr int64_t kCacheLine = 64;  // bytes

// Kernels for float or double. Each processes `count` numbers.
template <class Real>
struct ColumnKernels {
  using Key = std::conditional_t<sizeof(Real) == 4, uint32_t, uint64_t>;

  // Copies the first `width` numbers of each row into columns. The next row begins `row_size` numbers later; the next
  // column begins `apart` numbers later.
  void (*copy_columns)(const Real* rows, int64_t row_size, int64_t count, int64_t width, Real* copies, int64_t apart);

  int64_t (*count_infinite)(const Real* numbers, int64_t count);

  // `sum` adds each finite number i to lanes[i % 8]; `sum_squares` adds its (number - mean)^2. Both return the count of
  // finite numbers. `count` is a multiple of 8.
  int64_t (*sum)(const Real* numbers, int64_t count, double* lanes);
  int64_t (*sum_squares)(const Real* numbers, int64_t count, double mean, double* lanes);

  // Writes the numbers' order keys. Widens `least` and `greatest` to include them.
  void (*make_keys)(const Real* numbers, int64_t count, Key* keys, Key& least, Key& greatest);

  // Moves the keys that lie in any of the `ranges` [lows[r], lows[r] + spans[r]] to the front, in their order, and
  // returns their count.
  int64_t (*keep_within)(Key* keys, int64_t count, const Key* lows, const Key* spans, int64_t ranges);
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

// Chooses the kernels by the size of Real, so keys of integers use the kernels of float or double.
template <class Real>
const auto& column_kernels() {
  if constexpr (sizeof(Real) <= 4) {
    return ROBOCACHE_SELECT_ISA(kFloatColumns);
  } else {
    return ROBOCACHE_SELECT_ISA(kDoubleColumns);
  }
}

}  // namespace robocache::cache
