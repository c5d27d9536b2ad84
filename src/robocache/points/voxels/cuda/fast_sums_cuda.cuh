// Sums and means of float features, kWide neighbouring features per thread: the most frequent case. A cell goes to the
// general path (cell_features_cuda.cuh) if a feature is not finite or its quantum is out of range.
#pragma once

#include <cstdint>
#include <type_traits>

#include "robocache/points/voxels/cuda/cell_features_cuda.cuh"
#include "robocache/points/voxels/reduce_way.hpp"

namespace robocache::voxels_cuda {

// kWide features of a row, or of a cell in an output, aligned as a whole.
template <class T>
struct alignas(kWide * sizeof(T)) FeatureVector {
  T features[kWide];
};

template <class T>
__device__ FeatureVector<T> load_vector(const VoxelReduction& call, uint32_t row, int64_t feature) {
  const T* const data = static_cast<const T*>(call.features.data) + feature;
  const uint64_t offset = static_cast<uint64_t>(row) * static_cast<uint32_t>(call.features.row_stride);
  return *reinterpret_cast<const FeatureVector<T>*>(data + offset);
}

// Calls fast(T{}, std::bool_constant<own quantum>{}) if the call allows fast sums, else general(). A group of at most
// 32 threads holds all features of a row.
template <class Fast, class General>
cudaError_t with_fast_sums(const VoxelReduction& call, const TilePlan& plan, const Wanted& wanted, Fast fast,
                           General general) {
  const Features& f = call.features;
  const auto aligned = [&](int64_t element) {
    return goes_wide(f) && plan.aligned &&
           reinterpret_cast<uintptr_t>(f.data) % static_cast<uintptr_t>(kWide * element) == 0;
  };
  const auto launch = [&](auto type) {
    return call.quantum_exponent == kOwnQuantum ? fast(type, std::true_type{}) : fast(type, std::false_type{});
  };
  if (wanted.sums && !wanted.extremes && !wanted.ends) {
    if (f.dtype == DType::kFloat32 && aligned(4)) return launch(float{});
    if (f.dtype == DType::kFloat16 && aligned(2)) return launch(Float16{});
    if (f.dtype == DType::kBFloat16 && aligned(2)) return launch(BFloat16{});
  }
  return general();
}

// A thread's share of the rows of a cell. It keeps its first kVectors vectors.
template <class T>
struct HeldVectors {
  static constexpr int kVectors = 4;

  const VoxelReduction& call;
  CellRows cell;
  int64_t feature;
  FeatureVector<T> held[kVectors];

  __device__ void load_first() {
    uint32_t rows[kVectors];
    load_rows(cell.index, rows);
    load(cell.index, rows);
  }

  // Calls body(j, value) for each feature of each row of the thread. Afterwards, with `again`,
  // `held` contains the first vectors again.
  template <class Body>
  __device__ void for_each(bool again, Body body) {
    const uint32_t batch = kVectors * cell.step;
    uint32_t rows[kVectors];
    load_rows(cell.index + batch, rows);
#pragma unroll 1
    for (uint32_t position = cell.index;;) {
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        if (position + k * cell.step >= cell.points) continue;
#pragma unroll
        for (int j = 0; j < kWide; ++j) body(j, to_feature_work(held[k].features[j]));
      }
      position += batch;
      if (position >= cell.points) break;
      load(position, rows);
      load_rows(position + batch, rows);
    }
    if (again && cell.index + batch < cell.points) load_first();
  }

 private:
  __device__ void load_rows(uint32_t position, uint32_t (&rows)[kVectors]) const {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (position + k * cell.step < cell.points) rows[k] = cell.rows[position + k * cell.step];
    }
  }
  __device__ void load(uint32_t position, const uint32_t (&rows)[kVectors]) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (position + k * cell.step < cell.points) held[k] = load_vector<T>(call, rows[k], feature);
    }
  }
};

