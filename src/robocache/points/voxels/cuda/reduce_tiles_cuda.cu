#include "robocache/points/voxels/cuda/cell_fills_cuda.cuh"
#include "robocache/points/voxels/cuda/fast_sums_cuda.cuh"
#include "robocache/points/voxels/cuda/tile_keys_cuda.cuh"

namespace robocache::voxels_cuda {
namespace {

enum class Way { kGeneral, kGivenSums, kOwnSums };

// Fast sums have fewer threads with more registers each, and so keep more loads in flight.
constexpr int tile_threads(Way way) { return way == Way::kGeneral ? 512 : 256; }

// Reduces cells that fast sums cannot add. This is rare, so it is not inlined.
template <class T>
__device__ __noinline__ void reduce_generally(const VoxelReduction& call, const Outputs& outputs, const Wanted& wanted,
                                              const CellRows& rows, int64_t cell, int64_t feature) {
  for (int64_t f = feature; f < feature + kWide; ++f) {
    reduce_feature<T, Team::kGroup>(call, outputs, wanted, rows, cell, f, true, 1);
  }
}

// Counts the entries that a cell with many rows needs in the lists.
__device__ void count_crowded(Filled& filled, uint32_t points) {
  atomicAdd(&filled.crowded, 1u);
  atomicAdd(&filled.pieces, pieces_of(points));
  if (points > kPiece) atomicAdd(&filled.merged, 1u);
}

// Reserves a tile's list entries: replaces the counts by offsets. One thread calls it.
__device__ void reserve(const TilePlan& plan, Filled& filled) {
  filled.rows = atomicAdd(&plan.filled->rows, filled.rows);
  filled.crowded = atomicAdd(&plan.filled->crowded, filled.crowded);
  filled.pieces = atomicAdd(&plan.filled->pieces, filled.pieces);
  if (filled.merged) filled.merged = atomicAdd(&plan.filled->merged, filled.merged);
}

__device__ void list_crowded(const TilePlan& plan, Filled& filled, const FilledCell& cell, int64_t features) {
  const uint32_t index = atomicAdd(&filled.crowded, 1u);
  const uint32_t pieces = pieces_of(cell.points);
  CrowdedCell crowded{cell, atomicAdd(&filled.pieces, pieces), 0};
  if (pieces > 1) {
    crowded.merged = atomicAdd(&filled.merged, 1u);
    plan.crowded_of_merged[crowded.merged] = index;
    for (int64_t f = 0; f < features; ++f) plan.merged[crowded.merged * features + f].clear();
  }
  plan.crowded[index] = crowded;
  for (uint32_t i = 0; i < pieces; ++i) plan.crowded_of_piece[crowded.first_piece + i] = index;
}

// Reduces a cell of fewer than kCrowd rows. A group calls it.
template <class T, Way kWay>
__device__ void reduce_few(const VoxelReduction& call, const Outputs& outputs, const Wanted& wanted, Group group,
                           const CellRows& rows, int64_t cell) {
  if constexpr (kWay == Way::kGeneral) {
    reduce_cell<T, Team::kGroup>(call, outputs, wanted, rows, cell, group);
  } else {
    constexpr bool kOwn = kWay == Way::kOwnSums;
    for (int64_t feature = group.lane() * kWide; feature < call.features.count; feature += group.lanes() * kWide) {
      HeldVectors<T> values{call, rows, feature};
      values.load_first();
      int32_t exponents[kWide];
      int64_t sums[kWide];
      bool fits = true;
      if constexpr (kOwn) fits = look_fast<T, Team::kGroup>(values, true, 0, exponents);
#pragma unroll
      for (int j = 0; j < kWide; ++j) exponents[j] = exponent_of<T>(call, kOwn, kOwn ? exponents[j] : 0, rows.points);
      if (fits && add_fast<T, kOwn, Team::kGroup>(values, 0, exponents, sums)) {
        store_sums<T>(outputs, cell * call.features.count + feature, rows.points, exponents, sums);
      } else {
        reduce_generally<T>(call, outputs, wanted, rows, cell, feature);
      }
    }
  }
}

// Sorts a tile's rows by cell, then reduces cell after cell.
template <class T, Way kWay>
__global__ void __launch_bounds__(tile_threads(kWay), 2)
    reduce_tiles(const __grid_constant__ VoxelReduction call, const __grid_constant__ TilePlan plan,
                 const __grid_constant__ Outputs outputs, const __grid_constant__ Fills fills,
                 const __grid_constant__ Wanted wanted, Group group) {
  constexpr int kTileThreads = tile_threads(kWay);
  extern __shared__ __align__(16) unsigned char memory[];
  Runs& runs = *reinterpret_cast<Runs*>(memory);
  const int size = plan.tiling.tile_cells();
  const uint32_t padding = plan.tiling.padding();
  // For each cell its number of rows, later its start in `rows`, at last its end there.
  uint32_t* const ends = reinterpret_cast<uint32_t*>(memory + sizeof(Runs));
  uint32_t* const listed_rows = ends + size;
  __shared__ uint32_t warp_sums[32];
  __shared__ Filled filled;
  let_work_after_begin();
  for (int i = threadIdx.x; i < size; i += kTileThreads) ends[i] = 0;
  if (threadIdx.x == 0) filled = {};
  wait_for_work_before();
  if (!plan.tiles_serve()) return;
  for_each_four<uint32_t, kTileThreads, 4>(plan, runs, warp_sums, [&](const uint32_t(&keys)[4], int) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((keys[i] & 0xffff) != padding) atomicAdd(&ends[keys[i] & 0xffff], 1u);
    }
  });
  __syncthreads();
  {
    const int per_thread = (size + kTileThreads - 1) / kTileThreads;
    const int begin = threadIdx.x * per_thread;
    const int end = min(size, begin + per_thread);
    uint32_t sum = 0;
    for (int i = begin; i < end; ++i) sum += ends[i];
    uint32_t start = sum_before<kTileThreads>(sum, warp_sums);
    for (int i = begin; i < end; ++i) {
      const uint32_t points = ends[i];
      ends[i] = start;
      start += points;
      if (points >= kCrowd) count_crowded(filled, points);
    }
    if (threadIdx.x == kTileThreads - 1) filled.rows = start;
  }
  __syncthreads();
  const uint32_t tile_rows = filled.rows;
  const bool fits = tile_rows <= static_cast<uint32_t>(plan.listed);
  const bool crowds = filled.crowded > 0;
  __syncthreads();
  if (threadIdx.x == 0 && (crowds || !fits)) reserve(plan, filled);
  __syncthreads();
  const uint32_t first_sorted = filled.rows;
  uint32_t* const rows = fits ? listed_rows : plan.sorted + first_sorted;
  for_each_four<uint32_t, kTileThreads, 4>(plan, runs, warp_sums, [&](const uint32_t(&keys)[4], int chunk) {
    const uint32_t first_row = static_cast<uint32_t>(chunk) * plan.chunk_rows;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t index = keys[i] & 0xffff;
      if (index != padding) rows[atomicAdd(&ends[index], 1u)] = first_row + (keys[i] >> 16);
    }
  });
  __syncthreads();
  if (fits && crowds) {
    for (uint32_t i = threadIdx.x; i < tile_rows; i += kTileThreads) plan.sorted[first_sorted + i] = listed_rows[i];
  }

  int32_t* const counts = outputs.as<int32_t>(VoxelMode::kCount);
  bool* const occupancy = outputs.as<bool>(VoxelMode::kOccupancy);
  uint32_t* const bits = outputs.as<uint32_t>(VoxelMode::kOccupancyBits);
  const auto line_of = [&](int index) {
    return plan.tiling.line_start((blockIdx.x << plan.tiling.row_bits) + index / kLineCells);
  };
  // Each warp handles one line at a time. It leaves cells with few rows to groups.
  uint16_t* const few_indices = reinterpret_cast<uint16_t*>(memory);
  for (int index = threadIdx.x; index < size; index += kTileThreads) {
    const int lane = index % kLineCells;
    const int64_t line = line_of(index);
    if (line >= call.cells) continue;
    const int64_t cell = line + lane;
    const uint32_t start = index ? ends[index - 1] : 0;
    const uint32_t points = ends[index] - start;
    const uint32_t word = __ballot_sync(~0u, points != 0);
    if (cell < call.cells) {
      if (counts) counts[cell] = static_cast<int32_t>(points);
      if (occupancy) occupancy[cell] = points != 0;
      if (bits && lane == 0) bits[cell / kLineCells] = word;
    }
    if (word != ~0u) {
      fill_line(fills, line, static_cast<uint32_t>(min(call.cells - line, int64_t{kLineCells})), word,
                call.features.count, plan.aligned);
    }
    const bool is_few = points > 0 && points < kCrowd;
    const uint32_t few = __ballot_sync(~0u, is_few);
    uint32_t few_index = 0;
    if (lane == 0 && few) few_index = atomicAdd(&filled.few, static_cast<uint32_t>(__popc(few)));
    few_index = __shfl_sync(~0u, few_index, 0) + __popc(few & ((1u << lane) - 1));
    if (is_few) few_indices[few_index] = static_cast<uint16_t>(index);
    if (points >= kCrowd) {
      list_crowded(plan, filled, {static_cast<uint32_t>(cell), first_sorted + start, points}, call.features.count);
    }
  }
  __syncthreads();
  for (uint32_t i = group.index_in_block(); i < filled.few; i += group.count_in(kTileThreads)) {
    const int index = few_indices[i];
    const uint32_t start = index ? ends[index - 1] : 0;
    reduce_few<T, kWay>(call, outputs, wanted, group, {rows + start, ends[index] - start, 0, 1},
                        line_of(index) + index % kLineCells);
  }
}

}  // namespace

cudaError_t launch_reduce_tiles(const VoxelReduction& call, const TilePlan& plan, cudaStream_t stream) {
  const Outputs outputs(call);
  const Wanted wanted = wanted_of(call, outputs);
  const auto launch = [&](auto kernel, Way way, int64_t threads_a_row) {
    return launch_tile_kernel(kernel, plan.tiling.tiles(), tile_threads(way), plan.bytes_of_tile(), stream, call, plan,
                              outputs, fills_of(call), wanted, group_of(threads_a_row));
  };
  return with_fast_sums(
      call, plan, wanted,
      [&](auto type, auto own) {
        constexpr Way kWay = own() ? Way::kOwnSums : Way::kGivenSums;
        return launch(reduce_tiles<decltype(type), kWay>, kWay, call.features.count / kWide);
      },
      [&] {
        return with_feature_type(call.features.dtype, [&](auto type) {
          return launch(reduce_tiles<decltype(type), Way::kGeneral>, Way::kGeneral, call.features.count);
        });
      });
}

}  // namespace robocache::voxels_cuda
