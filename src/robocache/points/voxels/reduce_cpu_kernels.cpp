// Built once per instruction set, into namespace robocache::ROBOCACHE_ISA.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "robocache/core/order_key.hpp"
#include "robocache/points/voxels/feature.hpp"
#include "robocache/points/voxels/fixed_point.hpp"
#include "robocache/points/voxels/reduce_cpu.hpp"

namespace robocache::ROBOCACHE_ISA {
namespace {

// The outputs of a tile for features of T; null for modes that are not requested.
template <class T>
struct Results {
  FeatureSum<T>* sum;
  FeatureMean<T>* mean;
  T* min;
  T* max;
  T* first;
  T* last;
};

template <class Out>
Out* output_at(const Outputs& outputs, VoxelMode mode, int64_t offset) {
  Out* const output = outputs.as<Out>(mode);
  return output == nullptr ? nullptr : output + offset;
}

template <class T>
Results<T> results_of(const VoxelReduction& call, int64_t first_cell) {
  const Outputs outputs(call);
  const int64_t offset = first_cell * call.features.count;
  return {output_at<FeatureSum<T>>(outputs, VoxelMode::kSum, offset),
          output_at<FeatureMean<T>>(outputs, VoxelMode::kMean, offset),
          output_at<T>(outputs, VoxelMode::kMin, offset),
          output_at<T>(outputs, VoxelMode::kMax, offset),
          output_at<T>(outputs, VoxelMode::kFirst, offset),
          output_at<T>(outputs, VoxelMode::kLast, offset)};
}

template <class T>
void fill_results(const VoxelReduction& call, const Results<T>& results, int64_t cells) {
  const int64_t n = cells * call.features.count;
  if (results.sum != nullptr) std::fill_n(results.sum, n, FeatureSum<T>{});
  if (results.mean != nullptr) std::fill_n(results.mean, n, fill_of<FeatureMean<T>>(call));
  for (T* const output : {results.min, results.max, results.first, results.last}) {
    if (output != nullptr) std::fill_n(output, n, fill_of<T>(call));
  }
}

// kWidth neighbouring features of one cell.
template <class T, int kWidth>
struct CellFeatures {
  const VoxelTile& tile;
  const uint32_t* rows;
  int64_t points;
  int64_t offset;  // offset of the first feature in its row

  // Returns the features of point i.
  const T* row_at(int64_t i) const { return reinterpret_cast<const T*>(tile.features[rows[i]]) + offset; }
};

// Sums in fixed point, as fixed_point.hpp defines them.
template <class T, int kWidth>
struct FixedPointSums {
  int64_t sum[kWidth] = {};
  int64_t coarse_sum[kWidth] = {};
  int32_t exponent[kWidth] = {};
  uint32_t marks[kWidth] = {};

  void add_integers(const CellFeatures<T, kWidth>& cell) {
    for (int64_t i = 0; i < cell.points; ++i) {
      const T* const row = cell.row_at(i);
      for (int f = 0; f < kWidth; ++f) {
        const auto value = int64_t{to_feature_work(row[f])};
        add(f, value);
        if constexpr (sizeof(T) == 8) coarse_sum[f] += coarse(value);
      }
    }
  }

  void add_floats(const CellFeatures<T, kWidth>& cell, int32_t given_exponent) {
    const bool has_own_quantum = given_exponent == kOwnQuantum;
    int32_t above[kWidth];
    std::fill_n(above, kWidth, kNoExponent);
    for (int64_t i = 0; i < cell.points; ++i) {
      const T* const row = cell.row_at(i);
      for (int f = 0; f < kWidth; ++f) {
        const auto value = to_feature_work(row[f]);
        const uint32_t mark = mark_of(value);
        marks[f] |= mark;
        if (mark == 0) above[f] = std::max(above[f], exponent_above(value));
      }
    }
    QuantumScale scale[kWidth];
    for (int f = 0; f < kWidth; ++f) {
      if (std::is_same_v<T, Float16>) above[f] = kExponentAboveFloat16;
      exponent[f] =
          has_own_quantum ? own_quantum(above[f], cell.points, least_exponent(kFeatureDType<T>)) : given_exponent;
      scale[f] = quantum_scale(exponent[f]);
    }
    for (int64_t i = 0; i < cell.points; ++i) {
      const T* const row = cell.row_at(i);
      for (int f = 0; f < kWidth; ++f) {
        const auto value = to_feature_work(row[f]);
        if (mark_of(value) != 0) continue;
        int64_t quanta = 0;
        if (!to_given_quanta(value, scale[f], quanta)) marks[f] |= kHasNan;
        add(f, quanta);
        if (!has_own_quantum) coarse_sum[f] += coarse(quanta);
      }
    }
  }

