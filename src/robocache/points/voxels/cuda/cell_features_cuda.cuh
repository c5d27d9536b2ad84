// Reduces the features of a cell by a few threads or by a warp. This is the general path, for every mode and dtype.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "robocache/points/voxels/cuda/tile_plan_cuda.cuh"

namespace robocache::voxels_cuda {

struct Wanted {
  bool sums;
  bool looks;  // whether sums need the largest value first
  bool extremes;
  bool ends;  // whether first or last is requested
};

// The rows of a cell, divided among the threads that share it: thread `index` takes row `index` and every `step`-th
// after it.
struct CellRows {
  const uint32_t* rows;
  uint32_t points;
  uint32_t index;
  uint32_t step;
};

// A group is 2^lane_bits neighbouring threads. Each thread has a feature.
struct Group {
  int lane_bits;

  __device__ unsigned lanes() const { return 1u << lane_bits; }
  __device__ unsigned lane() const { return threadIdx.x & (lanes() - 1); }
  __device__ unsigned index_in_block() const { return threadIdx.x >> lane_bits; }
  __device__ unsigned index_in_warp() const { return threadIdx.x % 32 >> lane_bits; }
  __device__ unsigned count_in(unsigned threads) const { return threads >> lane_bits; }
};

inline constexpr int kHeld = 8;  // values that a thread loads at once

template <class T>
struct FeatureColumn {
  const T* first;
  uint32_t row_stride;

  __device__ FeatureWork<T> operator[](uint32_t row) const {
    return to_feature_work(first[static_cast<uint64_t>(row) * row_stride]);
  }
};

// Loads up to kHeld values of a thread: row `position` of the cell and every step-th row after it.
template <class T>
__device__ void load_values(const CellRows& cell, const FeatureColumn<T>& column, uint32_t position,
                            FeatureWork<T> (&values)[kHeld]) {
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (position + k * cell.step < cell.points) values[k] = column[cell.rows[position + k * cell.step]];
  }
}

// Calls body(value) for each row of a thread. `values` must hold the first kHeld values, and holds them again
// afterwards.
template <class T, class Body>
__device__ void for_each_value(const CellRows& cell, const FeatureColumn<T>& column, FeatureWork<T> (&values)[kHeld],
                               Body body) {
#pragma unroll 1
  for (uint32_t position = cell.index;;) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (position + k * cell.step < cell.points) body(values[k]);
    }
    position += kHeld * cell.step;
    if (position >= cell.points) break;
    load_values(cell, column, position, values);
  }
  if (cell.index + kHeld * cell.step < cell.points) load_values(cell, column, cell.index, values);
}

// The reduction of a feature of a cell, with the cell's first and last row. Before a merge it covers one
// thread's rows, after it those of all merged threads.
template <class T>
struct CellFeatureWithEnds : CellFeature<T> {
  uint32_t first = ~0u;
  uint32_t last = 0;

  // Combines the results of the groups of a warp; every group gets the result.
  __device__ void merge_in_warp(unsigned lanes) {
    for (unsigned d = lanes; d < 32; d *= 2) {
      this->sum += __shfl_xor_sync(~0u, this->sum, d);
      this->coarse_sum += __shfl_xor_sync(~0u, this->coarse_sum, d);
      this->above = max(this->above, __shfl_xor_sync(~0u, this->above, d));
      this->marks |= __shfl_xor_sync(~0u, this->marks, d);
      this->least = min(this->least, __shfl_xor_sync(~0u, this->least, d));
      this->greatest = max(this->greatest, __shfl_xor_sync(~0u, this->greatest, d));
      first = min(first, __shfl_xor_sync(~0u, first, d));
      last = max(last, __shfl_xor_sync(~0u, last, d));
    }
  }

  __device__ void merge_into(Merged& merged) const {
    if (this->sum) atomicAdd(&merged.sum, static_cast<Word>(this->sum));
    if (this->coarse_sum) atomicAdd(&merged.coarse_sum, static_cast<Word>(this->coarse_sum));
    atomicMin(&merged.least, static_cast<Word>(this->least));
    atomicMax(&merged.greatest, static_cast<Word>(this->greatest));
    atomicMax(&merged.above, this->above);
    if (this->marks) atomicOr(&merged.marks, this->marks);
    atomicMin(&merged.first, first);
    atomicMax(&merged.last, last);
  }

  __device__ void take(const Merged& merged) {
    this->sum = static_cast<int64_t>(merged.sum);
    this->coarse_sum = static_cast<int64_t>(merged.coarse_sum);
    this->least = static_cast<typename CellFeature<T>::Key>(merged.least);
    this->greatest = static_cast<typename CellFeature<T>::Key>(merged.greatest);
    this->above = merged.above;
    this->marks = merged.marks;
    first = merged.first;
    last = merged.last;
  }

