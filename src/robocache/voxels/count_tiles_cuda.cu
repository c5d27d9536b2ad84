#include "robocache/voxels/tile_records_cuda.cuh"

namespace robocache {
namespace {

constexpr int kCountThreads = 1024;

// Counts are kept as 16 bits, two to a word, while the tile has too few rows to overflow them; else as 32 bits, one half
// of the tile after the other.
template <int kLanes>
__global__ void __launch_bounds__(kCountThreads, 2)
    count_tiles(const __grid_constant__ TilePlan plan, const __grid_constant__ Outputs outputs, int64_t cells) {
  extern __shared__ __align__(16) unsigned char memory[];
  uint32_t* const words = reinterpret_cast<uint32_t*>(memory);
  const int size = plan.tiling.tile_cells();
  uint32_t* const entries = words + size / 2;
  __shared__ uint32_t warp_sums[32];
  const auto clear = [&] {
    for (int i = threadIdx.x; i < size / 8; i += kCountThreads)
      reinterpret_cast<uint4*>(words)[i] = make_uint4(0, 0, 0, 0);
  };
  let_work_after_begin();
  clear();
  wait_for_work_before();
  const bool wide = load_entries<kCountThreads>(plan, entries, warp_sums) > 0xffff;
  int32_t* const counts = outputs.as<int32_t>(VoxelMode::kCount);
  bool* const occupancy = outputs.as<bool>(VoxelMode::kOccupancy);
  uint32_t* const bits = outputs.as<uint32_t>(VoxelMode::kOccupancyBits);
  for (int half = 0; half <= static_cast<int>(wide); ++half) {
    for_each_record<uint16_t, kCountThreads, kLanes, 4, false>(plan, entries, [&](uint32_t place, int) {
      if (place == kNoPlace) return;
      if (!wide) {
        atomicAdd(&words[place / 2], place % 2 ? 0x10000u : 1u);
      } else if (static_cast<int>(place >= size / 2) == half) {
        atomicAdd(&words[place % (size / 2)], 1u);
      }
    });
    __syncthreads();
    const auto count_at = [&](int i) { return wide ? words[i] : words[i / 2] >> (i % 2 * 16) & 0xffffu; };
    const int held = wide ? size / 2 : size;
    for (int i = threadIdx.x * 4; i < held; i += kCountThreads * 4) {
      const int place = half * held + i;
      const int64_t cell =
          plan.tiling.line_start((blockIdx.x << plan.tiling.row_bits) + place / kLineCells) + place % kLineCells;
      const uint32_t four[4] = {count_at(i), count_at(i + 1), count_at(i + 2), count_at(i + 3)};
      if (plan.whole && cell + 4 <= cells) {
        if (counts) reinterpret_cast<uint4*>(counts)[cell / 4] = make_uint4(four[0], four[1], four[2], four[3]);
        if (occupancy) {
          reinterpret_cast<uchar4*>(occupancy)[cell / 4] =
              make_uchar4(four[0] != 0, four[1] != 0, four[2] != 0, four[3] != 0);
        }
      } else {
        for (int k = 0; k < 4 && cell + k < cells; ++k) {
          if (counts) counts[cell + k] = static_cast<int32_t>(four[k]);
          if (occupancy) occupancy[cell + k] = four[k] != 0;
        }
      }
    }
    if (bits) {
      for (int i = threadIdx.x; i < held; i += kCountThreads) {
        const uint32_t word = __ballot_sync(~0u, count_at(i) != 0);
        const int64_t cell =
            plan.tiling.line_start((blockIdx.x << plan.tiling.row_bits) + (half * held + i) / kLineCells);
        if (i % kLineCells == 0 && cell < cells) bits[cell / kLineCells] = word;
      }
    }
    if (wide && half == 0) {
      __syncthreads();
      clear();
      __syncthreads();
    }
  }
}

}  // namespace

cudaError_t launch_count_tiles(const VoxelReduction& call, const TilePlan& plan, cudaStream_t stream) {
  const bool few = plan.rows_per_thread == 4;
  return launch_tile_kernel(few ? count_tiles<4> : count_tiles<8>, plan.tiling.tiles(), kCountThreads,
                            plan.bytes_of_tile(), stream, plan, Outputs(call), call.cells);
}

}  // namespace robocache
