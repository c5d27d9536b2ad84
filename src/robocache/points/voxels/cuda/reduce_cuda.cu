// The CUDA engine. It uses bits for occupancy alone (occupy_cuda.cuh) and tiles where they fit (tiles_cuda.cuh). For
// every other mode, dtype and grid it uses atomic operations on arrays over all cells, whose result does not depend on
// their order:
//
//   locate      finds the cell of each row and each cell's first and last row, counts rows and marks occupancy
//   gather      finds minima, maxima, and the exponents that decide the quanta of sums
//   add         adds the features in quanta
//   finish      rounds once per cell and feature
#include "robocache/core/launch_cuda.cuh"
#include "robocache/core/workspace_parts.hpp"
#include "robocache/points/voxels/cuda/occupy_cuda.cuh"
#include "robocache/points/voxels/cuda/packed_cells_cuda.cuh"
#include "robocache/points/voxels/cuda/rows_cuda.cuh"
#include "robocache/points/voxels/cuda/tiles_cuda.cuh"
#include "robocache/points/voxels/reduce_way.hpp"

namespace robocache::voxels_cuda {
namespace {

constexpr int kThreads = 256;
constexpr int32_t kExponentBias = -kNoExponent;  // kNoExponent is then stored as 0

// The arrays of a call. An array is null if no output needs it.
struct Work {
  int64_t rows;
  int64_t* cell_of_row;  // -1 for rows in no cell
  int32_t* counts;       // [cells]
  bool* occupancy;       // [cells]
  uint32_t* bits;
  int32_t* exponents;  // [cells, F] largest exponent_above, biased
  uint32_t* marks;     // [cells, F] bytes
  Word* sums;          // [cells, F] wrapping
  Word* coarse_sums;   // [cells, F]
  Word* minima;        // [cells, F] order keys
  Word* maxima;
  Word* first_rows;  // [cells]
  Word* last_rows;   // [cells] plus 1
};

__global__ void locate(const __grid_constant__ VoxelReduction call, const __grid_constant__ Work work) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x; row < work.rows; row += step) {
    const int64_t cell = cell_of(call, row);
    if (work.cell_of_row) work.cell_of_row[row] = cell;
    if (cell < 0) continue;
    if (work.counts) atomicAdd(work.counts + cell, 1);
    if (work.occupancy) work.occupancy[cell] = true;
    if (work.bits) {
      const int64_t z = cell % call.grid.shape[2];
      const int64_t words = (call.grid.shape[2] + 31) / 32;
      atomicOr(work.bits + cell / call.grid.shape[2] * words + z / 32, 1u << (z % 32));
    }
    if (work.first_rows) atomicMin(work.first_rows + cell, static_cast<Word>(row));
    if (work.last_rows) atomicMax(work.last_rows + cell, static_cast<Word>(row) + 1);
  }
}

// Computes counts and occupancy alone, four rows per thread. clear_grids runs before this kernel and starts after all
// earlier work, so this kernel can load points while clear_grids clears.
__global__ void __launch_bounds__(kThreads)
    count_packed(const __grid_constant__ VoxelReduction call, const __grid_constant__ FastGrid grid, int64_t rows,
                 int32_t* counts, bool* occupancy) {
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 4;
  float points[12];
  load_points(call, row, rows, points);
  uint32_t cells[4];
  cells_of(grid, points, cells);
  wait_for_work_before();
  count_dropped(call, row, rows, cells);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (cells[i] == kNoCell) continue;
    if (counts) atomicAdd(counts + cells[i], 1);
    if (!occupancy) continue;
    if (cells[i] < call.cells / 4 * 4) {  // an atomic on a word is faster than a store of a byte
      atomicOr(reinterpret_cast<uint32_t*>(occupancy) + cells[i] / 4, 1u << (cells[i] % 4 * 8));
    } else {
      occupancy[cells[i]] = true;
    }
  }
}

// Clears vectors of 16 bytes, then the remaining elements.
template <class T>
__device__ void clear(T* grid, int64_t cells, int64_t first, int64_t step) {
  constexpr int64_t kTogether = 16 / sizeof(T);
  for (int64_t i = first; i < cells / kTogether; i += step) reinterpret_cast<uint4*>(grid)[i] = make_uint4(0, 0, 0, 0);
  if (first < cells % kTogether) grid[cells - 1 - first] = T{};
}

