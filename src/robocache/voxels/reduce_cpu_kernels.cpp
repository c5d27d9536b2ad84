// Built once per instruction set, into namespace robocache::ROBOCACHE_ISA.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "robocache/voxels/fixed_point.hpp"
#include "robocache/voxels/order_key.hpp"
#include "robocache/voxels/reduce_cpu.hpp"

namespace robocache::ROBOCACHE_ISA {
namespace {

// ---- Cells ----

// Whole numbers up to this are exact in Real, so a coordinate can be compared before it becomes an integer.
template <class Real>
inline constexpr int64_t kExactIntegers = sizeof(Real) == 4 ? int64_t{1} << 24 : int64_t{1} << 31;

// voxel_cell for grids of fewer than 2^32 cells and kExactIntegers along each axis, one axis after the other over a few
// points at a time, which becomes vector code.
template <class Real, class Row>
int64_t cells_together(const Row& row_of, int64_t count, const VoxelGrid& grid, uint32_t* cells) {
  constexpr int64_t kTogether = 256;
  Real position[kTogether];
  int64_t dropped = 0;
  for (int64_t begin = 0; begin < count; begin += kTogether) {
    const int64_t n = std::min(kTogether, count - begin);
    uint32_t* const cell = cells + begin;
    uint32_t outside[kTogether] = {};
    std::fill_n(cell, n, 0u);
    for (int axis = 0; axis < 3; ++axis) {
      const Real origin = static_cast<Real>(grid.origin[axis]);
      const Real size = static_cast<Real>(grid.size[axis]);
      const Real shape = static_cast<Real>(grid.shape[axis]);
      const auto extent = static_cast<uint32_t>(grid.shape[axis]);
      for (int64_t i = 0; i < n; ++i) position[i] = row_of(begin + i)[axis];
      for (int64_t i = 0; i < n; ++i) {
        const Real quotient = std::floor((position[i] - origin) / size);
        const bool inside = quotient >= 0 && quotient < shape;  // NaN is not
        const auto coordinate = static_cast<uint32_t>(static_cast<int32_t>(inside ? quotient : Real{0}));
        outside[i] |= inside ? 0u : ~0u;
        cell[i] = cell[i] * extent + coordinate;
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      cell[i] |= outside[i];
      dropped += outside[i] & 1u;
    }
  }
  return dropped;
}

template <class Real, class Cell, class Row>
int64_t cells_one_by_one(const Row& row_of, int64_t count, const VoxelGrid& grid, Cell* cells) {
  int64_t dropped = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t cell = voxel_cell<Real>(row_of(i), grid);
    cells[i] = static_cast<Cell>(cell);  // -1 is kNoCell
    dropped += cell < 0;
  }
  return dropped;
}

template <class Real, class Cell>
int64_t cells_of(const char* points, int64_t row_bytes, int64_t count, const VoxelGrid& grid, Cell* cells) {
  const auto row_of = [=](int64_t i) { return reinterpret_cast<const Real*>(points + i * row_bytes); };
  if constexpr (sizeof(Cell) == 4) {
    const int64_t longest = std::max({grid.shape[0], grid.shape[1], grid.shape[2]});
    if (longest <= kExactIntegers<Real>) {
      if (row_bytes == 3 * sizeof(Real)) {
        const auto packed = [=](int64_t i) { return reinterpret_cast<const Real*>(points) + 3 * i; };
        return cells_together<Real>(packed, count, grid, cells);
      }
      return cells_together<Real>(row_of, count, grid, cells);
    }
  }
  return cells_one_by_one<Real>(row_of, count, grid, cells);
}

// ---- Features ----

// What a feature is worked on as.
inline float work(Float16 x) { return to_float(x); }
inline float work(BFloat16 x) { return to_float(x); }
inline float work(float x) { return x; }
inline double work(double x) { return x; }
template <class T>
auto work(T x) -> std::conditional_t<(sizeof(T) < 4), int32_t, T> {
  return x;
}

// And back, exactly.
template <class T, class Work>
T stored(Work x) {
  if constexpr (std::is_same_v<T, Float16>) {
    return to_float16(x);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bfloat16(x);
  } else {
    return static_cast<T>(x);
  }
}

template <class T>
inline constexpr bool kIsInteger = std::is_integral_v<T>;
template <class T>
inline constexpr DType kDTypeOf = std::is_same_v<T, Float16>    ? DType::kFloat16
                                  : std::is_same_v<T, BFloat16> ? DType::kBFloat16
                                  : std::is_same_v<T, float>    ? DType::kFloat32
                                  : std::is_same_v<T, double>   ? DType::kFloat64
                                                                : DType::kInt64;

// The outputs of a tile for features of T; null where one is not asked for.
template <class T>
struct Results {
  using Sum = std::conditional_t<kIsInteger<T>, int64_t, T>;
  using Mean = std::conditional_t<kIsInteger<T>, float, T>;
  Sum* sum;
  Mean* mean;
  T* min;
  T* max;
  T* first;
  T* last;
};

template <class T>
Results<T> results_of(const VoxelReduction& call, int64_t first_cell) {
  Results<T> into{};
  const int64_t offset = first_cell * call.features.count;
  const auto place = [&](auto*& pointer, void* data) {
    pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(data) + offset;
  };
  for (int32_t i = 0; i < call.output_count; ++i) {
    const VoxelOutput& output = call.outputs[i];
    switch (output.mode) {
      case VoxelMode::kSum:
        place(into.sum, output.data);
        break;
      case VoxelMode::kMean:
        place(into.mean, output.data);
        break;
      case VoxelMode::kMin:
        place(into.min, output.data);
        break;
      case VoxelMode::kMax:
        place(into.max, output.data);
        break;
      case VoxelMode::kFirst:
        place(into.first, output.data);
        break;
      case VoxelMode::kLast:
        place(into.last, output.data);
        break;
      default:
        break;
    }
  }
  return into;
}

template <class T>
void fill_results(const VoxelReduction& call, const Results<T>& into, int64_t cells) {
  const int64_t n = cells * call.features.count;
  T fill{};
  if constexpr (kIsInteger<T>) {
    fill = static_cast<T>(call.fill_integer);
  } else {
    fill = stored<T>(static_cast<decltype(work(T{}))>(call.fill));
  }
  if (into.sum != nullptr) std::fill_n(into.sum, n, typename Results<T>::Sum{});
  if (into.mean != nullptr) {
    if constexpr (kIsInteger<T>) {
      std::fill_n(into.mean, n, static_cast<float>(call.fill));
    } else {
      std::fill_n(into.mean, n, fill);
    }
  }
  for (T* const of : {into.min, into.max, into.first, into.last}) {
    if (of != nullptr) std::fill_n(of, n, fill);
  }
}

// Features of one cell that are taken together.
constexpr int64_t kWidth = 16;

// Sum and mean of features [f, f + width) of a cell, and the rounding at the end.
template <class T>
struct Sums {
  int64_t sum[kWidth];
  int64_t coarse_sum[kWidth];
  int32_t exponent[kWidth];
  uint32_t marks[kWidth];