  // Finds all but the sum.
  __device__ void look_at(const CellRows& rows, const FeatureColumn<T>& column, const Wanted& wanted,
                          FeatureWork<T> (&values)[kHeld]) {
    if (wanted.looks || wanted.extremes) {
      for_each_value(rows, column, values, [&](FeatureWork<T> value) {
        if (wanted.looks) this->look(value);
        if (wanted.extremes) this->compare(value);
      });
      if (wanted.looks && !this->settled()) {
        for_each_value(rows, column, values, [&](FeatureWork<T> value) { this->look_closely(value); });
      }
    }
    if (wanted.ends) {
      for (uint32_t i = rows.index; i < rows.points; i += rows.step) {
        first = min(first, rows.rows[i]);
        last = max(last, rows.rows[i]);
      }
    }
  }

  // Computes the sum. Call look_at first, which finds the cell's quantum. `points` counts all points of the cell.
  __device__ void add_up(const VoxelReduction& call, const CellRows& rows, uint32_t points,
                         const FeatureColumn<T>& column, FeatureWork<T> (&values)[kHeld]) {
    const Quantum quantum(this->quantum(call, points));
    if (call.quantum_exponent == kOwnQuantum) {
      for_each_value(rows, column, values, [&](FeatureWork<T> value) { this->add_own(value, quantum); });
    } else {
      for_each_value(rows, column, values, [&](FeatureWork<T> value) { this->add_given(value, quantum); });
    }
  }

  __device__ void write_all(const VoxelReduction& call, const Outputs& outputs, const FeatureColumn<T>& column,
                            int64_t entry, uint32_t points) const {
    store_feature<T>(call, outputs, *this, entry, points);
    T* const firsts = outputs.as<T>(VoxelMode::kFirst);
    T* const lasts = outputs.as<T>(VoxelMode::kLast);
    if (firsts) firsts[entry] = from_feature_work<T>(column[first]);
    if (lasts) lasts[entry] = from_feature_work<T>(column[last]);
  }
};

template <class T>
__device__ FeatureColumn<T> column_of(const VoxelReduction& call, int64_t feature) {
  return {static_cast<const T*>(call.features.data) + feature, static_cast<uint32_t>(call.features.row_stride)};
}

enum class Team { kGroup, kWarp };

// Reduces a feature of a cell with points. With kGroup each group has its own cell; with kWarp the groups of a warp
// share one cell.
template <class T, Team kTeam>
__device__ void reduce_feature(const VoxelReduction& call, const Outputs& outputs, const Wanted& wanted,
                               const CellRows& rows, int64_t cell, int64_t feature, bool writes, unsigned lanes) {
  const FeatureColumn<T> column = column_of<T>(call, feature);
  CellFeatureWithEnds<T> reduced;
  FeatureWork<T> values[kHeld];
  load_values(rows, column, rows.index, values);
  reduced.look_at(rows, column, wanted, values);
  if constexpr (kTeam == Team::kWarp) reduced.merge_in_warp(lanes);
  if (wanted.sums) {
    reduced.add_up(call, rows, rows.points, column, values);
    if constexpr (kTeam == Team::kWarp) reduced.merge_in_warp(lanes);
  }
  if (writes) reduced.write_all(call, outputs, column, cell * call.features.count + feature, rows.points);
}

// Reduces all features of a cell, by one group or by all groups of a warp.
template <class T, Team kTeam>
__device__ void reduce_cell(const VoxelReduction& call, const Outputs& outputs, const Wanted& wanted,
                            const CellRows& rows, int64_t cell, Group group) {
  const int64_t count = call.features.count;
  for (int64_t base = 0; base < count; base += group.lanes()) {
    const int64_t unclamped = base + group.lane();
    // Threads beyond the last feature repeat it, because merges need all threads.
    const int64_t feature = min(unclamped, count - 1);
    const bool writes = unclamped < count && (kTeam == Team::kGroup || threadIdx.x % 32 < group.lanes());
    reduce_feature<T, kTeam>(call, outputs, wanted, rows, cell, feature, writes, group.lanes());
  }
}

inline Wanted wanted_of(const VoxelReduction& call, const Outputs& outputs) {
  Wanted wanted{};
  wanted.sums = outputs[VoxelMode::kSum] || outputs[VoxelMode::kMean];
  wanted.looks = wanted.sums && is_floating(call.features.dtype) && call.quantum_exponent == kOwnQuantum;
  wanted.extremes = outputs[VoxelMode::kMin] || outputs[VoxelMode::kMax];
  wanted.ends = outputs[VoxelMode::kFirst] || outputs[VoxelMode::kLast];
  return wanted;
}

inline Group group_of(int64_t threads) {
  return {static_cast<int>(std::bit_width(static_cast<unsigned>(std::min<int64_t>(threads, 32)) - 1))};
}

}  // namespace robocache::voxels_cuda
