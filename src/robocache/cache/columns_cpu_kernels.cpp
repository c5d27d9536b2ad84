// Built once per instruction set, into namespace robocache::ROBOCACHE_ISA.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "robocache/cache/columns_cpu.hpp"

namespace robocache::ROBOCACHE_ISA {
namespace {

constexpr int64_t kLanes = 8;  // of sum and sum_squares

template <class Real>
using KeyOf = typename cache::ColumnKernels<Real>::Key;

template <class Real>
int64_t count_infinite(const Real* numbers, int64_t count) {
  constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
  int64_t infinite = 0;
  for (int64_t i = 0; i < count; ++i) infinite += numbers[i] == kInfinity || numbers[i] == -kInfinity ? 1 : 0;
  return infinite;
}

template <class Real>
bool is_finite(Real x) {
  return x - x == 0;  // NaN for NaN and infinity
}

template <class Real, class Term>
int64_t sum_in_lanes(const Real* __restrict numbers, int64_t count, double* __restrict lanes, const Term& term) {
  constexpr int64_t kPiece = 512;
  double sums[kLanes];
  std::memcpy(sums, lanes, sizeof(sums));
  int64_t finite = count;
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t end = count - begin < kPiece ? count : begin + kPiece;
    KeyOf<Real> not_finite = 0;
    for (int64_t i = begin; i < end; ++i) not_finite += is_finite(numbers[i]) ? 0 : 1;
    finite -= static_cast<int64_t>(not_finite);
    for (int64_t i = begin; i < end; i += kLanes) {
      if (not_finite == 0) {
        for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += term(numbers[i + lane]);
      } else {
        for (int64_t lane = 0; lane < kLanes; ++lane) {
          const Real x = numbers[i + lane];
          if (is_finite(x)) sums[lane] += term(x);
        }
      }
    }
  }
  std::memcpy(lanes, sums, sizeof(sums));
  return finite;
}

template <class Real>
int64_t sum(const Real* numbers, int64_t count, double* lanes) {
  return sum_in_lanes(numbers, count, lanes, [](Real x) { return static_cast<double>(x); });
}

template <class Real>
int64_t sum_squares(const Real* numbers, int64_t count, double mean, double* lanes) {
  return sum_in_lanes(numbers, count, lanes, [mean](Real x) {
    const double d = static_cast<double>(x) - mean;
    return d * d;
  });
}

// Makes the same keys as order_key(), which is not compiled for each instruction set.
template <class Real>
void make_keys(const Real* __restrict numbers, int64_t count, KeyOf<Real>* __restrict keys, KeyOf<Real>& least,
               KeyOf<Real>& greatest) {
  using Key = KeyOf<Real>;
  constexpr int kSignBit = 8 * static_cast<int>(sizeof(Key)) - 1;
  Key lowest = least;
  Key highest = greatest;
  for (int64_t i = 0; i < count; ++i) {
    Key bits;
    std::memcpy(&bits, numbers + i, sizeof(bits));
    const Key key = bits ^ ((Key{0} - (bits >> kSignBit)) | (Key{1} << kSignBit));
    keys[i] = key;
    lowest = key < lowest ? key : lowest;
    highest = key > highest ? key : highest;
  }
  least = lowest;
  greatest = highest;
}

template <class Key>
int64_t keep_within(Key* keys, int64_t count, const Key* lows, const Key* spans, int64_t ranges) {
  constexpr int64_t kPiece = 64;
  constexpr int64_t kGroup = sizeof(uint64_t);  // keys are skipped in groups, since usually none is kept
  int64_t kept = 0;
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t piece = count - begin < kPiece ? count - begin : kPiece;
    uint8_t hits[kPiece] = {};
    if (piece == kPiece) {
      for (int64_t range = 0; range < ranges; ++range) {
        const Key low = lows[range];
        const Key span = spans[range];
        for (int64_t i = 0; i < kPiece; ++i) hits[i] |= keys[begin + i] - low <= span ? 1 : 0;
      }
    } else {
      for (int64_t range = 0; range < ranges; ++range) {
        for (int64_t i = 0; i < piece; ++i) hits[i] |= keys[begin + i] - lows[range] <= spans[range] ? 1 : 0;
      }
    }
    for (int64_t group = 0; group < piece; group += kGroup) {
      uint64_t group_hits;
      std::memcpy(&group_hits, hits + group, sizeof(group_hits));
      if (group_hits == 0) continue;
      for (int64_t i = group; i < group + kGroup && i < piece; ++i) {
        keys[kept] = keys[begin + i];
        kept += hits[i];
      }
    }
  }
  return kept;
}