  // Does what add_floats does, for float64 in the cell's own quantum, if all values are finite and the quantum is at
  // least 2^-1022, so that one factor counts quanta. Otherwise returns false and adds nothing.
  bool add_in_normal_range(const CellFeatures<T, kWidth>& cell) {
    uint64_t highest[kWidth] = {};
    for (int64_t i = 0; i < cell.points; ++i) {
      const T* const row = cell.row_at(i);
      for (int f = 0; f < kWidth; ++f) {
        highest[f] = std::max(highest[f], std::bit_cast<uint64_t>(row[f]) & 0x7fffffffffffffffu);
      }
    }
    double scale[kWidth];
    for (int f = 0; f < kWidth; ++f) {
      exponent[f] =
          own_quantum(exponent_above(std::bit_cast<double>(highest[f])), cell.points, least_exponent(kFeatureDType<T>));
      if (highest[f] >= 0x7ff0000000000000u || (highest[f] != 0 && exponent[f] < -1022)) return false;
      scale[f] = highest[f] == 0 ? 0 : power_of_two(-exponent[f]);
    }
    for (int64_t i = 0; i < cell.points; ++i) {
      const T* const row = cell.row_at(i);
      for (int f = 0; f < kWidth; ++f) sum[f] += nearest_integer(row[f] * scale[f]);
    }
    return true;
  }

  void write(int64_t points, FeatureSum<T>* sums, FeatureMean<T>* means) const {
    for (int f = 0; f < kWidth; ++f) {
      const uint32_t all_marks = sum_overflows(sum[f], coarse_sum[f]) ? marks[f] | kHasNan : marks[f];
      if (means != nullptr) {
        means[f] = all_marks != 0 ? from_feature_work<FeatureMean<T>>(marked_sum(all_marks))
                                  : rounded_quotient<FeatureMean<T>>(sum[f], exponent[f], points);
      }
      if (sums == nullptr) continue;
      if constexpr (std::is_integral_v<T>) {
        sums[f] = sum[f];
      } else {
        sums[f] = all_marks != 0 ? from_feature_work<T>(marked_sum(all_marks)) : rounded_sum<T>(sum[f], exponent[f]);
      }
    }
  }

