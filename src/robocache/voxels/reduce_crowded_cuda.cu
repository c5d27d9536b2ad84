// Crowded cells. A warp takes a cell of one segment as a whole. Of the others' segments it first looks for what the cell's
// quantum goes by, then, in another kernel, adds up; both are put together in global memory.
#include "robocache/voxels/cell_features_cuda.cuh"

namespace robocache {
namespace {

constexpr int kCrowdThreads = 128;

template <class T, bool kAdd>
__global__ void __launch_bounds__(kCrowdThreads)
    reduce_crowded(const __grid_constant__ VoxelReduction call, const __grid_constant__ TilePlan plan,
                   const __grid_constant__ Outputs outputs, const __grid_constant__ Wanted wanted, Group group) {
  wait_for_work_before();
  const auto segments = static_cast<uint32_t>(*plan.crowds);
  constexpr unsigned kWarps = kCrowdThreads / 32;
  for (uint32_t segment = blockIdx.x * kWarps + threadIdx.x / 32; segment < segments; segment += gridDim.x * kWarps) {
    const CrowdedCell cell = plan.crowded[plan.crowded_of_segment[segment]];
    const uint32_t begin = (segment - cell.first_segment) * kSegment;
    const CellRows rows{plan.sorted + cell.start + begin, min(kSegment, cell.points - begin), group.of_warp(),
                        group.per(32)};
    if (cell.points <= kSegment) {
      if (!kAdd) reduce_cell<T, Team::kWarp>(call, outputs, wanted, rows, cell.cell, group);
      continue;
    }
    for (int64_t base = 0; base < call.features.count; base += group.lanes()) {
      const int64_t wished = base + group.lane();
      const int64_t f = min(wished, call.features.count - 1);
      Merged& merged = plan.merged[cell.merged * call.features.count + f];
      const FeatureColumn<T> column = column_of<T>(call, f);
      Found<T> found;
      FeatureWork<T> values[kHeld];
      load_values(rows, column, values);
      if constexpr (kAdd) {
        found.above = merged.above;
        found.add_up(call, rows, cell.points, column, values);
      } else {
        found.look_at(rows, column, wanted, values);
      }
      found.merge_in_warp(group.lanes());
      if (threadIdx.x % 32 < group.lanes() && wished < call.features.count) found.merge_into(merged);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kCrowdThreads)
    write_merged(const __grid_constant__ VoxelReduction call, const __grid_constant__ TilePlan plan,
                 const __grid_constant__ Outputs outputs) {
  wait_for_work_before();
  const int64_t count = call.features.count;
  const int64_t places = static_cast<int64_t>(*plan.crowds >> 32) * count;
  const int64_t step = int64_t{gridDim.x} * kCrowdThreads;
  for (int64_t i = int64_t{blockIdx.x} * kCrowdThreads + threadIdx.x; i < places; i += step) {
    const CrowdedCell cell = plan.crowded[i / count];
    if (cell.points <= kSegment) continue;
    const int64_t f = i % count;
    Found<T> found;
    found.take(plan.merged[cell.merged * count + f]);
    found.write_all(call, outputs, column_of<T>(call, f), cell.cell * count + f, cell.points);
  }
}

}  // namespace

cudaError_t launch_reduce_crowded(const VoxelReduction& call, const TilePlan& plan, cudaStream_t stream) {
  if (plan.rows < kCrowd) return cudaSuccess;
  const Outputs outputs(call);
  const Wanted wanted = wanted_of(call, outputs);
  const Group group = group_of(call);
  return with_feature_type(call.features.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kBlocks = 132 * 16;
    cudaError_t code = launch_tile_kernel(reduce_crowded<T, false>, kBlocks, kCrowdThreads, 0, stream, call, plan,
                                          outputs, wanted, group);
    if (code != cudaSuccess || plan.rows <= kSegment) return code;
    if (wanted.sums) {
      code = launch_tile_kernel(reduce_crowded<T, true>, kBlocks, kCrowdThreads, 0, stream, call, plan, outputs, wanted,
                                group);
      if (code != cudaSuccess) return code;
    }
    return launch_tile_kernel(write_merged<T>, kBlocks / 16, kCrowdThreads, 0, stream, call, plan, outputs);
  });
}

}  // namespace robocache