constexpr int64_t kTile = 4;  // the rows and columns that transpose() handles

template <class Real>
struct TileRow;
template <>
struct TileRow<float> {
  using type __attribute__((vector_size(kTile * sizeof(float)))) = float;
};
template <>
struct TileRow<double> {
  using type __attribute__((vector_size(kTile * sizeof(double)))) = double;
};

// Transposes kTile rows of kTile numbers in registers.
template <class Real>
void transpose(const Real* rows, int64_t row_size, Real* copies, int64_t column_size) {
  using Vector = typename TileRow<Real>::type;
  Vector a;
  Vector b;
  Vector c;
  Vector d;
  std::memcpy(&a, rows, sizeof(a));
  std::memcpy(&b, rows + row_size, sizeof(b));
  std::memcpy(&c, rows + 2 * row_size, sizeof(c));
  std::memcpy(&d, rows + 3 * row_size, sizeof(d));
  const Vector left_above = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Vector left_below = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Vector right_above = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Vector right_below = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  a = __builtin_shufflevector(left_above, left_below, 0, 1, 4, 5);
  b = __builtin_shufflevector(left_above, left_below, 2, 3, 6, 7);
  c = __builtin_shufflevector(right_above, right_below, 0, 1, 4, 5);
  d = __builtin_shufflevector(right_above, right_below, 2, 3, 6, 7);
  std::memcpy(copies, &a, sizeof(a));
  std::memcpy(copies + column_size, &b, sizeof(b));
  std::memcpy(copies + 2 * column_size, &c, sizeof(c));
  std::memcpy(copies + 3 * column_size, &d, sizeof(d));
}

template <class Real>
void copy_columns(const Real* rows, int64_t row_size, int64_t count, int64_t width, Real* copies, int64_t column_size) {
  int64_t row = 0;
  for (; row + kTile <= count; row += kTile, rows += kTile * row_size) {
    int64_t column = 0;
    for (; column + kTile <= width; column += kTile) {
      transpose(rows + column, row_size, copies + column * column_size + row, column_size);
    }
    for (; column < width; ++column) {
      for (int64_t i = 0; i < kTile; ++i) copies[column * column_size + row + i] = rows[i * row_size + column];
    }
  }
  for (; row < count; ++row, rows += row_size) {
    for (int64_t column = 0; column < width; ++column) copies[column * column_size + row] = rows[column];
  }
}

// ---- Scans ----

// The number of lanes, which is the same on every processor.
template <class Real>
constexpr int64_t kScanLanes = 64 / static_cast<int64_t>(sizeof(Real));

// An integer as wide as the numbers, so both fill the same number of registers.
template <class Real>
using Count = std::conditional_t<sizeof(Real) == 4, int32_t, int64_t>;

template <class T>
T lesser(T a, T b) {
  return a < b ? a : b;
}

template <class T>
T greater(T a, T b) {
  return a > b ? a : b;
}

template <class Real>
cache::ScanSums<Real> add_up(const Real* numbers, int64_t count, double centre) {
  constexpr int64_t kWidth = kScanLanes<Real>;
  constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
  double sum[kWidth] = {};
  double squares[kWidth] = {};
  Real least[kWidth];
  Real greatest[kWidth];
  for (int64_t lane = 0; lane < kWidth; ++lane) {
    least[lane] = kInfinity;
    greatest[lane] = -kInfinity;
  }
  const auto add = [&](int64_t lane, Real x) {
    const double deviation = static_cast<double>(x) - centre;
    sum[lane] += deviation;
    squares[lane] += deviation * deviation;
    least[lane] = lesser(x, least[lane]);
    greatest[lane] = greater(x, greatest[lane]);
  };
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    for (int64_t lane = 0; lane < kWidth; ++lane) add(lane, numbers[i + lane]);
  }
  for (; i < count; ++i) add(i % kWidth, numbers[i]);
  for (int64_t half = kWidth / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) {
      sum[lane] += sum[lane + half];
      squares[lane] += squares[lane + half];
      least[lane] = lesser(least[lane + half], least[lane]);
      greatest[lane] = greater(greatest[lane + half], greatest[lane]);
    }
  }
  return {sum[0], squares[0], least[0], greatest[0]};
}