 private:
  void add(int f, int64_t quanta) {
    sum[f] = static_cast<int64_t>(static_cast<uint64_t>(sum[f]) + static_cast<uint64_t>(quanta));
  }
};

// Most sums do not need fixed point: if the features' exponents are close enough, float64 holds the exact sum, which
// equals the fixed-point sum. kDigits is the number of binary digits of a feature of T.
template <class T>
inline constexpr int32_t kDigits = 64;  // float64 and int64 never fit in float64
template <>
inline constexpr int32_t kDigits<float> = 24;
template <>
inline constexpr int32_t kDigits<BFloat16> = 8;
template <>
inline constexpr int32_t kDigits<Float16> = 11;

// Computes the exact sums of a cell in float64, for floats of up to 32 bits. Returns false, with undefined sums, if
// they may not fit, if a value is below the cell's own quantum, or if one is not finite.
template <class T, int kWidth>
bool sum_exactly(const CellFeatures<T, kWidth>& cell, int32_t given_exponent, double (&sums)[kWidth]) {
  const int32_t k = static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(cell.points - 1)));
  if (k > 22) return false;  // with more points, the quantum of float16 is above its least number
  std::fill_n(sums, kWidth, 0.0);
  if (given_exponent != kOwnQuantum) {
    // Sums whole numbers of quanta, each of at most 53 - k digits.
    const double scale = power_of_two(-given_exponent);
    const double most = power_of_two(53 - k);
    uint32_t fits = 1;
    for (int64_t i = 0; i < cell.points; ++i) {
      const T* const row = cell.row_at(i);
      for (int f = 0; f < kWidth; ++f) {
        const double x = static_cast<double>(to_feature_work(row[f])) * scale;
        fits &= static_cast<uint32_t>(std::fabs(x) < most);  // false for NaN
        sums[f] += std::nearbyint(x);
      }
    }
    const double quantum = power_of_two(given_exponent);
    for (int f = 0; f < kWidth; ++f) sums[f] *= quantum;
    return fits != 0;
  }
  // The biased exponents of values other than 0. The exponent of a value's last digit is smaller by kDigits - 1. The
  // limit on their distance also keeps every value above the quantum, which is 2^(62 - k) below the largest value.
  uint32_t lowest[kWidth];
  uint32_t highest[kWidth];
  std::fill_n(lowest, kWidth, 0xffu);
  std::fill_n(highest, kWidth, 0u);
  for (int64_t i = 0; i < cell.points; ++i) {
    const T* const row = cell.row_at(i);
    for (int f = 0; f < kWidth; ++f) {
      const float value = to_feature_work(row[f]);
      const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7fffffffu;
      highest[f] = std::max(highest[f], magnitude >> 23);
      lowest[f] = std::min(lowest[f], magnitude == 0 ? 0xffu : magnitude >> 23);
      sums[f] += static_cast<double>(value);
    }
  }
  uint32_t fits = 1;
  const uint32_t most = static_cast<uint32_t>(53 - kDigits<T> - k);
  for (int f = 0; f < kWidth; ++f) fits &= static_cast<uint32_t>(highest[f] <= std::min(lowest[f] + most, 0xfeu));
  return fits != 0;
}

template <class T>
T rounded(double x) {
  if constexpr (std::is_same_v<T, float>) {
    return static_cast<float>(x);
  } else {
    const uint64_t bits = std::bit_cast<uint64_t>(std::fabs(x));
    const auto field = static_cast<int32_t>(bits >> 52);
    const uint64_t digits = (bits & 0xfffffffffffffu) | (uint64_t{field != 0} << 52);
    return round_to<T>(std::signbit(x), digits, field - 1075, false);
  }
}

// Writes results from exact sums. x / points is rounded to odd before it is rounded to T, as in
// rounded_quotient_by_float64.
template <class T, int kWidth>
void write_exact(const double (&sums)[kWidth], int64_t points, T* sum, T* mean) {
  if (sum != nullptr) {
    for (int f = 0; f < kWidth; ++f) sum[f] = rounded<T>(sums[f]);
  }
  if (mean == nullptr) return;
  const double divisor = static_cast<double>(points);
  double odd[kWidth];
  for (int f = 0; f < kWidth; ++f) {
    const double dividend = std::fabs(sums[f]);
    const double nearest = dividend / divisor;
    odd[f] = std::copysign(odd_neighbour(nearest, std::fma(-nearest, divisor, dividend)), sums[f]);
  }
  for (int f = 0; f < kWidth; ++f) mean[f] = rounded<T>(odd[f]);
}

template <class T, int kWidth>
void write_sums(const CellFeatures<T, kWidth>& cell, int32_t given_exponent, FeatureSum<T>* sum, FeatureMean<T>* mean) {
  if constexpr (kDigits<T> < 64) {
    double sums[kWidth];
    if (sum_exactly(cell, given_exponent, sums)) return write_exact(sums, cell.points, sum, mean);
  }
  FixedPointSums<T, kWidth> sums;
  if constexpr (std::is_integral_v<T>) {
    sums.add_integers(cell);
  } else if constexpr (std::is_same_v<T, double>) {
    if (given_exponent != kOwnQuantum || !sums.add_in_normal_range(cell)) sums.add_floats(cell, given_exponent);
  } else {
    sums.add_floats(cell, given_exponent);
  }
  sums.write(cell.points, sum, mean);
}

