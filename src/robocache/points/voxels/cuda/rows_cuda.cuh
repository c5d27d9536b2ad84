// Code that the kernels of the CUDA engine share: rows, their cells and features, and the outputs.
#pragma once

#include <bit>
#include <limits>

#include "robocache/core/launch_cuda.cuh"
#include "robocache/core/lengths.hpp"
#include "robocache/core/order_key.hpp"
#include "robocache/points/voxels/feature.hpp"
#include "robocache/points/voxels/fixed_point.hpp"
#include "robocache/points/voxels/reduce.hpp"

namespace robocache::voxels_cuda {

struct RowIndex {
  int64_t cloud;
  int64_t row;    // index in its cloud; for ragged clouds in the whole array
  bool is_point;  // false for a row beyond a length, or between clouds whose offsets are wrong
};

__device__ inline RowIndex index_of_row(const Clouds& clouds, int64_t row) {
  if (clouds.offsets) {
    int64_t low = 0;  // the last cloud that starts at or before the row
    for (int64_t high = clouds.count; high - low > 1;) {
      const int64_t middle = (low + high) / 2;
      (integer_at(clouds.offsets, clouds.offsets_dtype, middle) <= row ? low : high) = middle;
    }
    return {low, row,
            integer_at(clouds.offsets, clouds.offsets_dtype, low) <= row &&
                row < integer_at(clouds.offsets, clouds.offsets_dtype, low + 1)};
  }
  if (clouds.count == 1 && !clouds.lengths) return {0, row, true};
  const int64_t cloud = row / clouds.rows;
  const int64_t in_cloud = row - cloud * clouds.rows;
  return {cloud, in_cloud, !clouds.lengths || in_cloud < integer_at(clouds.lengths, clouds.lengths_dtype, cloud)};
}

template <class T>
__device__ const T* features_of_row(const VoxelReduction& call, int64_t row) {
  const Features& f = call.features;
  if (call.clouds.offsets || call.clouds.count == 1) return static_cast<const T*>(f.data) + row * f.row_stride;
  const int64_t cloud = row / call.clouds.rows;
  return static_cast<const T*>(f.data) + cloud * f.cloud_stride + (row - cloud * call.clouds.rows) * f.row_stride;
}

template <class Real>
__device__ int64_t cell_in_cloud(const Clouds& clouds, const VoxelGrid& grid, const RowIndex& index) {
  const Real* const p =
      static_cast<const Real*>(clouds.points) + index.cloud * clouds.cloud_stride + index.row * clouds.row_stride;
  const Real point[3] = {p[0], p[1], p[2]};
  return voxel_cell<Real>(point, grid);
}

// Returns the cell of a point, among those of all clouds, or -1.
__device__ inline int64_t cell_of_point(const Clouds& clouds, const VoxelGrid& grid, const RowIndex& index) {
  const int64_t cell = clouds.dtype == DType::kFloat32 ? cell_in_cloud<float>(clouds, grid, index)
                                                       : cell_in_cloud<double>(clouds, grid, index);
  return cell < 0 ? -1 : index.cloud * (grid.shape[0] * grid.shape[1] * grid.shape[2]) + cell;
}

// Returns the cell of a row, among those of all clouds, or -1. Counts a point in no cell as dropped.
__device__ inline int64_t cell_of(const VoxelReduction& call, int64_t row) {
  if (!call.by_grid) {
    const int64_t cell = call.cell_of_row[row];
    return cell < call.cells ? cell : -1;
  }
  const RowIndex index = index_of_row(call.clouds, row);
  if (!index.is_point) return -1;
  const int64_t cell = cell_of_point(call.clouds, call.grid, index);
  if (cell < 0 && call.dropped) atomicAdd(reinterpret_cast<Word*>(call.dropped + index.cloud), Word{1});
  return cell;
}

// The factor that turns a feature into quanta, if float32 can hold it.
struct Quantum {
  int32_t exponent;
  float factor;  // 2^-exponent if float32 holds it, else 0

  __device__ explicit Quantum(int32_t power)
      : exponent(power), factor(power > -127 && power < 127 ? std::bit_cast<float>((127 - power) << 23) : 0) {}
};

// The reduction of one feature of one cell: a summary of the rows visited until now, and the results.
template <class T>
struct CellFeature {
  using Value = FeatureWork<T>;
  using Key = decltype(order_key(Value{}));
  static constexpr bool kFloats = !std::is_integral_v<T>;

  int64_t sum = 0;
  int64_t coarse_sum = 0;
  int32_t above = kNoExponent;  // largest exponent_above of the finite values
  uint32_t marks = 0;
  Key magnitude = 0;  // the largest bits without the sign
  Key least = ~Key{0};
  Key greatest = 0;

  // These three find `above` and `marks`. Call look() for all values, then settled(). If it returns false, a value is
  // not finite: call look_closely() for all values.
  __device__ void look(Value value) {
    if constexpr (kFloats) {
      const Key bits = std::bit_cast<Key>(value) << 1 >> 1;
      magnitude = magnitude > bits ? magnitude : bits;
    }
  }
  __device__ bool settled() {
    if constexpr (kFloats) {
      if (!(std::bit_cast<Value>(magnitude) <= std::numeric_limits<Value>::max())) return false;
      above = exponent_above(std::bit_cast<Value>(magnitude));
    }
    return true;
  }
  __device__ void look_closely(Value value) {
    if constexpr (kFloats) {
      const uint32_t mark = mark_of(value);
      marks |= mark;
      const int32_t e = mark ? kNoExponent : exponent_above(value);
      above = above > e ? above : e;
    }
  }
  __device__ void compare(Value value) {
    const Key low = min_key(value);
    const Key high = max_key(value);
    least = least < low ? least : low;
    greatest = greatest > high ? greatest : high;
  }