__global__ void __launch_bounds__(kThreads)
    clear_grids(int32_t* counts, bool* occupancy, int64_t cells, int64_t* dropped) {
  wait_for_work_before();
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  if (counts) clear(counts, cells, first, step);
  if (occupancy) clear(occupancy, cells, first, step);
  if (dropped && first == 0) *dropped = 0;
}

// Calls body(entry, feature) for every feature of every row in a cell; entry = cell * F + feature. The lanes of a warp
// take neighbouring features, so whole rows are read at once.
template <class T, class Body>
__device__ void for_each_feature(const VoxelReduction& call, const Work& work, Body body) {
  constexpr int kLanes = 32;
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const int64_t count = call.features.count;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t base = int64_t{blockIdx.x} * kThreads + threadIdx.x - lane; base < work.rows; base += step) {
    const int64_t own_cell = base + lane < work.rows ? work.cell_of_row[base + lane] : -1;
    for (int64_t i = lane; i < kLanes * count; i += kLanes) {
      const int64_t row_in_warp = i / count;
      const int64_t cell = __shfl_sync(~0u, own_cell, static_cast<int>(row_in_warp));
      if (cell < 0) continue;
      const int64_t feature = i - row_in_warp * count;
      body(cell * count + feature, features_of_row<T>(call, base + row_in_warp)[feature]);
    }
  }
}

// atomicMax and atomicMin that skip the write if it changes nothing, which is the most frequent case.
template <class Integer>
__device__ void raise(Integer* target, Integer value) {
  if (*static_cast<volatile Integer*>(target) < value) atomicMax(target, value);
}
template <class Integer>
__device__ void lower(Integer* target, Integer value) {
  if (*static_cast<volatile Integer*>(target) > value) atomicMin(target, value);
}

template <class T>
__global__ void gather(const __grid_constant__ VoxelReduction call, const __grid_constant__ Work work) {
  for_each_feature<T>(call, work, [&](int64_t entry, T feature) {
    const FeatureWork<T> value = to_feature_work(feature);
    if constexpr (!std::is_integral_v<T>) {
      if (work.exponents && mark_of(value) == 0) {
        raise(work.exponents + entry, exponent_above(value) + kExponentBias);
      }
    }
    if (work.minima) lower(work.minima + entry, static_cast<Word>(min_key(value)));
    if (work.maxima) raise(work.maxima + entry, static_cast<Word>(max_key(value)));
  });
}

// Returns a feature of a cell with the exponent that `gather` found.
template <class T>
__device__ CellFeature<T> with_exponent(const Work& work, int64_t entry) {
  CellFeature<T> reduced;
  if (work.exponents) reduced.above = work.exponents[entry] - kExponentBias;
  return reduced;
}

template <class T>
__global__ void add(const __grid_constant__ VoxelReduction call, const __grid_constant__ Work work) {
  for_each_feature<T>(call, work, [&](int64_t entry, T feature) {
    int64_t quanta = 0;
    if constexpr (std::is_integral_v<T>) {
      quanta = static_cast<int64_t>(feature);
    } else {
      const FeatureWork<T> value = to_feature_work(feature);
      uint32_t mark = mark_of(value);
      const int32_t points = work.counts[entry / call.features.count];
      const QuantumScale scale = quantum_scale(with_exponent<T>(work, entry).quantum(call, points));
      if (mark == 0 && !to_given_quanta(value, scale, quanta)) mark = kHasNan;
      if (mark != 0) {
        atomicOr(work.marks + entry / 4, mark << (entry % 4 * 8));
        return;
      }
    }
    if (quanta == 0) return;
    atomicAdd(work.sums + entry, static_cast<Word>(quanta));
    if (work.coarse_sums && coarse(quanta) != 0) atomicAdd(work.coarse_sums + entry, static_cast<Word>(coarse(quanta)));
  });
}