// Finds the largest exponent_above of a cell's features; it is kNoExponent for zeros. Returns false if a feature is not
// finite. All threads of a team get both results; the threads of a warp share the rows.
template <class T, Team kTeam>
__device__ bool look_fast(HeldVectors<T>& values, bool again, unsigned lanes, int32_t (&above)[kWide]) {
  uint32_t magnitudes[kWide] = {};
  values.for_each(again, [&](int j, float value) { magnitudes[j] = max(magnitudes[j], __float_as_uint(value) << 1); });
  bool finite = true;
#pragma unroll
  for (int j = 0; j < kWide; ++j) {
    if constexpr (kTeam == Team::kWarp) {
      for (unsigned d = lanes; d < 32; d *= 2)
        magnitudes[j] = max(magnitudes[j], __shfl_xor_sync(~0u, magnitudes[j], d));
    }
    finite &= magnitudes[j] < 0xff000000u;
    above[j] = magnitudes[j] == 0 ? kNoExponent : exponent_above(__uint_as_float(magnitudes[j] >> 1));
  }
  return kTeam == Team::kWarp ? __all_sync(~0u, finite) : finite;
}

// Adds the features in quanta. Returns false, with undefined sums, if float32 cannot count them.
template <class T, bool kOwn, Team kTeam>
__device__ bool add_fast(HeldVectors<T>& values, unsigned lanes, const int32_t (&exponents)[kWide],
                         int64_t (&sums)[kWide]) {
  float factors[kWide];
  bool fits = true;
#pragma unroll
  for (int j = 0; j < kWide; ++j) {
    factors[j] = Quantum(exponents[j]).factor;
    fits &= factors[j] != 0;
    sums[j] = 0;
  }
  values.for_each(false, [&](int j, float value) {
    const float quanta = value * factors[j];
    if constexpr (kOwn) {
      sums[j] += __float2ll_rn(quanta);
    } else {
      fits &= fabsf(quanta) < 0x1p30f;  // a feature beyond this bound has a coarse part
      sums[j] += __float2int_rn(quanta);
    }
  });
  if constexpr (kTeam == Team::kWarp) {
    fits = __all_sync(~0u, fits);
    for (unsigned d = lanes; d < 32; d *= 2) {
#pragma unroll
      for (int j = 0; j < kWide; ++j) sums[j] += __shfl_xor_sync(~0u, sums[j], d);
    }
  }
  return fits;
}

template <class T>
__device__ int32_t exponent_of(const VoxelReduction& call, bool own, int32_t above, uint32_t points) {
  if (!own) return call.quantum_exponent;
  if (above == kNoExponent) return 0;  // 0 stays 0 with any exponent
  return own_quantum(std::is_same_v<T, Float16> ? kExponentAboveFloat16 : above, points,
                     least_exponent(kFeatureDType<T>));
}

// Writes the sum and mean of a feature of a cell with at most kMostByFloat64 points; `entry` is cell * F + feature.
template <class T>
__device__ void store_sum(const Outputs& outputs, int64_t entry, uint32_t points, int32_t exponent, int64_t sum) {
  if (T* const totals = outputs.as<T>(VoxelMode::kSum)) totals[entry] = rounded_sum<T>(sum, exponent);
  if (T* const means = outputs.as<T>(VoxelMode::kMean)) {
    means[entry] = rounded_quotient_by_float64<T>(sum, exponent, points, 1.0 / points);
  }
}

// Writes kWide sums and means.
template <class T>
__device__ void store_sums(const Outputs& outputs, int64_t entry, uint32_t points, const int32_t (&exponents)[kWide],
                           const int64_t (&sums)[kWide]) {
  const double reciprocal = 1.0 / points;
  FeatureVector<T> vector;
  if (T* const totals = outputs.as<T>(VoxelMode::kSum)) {
#pragma unroll
    for (int j = 0; j < kWide; ++j) vector.features[j] = rounded_sum<T>(sums[j], exponents[j]);
    *reinterpret_cast<FeatureVector<T>*>(totals + entry) = vector;
  }
  if (T* const means = outputs.as<T>(VoxelMode::kMean)) {
#pragma unroll
    for (int j = 0; j < kWide; ++j)
      vector.features[j] = rounded_quotient_by_float64<T>(sums[j], exponents[j], points, reciprocal);
    *reinterpret_cast<FeatureVector<T>*>(means + entry) = vector;
  }
}

}  // namespace robocache::voxels_cuda