  void clear() {
    std::fill_n(sum, kWidth, 0);
    std::fill_n(coarse_sum, kWidth, 0);
    std::fill_n(exponent, kWidth, 0);
    std::fill_n(marks, kWidth, 0u);
  }
};

template <class T, class RowAt>
void add_integers(const RowAt& row_at, int64_t points, int64_t width, Sums<T>& sums) {
  for (int64_t i = 0; i < points; ++i) {
    const T* const row = row_at(i);
    for (int64_t f = 0; f < width; ++f) {
      const int64_t value = row[f];
      sums.sum[f] = static_cast<int64_t>(static_cast<uint64_t>(sums.sum[f]) + static_cast<uint64_t>(value));
      if constexpr (sizeof(T) == 8) sums.coarse_sum[f] += coarse(value);
    }
  }
}

template <class T, class RowAt>
void add_floats(const VoxelReduction& call, const RowAt& row_at, int64_t points, int64_t width, Sums<T>& sums) {
  using Work = decltype(work(T{}));
  const bool own = call.quantum_exponent == kOwnQuantum;
  uint32_t any_mark = 0;
  int32_t above[kWidth];
  std::fill_n(above, kWidth, kNoExponent);
  for (int64_t i = 0; i < points; ++i) {
    const T* const row = row_at(i);
    for (int64_t f = 0; f < width; ++f) {
      const Work value = work(row[f]);
      const uint32_t mark = mark_of(value);
      sums.marks[f] |= mark;
      any_mark |= mark;
      above[f] = std::max(above[f], mark != 0 ? kNoExponent : exponent_above(value));
    }
  }
  QuantumScale scale[kWidth];
  for (int64_t f = 0; f < width; ++f) {
    if (std::is_same_v<T, Float16>) above[f] = kExponentAboveFloat16;
    sums.exponent[f] = own ? own_quantum(above[f], points, least_exponent(kDTypeOf<T>)) : call.quantum_exponent;
    scale[f] = quantum_scale(sums.exponent[f]);
  }
  for (int64_t i = 0; i < points; ++i) {
    const T* const row = row_at(i);
    if (own && any_mark == 0) {
      for (int64_t f = 0; f < width; ++f) sums.sum[f] += to_quanta(work(row[f]), scale[f]);
      continue;
    }
    for (int64_t f = 0; f < width; ++f) {
      const Work value = work(row[f]);
      if (mark_of(value) != 0) continue;
      int64_t quanta = 0;
      if (!to_given_quanta(value, scale[f], quanta)) sums.marks[f] |= kHasNan;
      sums.sum[f] = static_cast<int64_t>(static_cast<uint64_t>(sums.sum[f]) + static_cast<uint64_t>(quanta));
      sums.coarse_sum[f] += coarse(quanta);
    }
  }
}

template <class T>
void write_sums(const Sums<T>& sums, int64_t points, int64_t width, typename Results<T>::Sum* sum,
                typename Results<T>::Mean* mean) {
  using Mean = typename Results<T>::Mean;
  for (int64_t f = 0; f < width; ++f) {
    uint32_t marks = sums.marks[f];
    if (sum_overflows(sums.sum[f], sums.coarse_sum[f])) marks |= kHasNan;
    if (mean != nullptr) {
      mean[f] =
          marks != 0 ? stored<Mean>(marked_sum(marks)) : rounded_mean<Mean>(sums.sum[f], sums.exponent[f], points);
    }
    if (sum == nullptr) continue;
    if constexpr (kIsInteger<T>) {
      sum[f] = sums.sum[f];
    } else {
      sum[f] = marks != 0 ? stored<T>(marked_sum(marks)) : rounded_sum<T>(sums.sum[f], sums.exponent[f]);
    }
  }
}

template <class T, class RowAt>
void write_extremes(const RowAt& row_at, int64_t points, int64_t width, T* min, T* max) {
  using Work = decltype(work(T{}));
  using Key = decltype(order_key(Work{}));
  Key least[kWidth];
  Key greatest[kWidth];
  std::fill_n(least, kWidth, ~Key{0});
  std::fill_n(greatest, kWidth, Key{0});
  for (int64_t i = 0; i < points; ++i) {
    const T* const row = row_at(i);
    for (int64_t f = 0; f < width; ++f) {
      const Work value = work(row[f]);
      least[f] = std::min(least[f], min_key(value));
      greatest[f] = std::max(greatest[f], max_key(value));
    }
  }
  for (int64_t f = 0; f < width; ++f) {
    Work value{};
    if (min != nullptr) {
      from_order_key(least[f], value);
      min[f] = stored<T>(value);
    }
    if (max != nullptr) {
      from_order_key(greatest[f], value);
      max[f] = stored<T>(value);
    }
  }
}

template <class T>
void reduce_features(const VoxelReduction& call, const VoxelTile& tile) {
  const Results<T> into = results_of<T>(call, tile.first_cell);
  const int64_t features = call.features.count;
  fill_results(call, into, tile.cells);
  Sums<T> sums;
  for (int64_t cell = 0; cell < tile.cells; ++cell) {
    const uint32_t* const rows = tile.rows + tile.starts[cell];
    const int64_t points = tile.starts[cell + 1] - tile.starts[cell];
    if (points == 0) continue;
    const int64_t place = cell * features;
    const auto copy_row = [&](T* to, uint32_t row) {
      if (to != nullptr) std::memcpy(to + place, tile.features[row], static_cast<size_t>(features) * sizeof(T));
    };
    copy_row(into.first, rows[0]);
    copy_row(into.last, rows[points - 1]);
    for (int64_t f = 0; f < features; f += kWidth) {
      const int64_t width = std::min(kWidth, features - f);
      const auto row_at = [&](int64_t i) { return reinterpret_cast<const T*>(tile.features[rows[i]]) + f; };
      const auto at = [&](auto* output) { return output == nullptr ? nullptr : output + place + f; };
      if (into.sum != nullptr || into.mean != nullptr) {
        sums.clear();
        if constexpr (kIsInteger<T>) {
          add_integers<T>(row_at, points, width, sums);
        } else {
          add_floats<T>(call, row_at, points, width, sums);
        }
        write_sums<T>(sums, points, width, at(into.sum), at(into.mean));
      }
      if (into.min != nullptr || into.max != nullptr) {
        write_extremes<T>(row_at, points, width, at(into.min), at(into.max));
      }
    }
  }
}

}  // namespace

int64_t cells_of_points(const char* points, int64_t row_bytes, DType dtype, int64_t count, const VoxelGrid& grid,
                        uint32_t* cells) {
  return dtype == DType::kFloat32 ? cells_of<float>(points, row_bytes, count, grid, cells)
                                  : cells_of<double>(points, row_bytes, count, grid, cells);
}

int64_t wide_cells_of_points(const char* points, int64_t row_bytes, DType dtype, int64_t count, const VoxelGrid& grid,
                             uint64_t* cells) {
  return dtype == DType::kFloat32 ? cells_of<float>(points, row_bytes, count, grid, cells)
                                  : cells_of<double>(points, row_bytes, count, grid, cells);
}

void reduce_tile(const VoxelReduction& call, const VoxelTile& tile) {
  switch (call.features.dtype) {
    case DType::kFloat64:
      return reduce_features<double>(call, tile);
    case DType::kFloat32:
      return reduce_features<float>(call, tile);
    case DType::kFloat16:
      return reduce_features<Float16>(call, tile);
    case DType::kBFloat16:
      return reduce_features<BFloat16>(call, tile);
    case DType::kInt64:
      return reduce_features<int64_t>(call, tile);
    case DType::kInt32:
      return reduce_features<int32_t>(call, tile);
    case DType::kUInt32:
      return reduce_features<uint32_t>(call, tile);
    case DType::kInt16:
      return reduce_features<int16_t>(call, tile);
    case DType::kUInt16:
      return reduce_features<uint16_t>(call, tile);
    case DType::kInt8:
      return reduce_features<int8_t>(call, tile);
    default:  // bool too: 0 and 1
      return reduce_features<uint8_t>(call, tile);
  }
}

}  // namespace robocache::ROBOCACHE_ISA