template <class T>
__global__ void finish(const __grid_constant__ VoxelReduction call, const __grid_constant__ Work work,
                       const __grid_constant__ Outputs outputs) {
  using Key = typename CellFeature<T>::Key;
  const int64_t features = call.features.count;
  const int64_t entries = call.cells * features;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  T* const first = outputs.as<T>(VoxelMode::kFirst);
  T* const last = outputs.as<T>(VoxelMode::kLast);
  for (int64_t entry = int64_t{blockIdx.x} * kThreads + threadIdx.x; entry < entries; entry += step) {
    const int64_t cell = entry / features;
    const int64_t feature = entry - cell * features;
    const int32_t points = work.counts[cell];
    if (points == 0) {
      store_nothing<T>(call, outputs, entry);
      continue;
    }
    CellFeature<T> reduced = with_exponent<T>(work, entry);
    if (work.sums) reduced.sum = static_cast<int64_t>(work.sums[entry]);
    if (work.coarse_sums) reduced.coarse_sum = static_cast<int64_t>(work.coarse_sums[entry]);
    if (work.marks) reduced.marks = work.marks[entry / 4] >> (entry % 4 * 8) & 0xffu;
    if (work.minima) reduced.least = static_cast<Key>(work.minima[entry]);
    if (work.maxima) reduced.greatest = static_cast<Key>(work.maxima[entry]);
    store_feature<T>(call, outputs, reduced, entry, points);
    const auto value_of = [&](Word row) { return features_of_row<T>(call, static_cast<int64_t>(row))[feature]; };
    if (first) first[entry] = value_of(work.first_rows[cell]);
    if (last) last[entry] = value_of(work.last_rows[cell] - 1);
  }
}

// Divides the workspace. Its first `zeroed` bytes must be 0. The minima and first rows follow, up to byte `set`; all
// their bits must be 1.
Work plan(const VoxelReduction& call, WorkspaceParts& workspace, int64_t& zeroed, int64_t& set) {
  Work work{};
  work.rows = row_count(call.clouds);
  const Outputs outputs(call);
  const auto has = [&](VoxelMode mode) { return any_output(call, [&](VoxelMode other) { return other == mode; }); };
  work.occupancy = static_cast<bool*>(outputs[VoxelMode::kOccupancy]);
  work.bits = static_cast<uint32_t*>(outputs[VoxelMode::kOccupancyBits]);
  work.counts = static_cast<int32_t*>(outputs[VoxelMode::kCount]);
  const bool needs_sums = has(VoxelMode::kSum) || has(VoxelMode::kMean);
  const bool needs_keys = has(VoxelMode::kMin) || has(VoxelMode::kMax);
  const bool needs_rows = has(VoxelMode::kFirst) || has(VoxelMode::kLast);
  const bool is_float = is_floating(call.features.dtype);
  const bool is_own_quantum = call.quantum_exponent == kOwnQuantum;
  const int64_t entries = call.cells * call.features.count;
  workspace.take(work.counts, call.cells, !has(VoxelMode::kCount) && (needs_sums || needs_keys || needs_rows));
  workspace.take(work.exponents, entries,
                 needs_sums && is_float && is_own_quantum && call.features.dtype != DType::kFloat16);
  workspace.take(work.marks, (entries + 3) / 4, needs_sums && is_float);
  workspace.take(work.sums, entries, needs_sums);
  workspace.take(work.coarse_sums, entries,
                 needs_sums && (is_float ? !is_own_quantum : call.features.dtype == DType::kInt64));
  workspace.take(work.maxima, entries, has(VoxelMode::kMax));
  workspace.take(work.last_rows, call.cells, has(VoxelMode::kLast));
  zeroed = workspace.bytes();
  workspace.take(work.minima, entries, has(VoxelMode::kMin));
  workspace.take(work.first_rows, call.cells, has(VoxelMode::kFirst));
  set = workspace.bytes();
  workspace.take(work.cell_of_row, work.rows, needs_sums || needs_keys);
  return work;
}

ReduceWay way_of(const VoxelReduction& call, int device) {
  if (suits_packed(call) && is_fast(call) && outputs_aligned(call)) return ReduceWay::kPacked;
  if (goes_by_bits(call, device)) return ReduceWay::kBits;
  return goes_by_tiles(call, device) ? ReduceWay::kTiles : ReduceWay::kAtomics;
}

