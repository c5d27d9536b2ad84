// Cells with many rows are divided into pieces, and a warp reduces each piece. A cell of several pieces takes two
// kernels: the first finds the numbers that decide the cell's quantum, the second adds. Both combine the pieces in
// global memory. If the first is not needed, the second kernel does everything.
#include "robocache/points/voxels/cuda/fast_sums_cuda.cuh"

namespace robocache::voxels_cuda {
namespace {

constexpr int kCrowdThreads = 128;

// Calls body(cell, rows of the piece) for the pieces of this warp. The groups share a piece's rows.
template <class Body>
__device__ void for_each_piece(const TilePlan& plan, Group group, Body body) {
  const uint32_t pieces = plan.filled->pieces;
  constexpr unsigned kWarps = kCrowdThreads / 32;
  for (uint32_t piece = blockIdx.x * kWarps + threadIdx.x / 32; piece < pieces; piece += gridDim.x * kWarps) {
    const CrowdedCell cell = plan.crowded[plan.crowded_of_piece[piece]];
    const uint32_t begin = (piece - cell.first_piece) * kPiece;
    body(cell, CellRows{plan.sorted + cell.start + begin, min(kPiece, cell.points - begin), group.index_in_warp(),
                        group.count_in(32)});
  }
}

template <class T, bool kAdd>
__device__ void reduce_piece(const VoxelReduction& call, const TilePlan& plan, const Outputs& outputs,
                             const Wanted& wanted, Group group, const CrowdedCell& cell, const CellRows& rows) {
  if (cell.points <= kPiece) {
    return reduce_cell<T, Team::kWarp>(call, outputs, wanted, rows, cell.cell, group);
  }
  for (int64_t base = 0; base < call.features.count; base += group.lanes()) {
    const int64_t unclamped = base + group.lane();
    const int64_t f = min(unclamped, call.features.count - 1);
    Merged& merged = plan.merged[cell.merged * call.features.count + f];
    const FeatureColumn<T> column = column_of<T>(call, f);
    CellFeatureWithEnds<T> reduced;
    FeatureWork<T> values[kHeld];
    load_values(rows, column, rows.index, values);
    if constexpr (kAdd) {
      reduced.above = merged.above;
      reduced.add_up(call, rows, cell.points, column, values);
    } else {
      reduced.look_at(rows, column, wanted, values);
    }
    reduced.merge_in_warp(group.lanes());
    if (threadIdx.x % 32 < group.lanes() && unclamped < call.features.count) reduced.merge_into(merged);
  }
}

// `is_first`: this is the first of the two kernels, which also reduces the cells of one piece.
template <class T, bool kAdd>
__global__ void __launch_bounds__(kCrowdThreads)
    reduce_crowded(const __grid_constant__ VoxelReduction call, const __grid_constant__ TilePlan plan,
                   const __grid_constant__ Outputs outputs, const __grid_constant__ Wanted wanted, Group group,
                   bool is_first) {
  wait_for_work_before();
  if (!plan.tiles_serve()) return;
  for_each_piece(plan, group, [&](const CrowdedCell& cell, const CellRows& rows) {
    if (cell.points <= kPiece && !is_first) return;
    reduce_piece<T, kAdd>(call, plan, outputs, wanted, group, cell, rows);
  });
}

// Reduces all features of a piece that fast sums cannot add. This is rare, so it is not inlined.
template <class T, bool kAdd>
__device__ __noinline__ void reduce_piece_generally(const VoxelReduction& call, const TilePlan& plan,
                                                    const Outputs& outputs, const Wanted& wanted, Group group,
                                                    const CrowdedCell& cell, const CellRows& rows) {
  reduce_piece<T, kAdd>(call, plan, outputs, wanted, group, cell,
                        {rows.rows, rows.points, group.index_in_warp(), group.count_in(32)});
}

template <class T, bool kOwn, bool kAdd>
__global__ void __launch_bounds__(kCrowdThreads, 3)
    sum_crowded(const __grid_constant__ VoxelReduction call, const __grid_constant__ TilePlan plan,
                const __grid_constant__ Outputs outputs, const __grid_constant__ Wanted wanted, Group group,
                Group general_group, bool is_first) {
  wait_for_work_before();
  if (!plan.tiles_serve()) return;
  const int64_t count = call.features.count;
  for_each_piece(plan, group, [&](const CrowdedCell& cell, const CellRows& rows) {
    const bool is_one_piece = cell.points <= kPiece;
    if (is_one_piece && !is_first) return;
    bool fits = true;
    for (int64_t base = 0; base < count && fits; base += group.lanes() * kWide) {
      const int64_t unclamped = base + group.lane() * kWide;
      const int64_t feature = min(unclamped, count - kWide);
      const bool has_feature = unclamped < count;  // threads beyond the last feature repeat it
      const bool merges = has_feature && threadIdx.x % 32 < group.lanes();
      Merged* const merged = plan.merged + cell.merged * count + feature;
      HeldVectors<T> values{call, rows, feature};
      values.load_first();
      int32_t exponents[kWide];
      if constexpr (kOwn) {
        if (!kAdd || is_one_piece) {
          fits = look_fast<T, Team::kWarp>(values, kAdd || is_one_piece, group.lanes(), exponents);
        } else {
#pragma unroll
          for (int j = 0; j < kWide; ++j) exponents[j] = merged[j].above;
        }
      }
      if (!kAdd && !is_one_piece) {
#pragma unroll
        for (int j = 0; j < kWide; ++j) {
          if (merges && fits) atomicMax(&merged[j].above, exponents[j]);
        }
        continue;
      }
#pragma unroll
      for (int j = 0; j < kWide; ++j) exponents[j] = exponent_of<T>(call, kOwn, kOwn ? exponents[j] : 0, cell.points);
      int64_t sums[kWide];
      fits = fits && add_fast<T, kOwn, Team::kWarp>(values, group.lanes(), exponents, sums);
      if (!fits) break;
      if (is_one_piece) {
        // Every group has all four results, so each stores some of them.
        for (unsigned j = group.index_in_warp(); has_feature && j < kWide; j += group.count_in(32)) {
          int32_t exponent = exponents[0];
          int64_t sum = sums[0];
#pragma unroll
          for (unsigned k = 1; k < kWide; ++k) {
            exponent = j == k ? exponents[k] : exponent;
            sum = j == k ? sums[k] : sum;
          }
          store_sum<T>(outputs, cell.cell * count + feature + j, cell.points, exponent, sum);
        }
      } else if (merges) {
#pragma unroll
        for (int j = 0; j < kWide; ++j) atomicAdd(&merged[j].sum, static_cast<Word>(sums[j]));
      }
    }
    if (!fits) reduce_piece_generally<T, kAdd>(call, plan, outputs, wanted, general_group, cell, rows);
  });
}

// Writes the results of the cells of several pieces.
template <class T>
__global__ void __launch_bounds__(kCrowdThreads)
    write_merged(const __grid_constant__ VoxelReduction call, const __grid_constant__ TilePlan plan,
                 const __grid_constant__ Outputs outputs) {
  wait_for_work_before();
  if (!plan.tiles_serve()) return;
  const int64_t count = call.features.count;
  const int64_t entries = plan.filled->merged * count;
  const int64_t step = int64_t{gridDim.x} * kCrowdThreads;
  for (int64_t i = int64_t{blockIdx.x} * kCrowdThreads + threadIdx.x; i < entries; i += step) {
    const CrowdedCell cell = plan.crowded[plan.crowded_of_merged[i / count]];
    const int64_t f = i % count;
    CellFeatureWithEnds<T> reduced;
    reduced.take(plan.merged[i]);
    reduced.write_all(call, outputs, column_of<T>(call, f), cell.cell * count + f, cell.points);
  }
}

}  // namespace

cudaError_t launch_reduce_crowded(const VoxelReduction& call, const TilePlan& plan, int device, cudaStream_t stream) {
  if (plan.rows < kCrowd) return cudaSuccess;
  const Outputs outputs(call);
  const Wanted wanted = wanted_of(call, outputs);
  const int blocks = 16 * multiprocessors(device);
  const bool looks = wanted.looks || wanted.extremes || wanted.ends;
  const bool adds = wanted.sums && (!looks || plan.rows > kPiece);
  const Group general_group = group_of(call.features.count);
  const cudaError_t code = with_fast_sums(
      call, plan, wanted,
      [&](auto type, auto own) {
        using T = decltype(type);
        const auto launch = [&](auto kernel, bool is_first) {
          return launch_tile_kernel(kernel, blocks, kCrowdThreads, 0, stream, call, plan, outputs, wanted,
                                    group_of(call.features.count / kWide), general_group, is_first);
        };
        cudaError_t looked = cudaSuccess;
        if constexpr (own()) looked = launch(sum_crowded<T, true, false>, true);
        return looked == cudaSuccess && adds ? launch(sum_crowded<T, own(), true>, !own()) : looked;
      },
      [&] {
        return with_feature_type(call.features.dtype, [&](auto type) {
          using T = decltype(type);
          const auto launch = [&](auto kernel, bool is_first) {
            return launch_tile_kernel(kernel, blocks, kCrowdThreads, 0, stream, call, plan, outputs, wanted,
                                      general_group, is_first);
          };
          const cudaError_t looked = looks ? launch(reduce_crowded<T, false>, true) : cudaSuccess;
          return looked == cudaSuccess && adds ? launch(reduce_crowded<T, true>, !looks) : looked;
        });
      });
  if (code != cudaSuccess || plan.rows <= kPiece) return code;
  return with_feature_type(call.features.dtype, [&](auto type) {
    return launch_tile_kernel(write_merged<decltype(type)>, blocks / 4, kCrowdThreads, 0, stream, call, plan, outputs);
  });
}

}  // namespace robocache::voxels_cuda
