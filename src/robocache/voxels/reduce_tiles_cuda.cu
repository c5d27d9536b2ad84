#include "robocache/voxels/cell_features_cuda.cuh"
#include "robocache/voxels/tile_records_cuda.cuh"

namespace robocache {
namespace {

constexpr int kFeatureThreads = 512;

// By one thread.
__device__ void announce_crowded(const VoxelReduction& call, const TilePlan& plan, CrowdedCell cell) {
  const uint32_t segments = (cell.points + kSegment - 1) / kSegment;
  const Word before = atomicAdd(plan.crowds, Word{1} << 32 | segments);
  const auto crowded = static_cast<uint32_t>(before >> 32);
  cell.first_segment = static_cast<uint32_t>(before);
  if (segments > 1) {
    cell.merged = static_cast<uint32_t>(atomicAdd(plan.merges, Word{1}));
    Merged* const merged = plan.merged + cell.merged * call.features.count;
    for (int64_t f = 0; f < call.features.count; ++f) merged[f].clear();
  }
  plan.crowded[crowded] = cell;
  for (uint32_t i = 0; i < segments; ++i) plan.crowded_of_segment[cell.first_segment + i] = crowded;
}

// Sorts a tile's rows by cell, then takes the cells one by one.
template <class T>
__global__ void __launch_bounds__(kFeatureThreads, 2)
    reduce_tiles(const __grid_constant__ VoxelReduction call, const __grid_constant__ TilePlan plan,
                 const __grid_constant__ Outputs outputs, const __grid_constant__ Wanted wanted, Group group) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int size = plan.tiling.tile_cells();
  uint32_t* const ends =
      reinterpret_cast<uint32_t*>(memory);  // [size] counts, then starts, then ends of cells in `rows`
  uint32_t* const listed = ends + size;
  uint32_t* const entries = listed + plan.listed;
  __shared__ uint32_t warp_sums[32];
  __shared__ Word reserved;
  __shared__ bool crowds;
  __shared__ uint32_t tile_rows;
  for (int i = threadIdx.x; i < size; i += kFeatureThreads) ends[i] = 0;
  if (threadIdx.x == 0) {
    crowds = false;
  }
  wait_for_work_before();
  load_entries<kFeatureThreads>(plan, entries);
  for_each_record<uint32_t, kFeatureThreads, 4, 4, true>(plan, entries, [&](uint32_t record, int) {
    if ((record & 0xffff) != kNoPlace) atomicAdd(&ends[record & 0xffff], 1u);
  });
  __syncthreads();
  {
    const int per_thread = (size + kFeatureThreads - 1) / kFeatureThreads;
    const int begin = threadIdx.x * per_thread;
    const int end = min(size, begin + per_thread);
    uint32_t sum = 0;
    for (int i = begin; i < end; ++i) sum += ends[i];
    uint32_t start = sum_before<kFeatureThreads>(sum, warp_sums);
    for (int i = begin; i < end; ++i) {
      const uint32_t count = ends[i];
      ends[i] = start;
      start += count;
      if (count >= kCrowd) crowds = true;
    }
    if (threadIdx.x == kFeatureThreads - 1) tile_rows = start;
  }
  __syncthreads();
  const bool in_global_memory = crowds || tile_rows > static_cast<uint32_t>(plan.listed);
  if (threadIdx.x == 0 && in_global_memory) reserved = atomicAdd(plan.taken, Word{tile_rows});
  __syncthreads();
  uint32_t* const rows = in_global_memory ? plan.sorted + reserved : listed;
  for_each_record<uint32_t, kFeatureThreads, 4, 4, true>(plan, entries, [&](uint32_t record, int chunk) {
    if ((record & 0xffff) == kNoPlace) return;
    rows[atomicAdd(&ends[record & 0xffff], 1u)] = static_cast<uint32_t>(chunk) * plan.chunk + (record >> 16);
  });
  __syncthreads();

  int32_t* const counts = outputs.as<int32_t>(VoxelMode::kCount);
  bool* const occupancy = outputs.as<bool>(VoxelMode::kOccupancy);
  uint32_t* const bits = outputs.as<uint32_t>(VoxelMode::kOccupancyBits);
  const auto start_of = [&](int place) { return place ? ends[place - 1] : 0; };
  const auto cell_at = [&](int place) {
    return plan.tiling.line_start((blockIdx.x << plan.tiling.row_bits) + place / kLineCells) + place % kLineCells;
  };
  if (counts || occupancy || bits) {
    for (int place = threadIdx.x; place < size; place += kFeatureThreads) {
      const uint32_t points = ends[place] - start_of(place);
      const uint32_t word = __ballot_sync(~0u, points != 0);
      const int64_t cell = cell_at(place);
      if (cell >= call.cells) continue;
      if (counts) counts[cell] = static_cast<int32_t>(points);
      if (occupancy) occupancy[cell] = points != 0;
      if (bits && place % kLineCells == 0) bits[cell / kLineCells] = word;
    }
  }
  for (int place = group.of_block(); place < size; place += group.per(kFeatureThreads)) {
    const int64_t cell = cell_at(place);
    if (cell >= call.cells) continue;
    const uint32_t start = start_of(place);
    const uint32_t points = ends[place] - start;
    if (points < kCrowd) {
      reduce_cell<T, Team::kGroup>(call, outputs, wanted, {rows + start, points, 0, 1}, cell, group);
    } else if (group.lane() == 0) {
      announce_crowded(call, plan,
                       {static_cast<uint32_t>(cell), static_cast<uint32_t>(reserved) + start, points, 0, 0});
    }
  }
}

}  // namespace

cudaError_t launch_reduce_tiles(const VoxelReduction& call, const TilePlan& plan, cudaStream_t stream) {
  const Outputs outputs(call);
  return with_feature_type(call.features.dtype, [&](auto type) {
    return launch_tile_kernel(reduce_tiles<decltype(type)>, plan.tiling.tiles(), kFeatureThreads, plan.bytes_of_tile(),
                              stream, call, plan, outputs, wanted_of(call, outputs), group_of(call));
  });
}

}  // namespace robocache