cudaError_t count_few(const VoxelReduction& call, int device, cudaStream_t stream) {
  const Outputs outputs(call);
  const int64_t rows = row_count(call.clouds);
  auto* const counts = static_cast<int32_t*>(outputs[VoxelMode::kCount]);
  auto* const occupancy = static_cast<bool*>(outputs[VoxelMode::kOccupancy]);
  const dim3 clearing(2 * static_cast<unsigned>(multiprocessors(device)));
  const cudaError_t code =
      launch_overlapped(clear_grids, clearing, kThreads, 0, stream, counts, occupancy, call.cells, call.dropped);
  if (code != cudaSuccess) return code;
  return launch_overlapped(count_packed, blocks_for(rows, 4 * kThreads), kThreads, 0, stream, call,
                           fast_grid(call.grid), rows, counts, occupancy);
}

cudaError_t reduce(const VoxelReduction& call, int device, cudaStream_t stream) {
  const ReduceWay way = way_of(call, device);
  if (way == ReduceWay::kPacked) return count_few(call, device, stream);
  if (call.dropped) {
    const cudaError_t code =
        cudaMemsetAsync(call.dropped, 0, static_cast<size_t>(call.clouds.count) * sizeof(*call.dropped), stream);
    if (code != cudaSuccess) return code;
  }
  if (way == ReduceWay::kBits) return reduce_by_bits(call, device, stream);
  if (way == ReduceWay::kTiles) return reduce_by_tiles(call, device, stream);
  WorkspaceParts workspace(call.workspace);
  int64_t zeroed = 0;
  int64_t set = 0;
  const Work work = plan(call, workspace, zeroed, set);
  const auto clear = [&](void* memory, int value, int64_t bytes) {
    return bytes == 0 || memory == nullptr ? cudaSuccess
                                           : cudaMemsetAsync(memory, value, static_cast<size_t>(bytes), stream);
  };
  char* const memory = static_cast<char*>(call.workspace);
  cudaError_t code = clear(memory, 0, zeroed);
  if (code == cudaSuccess) code = clear(memory + zeroed, 0xff, set - zeroed);
  for (int32_t i = 0; i < call.output_count && code == cudaSuccess; ++i) {
    const VoxelOutput& output = call.outputs[i];
    if (output.mode == VoxelMode::kOccupancy) code = clear(output.data, 0, call.cells);
    if (output.mode == VoxelMode::kCount) code = clear(output.data, 0, call.cells * 4);
    if (output.mode == VoxelMode::kOccupancyBits) {
      const int64_t* const shape = call.grid.shape;
      code = clear(output.data, 0, call.clouds.count * shape[0] * shape[1] * ((shape[2] + 31) / 32) * 4);
    }
  }
  if (code != cudaSuccess) return code;

  const auto blocks_of = [&](int64_t items) {
    // enough blocks to fill the device; each takes several steps
    return blocks_for(items, kThreads, 16 * multiprocessors(device));
  };
  if (work.rows > 0) locate<<<blocks_of(work.rows), kThreads, 0, stream>>>(call, work);
  const int64_t entries = call.cells * call.features.count;
  const bool uses_features = work.sums || work.minima || work.maxima || work.first_rows || work.last_rows;
  if (work.counts == nullptr || entries == 0 || !uses_features) return cudaGetLastError();
  return with_feature_type(call.features.dtype, [&](auto type) {
    using T = decltype(type);
    if (work.rows > 0 && (work.exponents || work.minima || work.maxima)) {
      gather<T><<<blocks_of(work.rows), kThreads, 0, stream>>>(call, work);
    }
    if (work.rows > 0 && work.sums) add<T><<<blocks_of(work.rows), kThreads, 0, stream>>>(call, work);
    finish<T><<<blocks_of(entries), kThreads, 0, stream>>>(call, work, Outputs(call));
    return cudaGetLastError();
  });
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int64_t
robocache_cuda_reduce_workspace_bytes(const VoxelReduction* call, int32_t device) {
  if (goes_by_bits(*call, device)) return bits_workspace_bytes(*call, device);
  if (goes_by_tiles(*call, device)) return tiles_workspace_bytes(*call, device);
  WorkspaceParts workspace(nullptr);
  int64_t zeroed = 0;
  int64_t set = 0;
  plan(*call, workspace, zeroed, set);
  return workspace.bytes();
}

extern "C" __attribute__((visibility("default"))) int robocache_cuda_reduce_into_voxels(const VoxelReduction* call,
                                                                                        int32_t device, void* stream) {
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  return reduce(*call, device, static_cast<cudaStream_t>(stream));
}

}  // namespace robocache::voxels_cuda