  __device__ int32_t quantum(const VoxelReduction& call, int64_t points) const {
    if constexpr (kFloats) {
      if (call.quantum_exponent != kOwnQuantum) return call.quantum_exponent;
      return own_quantum(std::is_same_v<T, Float16> ? kExponentAboveFloat16 : above, points,
                         least_exponent(kFeatureDType<T>));
    } else {
      return 0;
    }
  }

  // Adds a value with the cell's own quantum. If the cell has marks, the sum is ignored.
  __device__ void add_own(Value value, const Quantum& quantum) {
    if constexpr (kFloats) {
      if (std::is_same_v<Value, float> && quantum.factor != 0) {
        sum += __float2ll_rn(static_cast<float>(value) * quantum.factor);
      } else {
        sum += mark_of(value) ? 0 : to_quanta(value, quantum_scale(quantum.exponent));
      }
    } else {
      add_given(value, quantum);
    }
  }
  __device__ void add_given(Value value, const Quantum& quantum) {
    int64_t quanta = 0;
    if constexpr (kFloats) {
      if constexpr (std::is_same_v<Value, float>) {
        const float scaled = value * quantum.factor;
        if (quantum.factor != 0 && fabsf(scaled) < 0x1p30f) {  // no coarse part
          sum += __float2int_rn(scaled);
          return;
        }
      }
      uint32_t mark = mark_of(value);
      if (mark == 0 && !to_given_quanta(value, quantum_scale(quantum.exponent), quanta)) mark = kHasNan;
      marks |= mark;
      if (mark) return;
    } else {
      quanta = static_cast<int64_t>(value);
    }
    sum = static_cast<int64_t>(static_cast<uint64_t>(sum) + static_cast<uint64_t>(quanta));
    if (kFloats || sizeof(T) == 8) coarse_sum += coarse(quanta);
  }

  // The cell must have points.
  __device__ FeatureSum<T> total(const VoxelReduction& call, int64_t points) const {
    if constexpr (kFloats) {
      const uint32_t cell_marks = all_marks(call);
      return cell_marks ? from_feature_work<T>(marked_sum(cell_marks)) : rounded_sum<T>(sum, quantum(call, points));
    } else {
      return sum;
    }
  }
  __device__ FeatureMean<T> mean(const VoxelReduction& call, int64_t points) const {
    const uint32_t cell_marks = all_marks(call);
    if (cell_marks) return from_feature_work<FeatureMean<T>>(marked_sum(cell_marks));
    const int32_t exponent = quantum(call, points);
    if constexpr (!std::is_same_v<FeatureMean<T>, double>) {
      if (points <= kMostByFloat64) {
        const double reciprocal = 1.0 / static_cast<double>(points);
        return rounded_quotient_by_float64<FeatureMean<T>>(sum, exponent, points, reciprocal);
      }
    }
    return rounded_quotient<FeatureMean<T>>(sum, exponent, points);
  }
  __device__ T min() const { return from_key(least); }
  __device__ T max() const { return from_key(greatest); }

 private:
  // Returns the marks, including the mark of an overflow.
  __device__ uint32_t all_marks(const VoxelReduction& call) const {
    const bool may_overflow = call.quantum_exponent != kOwnQuantum || !kFloats;
    return may_overflow && sum_overflows(sum, coarse_sum) ? marks | kHasNan : marks;
  }
  static __device__ T from_key(Key key) {
    Value value{};
    from_order_key(key, value);
    return from_feature_work<T>(value);
  }
};

// Writes every output except first and last for a feature of a cell with points; `entry` is cell * F + feature.
template <class T>
__device__ void store_feature(const VoxelReduction& call, const Outputs& outputs, const CellFeature<T>& reduced,
                              int64_t entry, int64_t points) {
  auto* const total = outputs.as<FeatureSum<T>>(VoxelMode::kSum);
  auto* const mean = outputs.as<FeatureMean<T>>(VoxelMode::kMean);
  if (total) total[entry] = reduced.total(call, points);
  if (mean) mean[entry] = reduced.mean(call, points);
  if (T* const min = outputs.as<T>(VoxelMode::kMin)) min[entry] = reduced.min();
  if (T* const max = outputs.as<T>(VoxelMode::kMax)) max[entry] = reduced.max();
}

// Writes every output for a feature of a cell without points.
template <class T>
__device__ void store_nothing(const VoxelReduction& call, const Outputs& outputs, int64_t entry) {
  if (auto* const total = outputs.as<FeatureSum<T>>(VoxelMode::kSum)) total[entry] = {};
  if (auto* const mean = outputs.as<FeatureMean<T>>(VoxelMode::kMean)) mean[entry] = fill_of<FeatureMean<T>>(call);
  for (const VoxelMode mode : {VoxelMode::kMin, VoxelMode::kMax, VoxelMode::kFirst, VoxelMode::kLast}) {
    if (T* const output = outputs.as<T>(mode)) output[entry] = fill_of<T>(call);
  }
}

}  // namespace robocache::voxels_cuda
