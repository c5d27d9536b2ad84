#include "robocache/points/voxels/cuda/tile_keys_cuda.cuh"

namespace robocache::voxels_cuda {
namespace {

constexpr int kCountThreads = 1024;

// A 32-bit Count counts rows. An 8-bit Count only marks cells that have a row.
template <class Count>
__global__ void __launch_bounds__(kCountThreads, 2)
    count_tiles(const __grid_constant__ TilePlan plan, const __grid_constant__ Outputs outputs, int64_t cells) {
  extern __shared__ __align__(16) unsigned char memory[];
  Runs& runs = *reinterpret_cast<Runs*>(memory);
  Count* const cell_counts = reinterpret_cast<Count*>(memory + sizeof(Runs));  // one per cell, and one for padding keys
  __shared__ uint32_t warp_sums[32];
  const int size = plan.tiling.tile_cells();
  let_work_after_begin();
  for (int i = threadIdx.x; i < size * static_cast<int>(sizeof(Count)) / 16; i += kCountThreads) {
    reinterpret_cast<uint4*>(cell_counts)[i] = make_uint4(0, 0, 0, 0);
  }
  wait_for_work_before();
  for_each_four<uint16_t, kCountThreads, 2>(plan, runs, warp_sums, [&](const uint32_t(&indices)[4], int) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(Count) == 4) {
        atomicAdd(&cell_counts[indices[i]], 1u);
      } else {
        cell_counts[indices[i]] = 1;
      }
    }
  });
  __syncthreads();
  int32_t* const counts = outputs.as<int32_t>(VoxelMode::kCount);
  bool* const occupancy = outputs.as<bool>(VoxelMode::kOccupancy);
  uint32_t* const bits = outputs.as<uint32_t>(VoxelMode::kOccupancyBits);
  const auto cell_at = [&](int index) {
    return plan.tiling.line_start((blockIdx.x << plan.tiling.row_bits) + index / kLineCells) + index % kLineCells;
  };
  constexpr int kAtOnce = 16 / static_cast<int>(sizeof(Count));  // written as 16 bytes
  for (int index = threadIdx.x * kAtOnce; index < size; index += kCountThreads * kAtOnce) {
    const int64_t cell = cell_at(index);
    const bool fits_vector = plan.aligned && cell + kAtOnce <= cells;
    const uint4 vector = *reinterpret_cast<const uint4*>(cell_counts + index);
    if (fits_vector && sizeof(Count) == 1) {
      *reinterpret_cast<uint4*>(occupancy + cell) = vector;
      continue;
    }
    if (fits_vector && counts) *reinterpret_cast<uint4*>(counts + cell) = vector;
    if (fits_vector && !occupancy) continue;
    for (int k = 0; k < kAtOnce && cell + k < cells; ++k) {
      if (!fits_vector && counts) counts[cell + k] = static_cast<int32_t>(cell_counts[index + k]);
      if (occupancy) occupancy[cell + k] = cell_counts[index + k] != 0;
    }
  }
  if (!bits) return;
  for (int index = threadIdx.x; index < size; index += kCountThreads) {
    const uint32_t word = __ballot_sync(~0u, cell_counts[index] != 0);
    const int64_t cell = cell_at(index);
    if (index % kLineCells == 0 && cell < cells) bits[cell / kLineCells] = word;
  }
}

template <class Count>
cudaError_t launch(const TilePlan& plan, const Outputs& outputs, int64_t cells, cudaStream_t stream) {
  return launch_tile_kernel(count_tiles<Count>, plan.tiling.tiles(), kCountThreads,
                            sizeof(Runs) + (plan.tiling.tile_cells() + 1) * static_cast<int64_t>(sizeof(Count)), stream,
                            plan, outputs, cells);
}

}  // namespace

cudaError_t launch_count_tiles(const VoxelReduction& call, const TilePlan& plan, cudaStream_t stream) {
  const Outputs outputs(call);
  const bool only_occupancy = outputs[VoxelMode::kOccupancy] && call.output_count == 1;
  return only_occupancy ? launch<uint8_t>(plan, outputs, call.cells, stream)
                        : launch<uint32_t>(plan, outputs, call.cells, stream);
}

}  // namespace robocache::voxels_cuda
