#include "robocache/points/voxels/cuda/tiles_cuda.cuh"

#include <algorithm>
#include <bit>

#include "robocache/core/workspace_parts.hpp"
#include "robocache/points/voxels/cuda/chunk_sums_cuda.cuh"
#include "robocache/points/voxels/cuda/tile_plan_cuda.cuh"
#include "robocache/points/voxels/reduce_way.hpp"

namespace robocache::voxels_cuda {
namespace {

constexpr int kMostTileBits = 12;

Tiling tiling_for(int64_t cells, bool has_features, bool has_few_rows) {
  const int64_t lines = (cells + kLineCells - 1) / kLineCells;
  Tiling tiling{};
  tiling.line_bits = std::max<int>(1, static_cast<int>(std::bit_width(static_cast<uint64_t>(lines - 1))));
  // With features, shared memory also holds a tile's rows, so tiles are small. Without features, tiles are as large as
  // shared memory allows, but there are enough for all multiprocessors.
  const int wanted_row_bits = has_features ? 6 : 10;
  const int most_tile_bits = std::min(tiling.line_bits - 1, kMostTileBits);  // at least two lines per tile
  const int least_tile_bits = std::min(has_few_rows ? 7 : 8, most_tile_bits);
  const int tile_bits = std::clamp(tiling.line_bits - wanted_row_bits, least_tile_bits, most_tile_bits);
  tiling.row_bits = tiling.line_bits - tile_bits;
  constexpr uint32_t kOdd = 0x9e3779b1u;  // 2^32 over the golden ratio; it sends neighbouring lines to distant tiles
  tiling.multiplier = kOdd << (32 - tiling.line_bits);
  tiling.inverse = kOdd;  // of kOdd modulo 2^32, by Newton's method: each step doubles the correct bits
  for (int i = 0; i < 5; ++i) tiling.inverse *= 2 - kOdd * tiling.inverse;
  return tiling;
}

struct Plans {
  TilePlan tiles;
  ChunkSums chunks;
  int64_t bytes;  // bytes of the workspace
};

Plans plan_for(const VoxelReduction& call, int device) {
  Plans plans{};
  TilePlan& plan = plans.tiles;
  plan.rows = row_count(call.clouds);
  plan.has_features = any_output(call, takes_features);
  plan.has_few_rows = plan.rows <= kFewRows;
  plan.tiling = tiling_for(call.cells, plan.has_features, plan.has_few_rows);
  plan.chunk_rows = rows_of_chunk(plan);
  plan.chunks = static_cast<int>((plan.rows + plan.chunk_rows - 1) / plan.chunk_rows);
  plan.capacity = (plan.chunk_rows + 3 * plan.tiling.tiles() + 7) / 8 * 8;
  plan.listed = 12288;
  plan.aligned = outputs_aligned(call);
  const int64_t crowded = plan.rows / kCrowd;
  const int64_t merged = plan.rows / kPiece;
  WorkspaceParts parts(call.workspace);
  parts.take(plan.keys, int64_t{plan.chunks} * plan.capacity * (plan.has_features ? 4 : 2));
  parts.take(plan.table, int64_t{plan.chunks} * plan.tiling.tiles());
  parts.take(plan.filled, 1);
  parts.take(plan.sorted, plan.rows, plan.has_features);
  parts.take(plan.crowded, crowded, plan.has_features);
  parts.take(plan.crowded_of_piece, crowded + merged, plan.has_features);
  parts.take(plan.crowded_of_merged, merged, plan.has_features);
  parts.take(plan.merged, merged * call.features.count, plan.has_features);
  if (may_sum_by_chunks(call, device)) {
    plans.chunks = chunk_sums_for(call, parts);
    if (has_fast_sums(call, plan)) plan.scan_order = plans.chunks.scan_order;
  }
  plans.bytes = parts.bytes();
  return plans;
}

}  // namespace

int64_t most_shared_bytes(int device) {
  constexpr int kDeclared = 1024;  // the kernels' own variables take less
  return std::max(0, device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device) - kDeclared);
}

bool outputs_aligned(const VoxelReduction& call) {
  return std::all_of(call.outputs, call.outputs + call.output_count,
                     [](const VoxelOutput& output) { return reinterpret_cast<uintptr_t>(output.data) % 16 == 0; });
}

bool goes_by_tiles(const VoxelReduction& call, int device) {
  if (!suits_tiles(call)) return false;
  const TilePlan plan = plan_for(call, device).tiles;
  // Indices have 13 bits, or 15 if the call only counts. With more cells, a tile would need more memory than a block
  // has.
  return plan.tiling.index_bits() <= (plan.has_features ? kMostIndexBits : 15) &&
         std::max(plan.bytes_to_partition(), plan.bytes_of_tile()) <= most_shared_bytes(device);
}

int64_t tiles_workspace_bytes(const VoxelReduction& call, int device) { return plan_for(call, device).bytes; }

cudaError_t reduce_by_tiles(const VoxelReduction& call, int device, cudaStream_t stream) {
  const Plans plans = plan_for(call, device);
  const TilePlan& plan = plans.tiles;
  cudaError_t code = plan.scan_order ? launch_chunk_sums(call, plans.chunks, plan, device, stream) : cudaSuccess;
  if (code == cudaSuccess) code = launch_partition_rows(call, plan, stream);
  if (code != cudaSuccess) return code;
  if (!plan.has_features) return launch_count_tiles(call, plan, stream);
  code = launch_reduce_tiles(call, plan, stream);
  return code != cudaSuccess ? code : launch_reduce_crowded(call, plan, device, stream);
}

}  // namespace robocache::voxels_cuda