template <class T, int kWidth>
void write_extremes(const CellFeatures<T, kWidth>& cell, T* min, T* max) {
  using Work = FeatureWork<T>;
  using Key = decltype(order_key(Work{}));
  Key least[kWidth];
  Key greatest[kWidth];
  std::fill_n(least, kWidth, ~Key{0});
  std::fill_n(greatest, kWidth, Key{0});
  for (int64_t i = 0; i < cell.points; ++i) {
    const T* const row = cell.row_at(i);
    for (int f = 0; f < kWidth; ++f) {
      const Work value = to_feature_work(row[f]);
      least[f] = std::min(least[f], min_key(value));
      greatest[f] = std::max(greatest[f], max_key(value));
    }
  }
  for (int f = 0; f < kWidth; ++f) {
    Work value{};
    if (min != nullptr) {
      from_order_key(least[f], value);
      min[f] = from_feature_work<T>(value);
    }
    if (max != nullptr) {
      from_order_key(greatest[f], value);
      max[f] = from_feature_work<T>(value);
    }
  }
}

// Reduces the features of a cell from cell.offset on, kWidth at a time; for the rest kWidth is halved repeatedly. Loops
// of a fixed length become vector code.
template <class T, int kWidth>
void reduce_cell(const VoxelReduction& call, const Results<T>& results, CellFeatures<T, kWidth> cell, int64_t entry) {
  const int64_t features = call.features.count;
  const auto output_of = [&](auto* output) { return output == nullptr ? nullptr : output + entry + cell.offset; };
  for (; cell.offset + kWidth <= features; cell.offset += kWidth) {
    if (results.sum != nullptr || results.mean != nullptr) {
      write_sums<T, kWidth>(cell, call.quantum_exponent, output_of(results.sum), output_of(results.mean));
    }
    if (results.min != nullptr || results.max != nullptr)
      write_extremes<T, kWidth>(cell, output_of(results.min), output_of(results.max));
  }
  if constexpr (kWidth == 4) {
    if (cell.offset + 3 == features) {  // x, y, z
      return reduce_cell<T, 3>(call, results, {cell.tile, cell.rows, cell.points, cell.offset}, entry);
    }
  }
  if constexpr (kWidth > 1) {
    if (cell.offset < features) {
      reduce_cell<T, kWidth / 2>(call, results, {cell.tile, cell.rows, cell.points, cell.offset}, entry);
    }
  }
}

template <class T>
void reduce_features(const VoxelReduction& call, const VoxelTile& tile) {
  const Results<T> results = results_of<T>(call, tile.first_cell);
  const int64_t features = call.features.count;
  const bool needs_values =
      results.sum != nullptr || results.mean != nullptr || results.min != nullptr || results.max != nullptr;
  fill_results(call, results, tile.cells);
  const uint32_t* const end = tile.rows + tile.starts[tile.cells];
  for (int64_t cell = 0; cell < tile.cells; ++cell) {
    const uint32_t* const rows = tile.rows + tile.starts[cell];
    const int64_t points = tile.starts[cell + 1] - tile.starts[cell];
    if (points == 0) continue;
    // Prefetches the rows of the next few cells, because the rows of a cell are scattered in memory.
    for (const uint32_t* ahead = rows + 16; ahead < std::min(rows + 16 + points, end); ++ahead) {
      __builtin_prefetch(tile.features[*ahead], 0, 3);
    }
    const int64_t entry = cell * features;
    const auto copy_row = [&](T* output, uint32_t row) {
      if (output != nullptr) std::memcpy(output + entry, tile.features[row], static_cast<size_t>(features) * sizeof(T));
    };
    copy_row(results.first, rows[0]);
    copy_row(results.last, rows[points - 1]);
    if (needs_values) reduce_cell<T, 8>(call, results, {tile, rows, points, 0}, entry);
  }
}

}  // namespace

void reduce_tile(const VoxelReduction& call, const VoxelTile& tile) {
  with_feature_type(call.features.dtype, [&](auto type) { reduce_features<decltype(type)>(call, tile); });
}

}  // namespace robocache::ROBOCACHE_ISA