template <class Real, class Holds>
void count_where(const Real* numbers, int64_t count, const Real* quantiles, cache::QuantileCounts& counts,
                 const Holds& holds) {
  constexpr int64_t kWidth = kScanLanes<Real>;
  static_assert(cache::kScanQuantiles == 5);
  const Real quantile[5] = {quantiles[0], quantiles[1], quantiles[2], quantiles[3], quantiles[4]};
  Count<Real> lane_counts[5][kWidth] = {};
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    for (int64_t lane = 0; lane < kWidth; ++lane) {
      const Real x = numbers[i + lane];
      lane_counts[0][lane] += holds(x, quantile[0]) ? 1 : 0;
      lane_counts[1][lane] += holds(x, quantile[1]) ? 1 : 0;
      lane_counts[2][lane] += holds(x, quantile[2]) ? 1 : 0;
      lane_counts[3][lane] += holds(x, quantile[3]) ? 1 : 0;
      lane_counts[4][lane] += holds(x, quantile[4]) ? 1 : 0;
    }
  }
  for (size_t q = 0; q < 5; ++q) {
    for (int64_t rest = i; rest < count; ++rest) counts[q] += holds(numbers[rest], quantile[q]) ? 1 : 0;
    for (int64_t lane = 0; lane < kWidth; ++lane) counts[q] += lane_counts[q][lane];
  }
}

template <class Real>
void count_below(const Real* numbers, int64_t count, const Real* quantiles, cache::QuantileCounts& below) {
  count_where(numbers, count, quantiles, below, [](Real x, Real quantile) { return x < quantile; });
}

template <class Real>
void count_equal(const Real* numbers, int64_t count, const Real* quantiles, cache::QuantileCounts& equal) {
  count_where(numbers, count, quantiles, equal, [](Real x, Real quantile) { return x == quantile; });
}

template <class Real>
cache::ScanSteps<Real> find_steps(const Real* numbers, int64_t count) {
  constexpr int64_t kWidth = kScanLanes<Real>;
  constexpr Real kLargest = std::numeric_limits<Real>::max();
  alignas(64) Real sizes[cache::kScanBlock];
  Count<Real> moved = 0;
  Count<Real> still = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Real step = numbers[i] - numbers[i - 1];
    const Real size = step < 0 ? -step : step;
    const Real finite = size <= kLargest ? size : Real{0};
    still += step == 0 ? 1 : 0;
    moved += finite > 0 ? 1 : 0;
    sizes[i] = finite;
  }
  Real sum[kWidth] = {};
  Real greatest[kWidth] = {};
  const auto add = [&](int64_t lane, Real size) {
    sum[lane] += size;
    greatest[lane] = greater(size, greatest[lane]);
  };
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    for (int64_t lane = 0; lane < kWidth; ++lane) add(lane, sizes[i + lane]);
  }
  for (; i < count; ++i) add(i % kWidth, sizes[i]);
  for (int64_t half = kWidth / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) {
      sum[lane] += sum[lane + half];
      greatest[lane] = greater(greatest[lane + half], greatest[lane]);
    }
  }
  return {sum[0], greatest[0], moved, still};
}

template <class Real>
void mark_changes(const Real* __restrict numbers, int64_t count, uint8_t* __restrict changed) {
  for (int64_t i = 0; i < count; ++i) changed[i] = numbers[i] - numbers[i - 1] == 0 ? 0 : 1;
}

template <class Real>
constexpr cache::ColumnKernels<Real> kKernels{copy_columns<Real>, count_infinite<Real>, sum<Real>,
                                              sum_squares<Real>,  make_keys<Real>,      keep_within<KeyOf<Real>>,
                                              add_up<Real>,       count_below<Real>,    count_equal<Real>,
                                              find_steps<Real>,   mark_changes<Real>};

}  // namespace

const cache::ColumnKernels<float> kFloatColumns = kKernels<float>;
const cache::ColumnKernels<double> kDoubleColumns = kKernels<double>;

}  // namespace robocache::ROBOCACHE_ISA
