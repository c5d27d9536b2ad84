// Finds the voxels and numbers them in the order of their first rows.
//
//   clear             empties the table
//   insert            finds or claims the slot of each row's voxel; a slot keeps its least row
//   count_first_rows  counts the rows that are the first of their voxel, chunk by chunk
//   number            gives those rows their numbers: the first rows in earlier chunks, plus those earlier in the chunk
//   limit             with max_voxels of several clouds: finds how many voxels of each cloud remain
//   count_points      runs if the largest count is requested
//
// The slot of a voxel depends on which rows run first, but no result does: rows remember their slot, and the slot's row
// is a minimum.
#include <algorithm>
#include <cub/block/block_scan.cuh>

#include "robocache/points/voxelize_sparse/sparse_cuda.cuh"

namespace robocache::sparse_cuda {

Numbering numbering_of(const SparseCall& call, int64_t* bytes) {
  Numbering n{};
  n.rows = row_count(call.clouds);
  double cells = call.bounded ? static_cast<double>(call.clouds.count) : static_cast<double>(UINT64_MAX);
  for (int axis = 0; axis < 3 && call.bounded; ++axis) cells *= static_cast<double>(call.grid.shape[axis]);
  n.tag_is_cell = cells < static_cast<double>(UINT32_MAX);
  n.most = cells < static_cast<double>(n.rows) ? static_cast<int64_t>(cells) : n.rows;
  for (n.slots = 1024; n.slots < 2 * n.most;) n.slots *= 2;
  const int64_t tiles = (n.rows + kTile - 1) / kTile;
  const int64_t tiles_a_chunk = std::max<int64_t>(1, (tiles + kMostChunks - 1) / kMostChunks);
  n.chunk = tiles_a_chunk * kTile;
  n.chunks = static_cast<unsigned>((tiles + tiles_a_chunk - 1) / tiles_a_chunk);

  const bool limited = call.max_voxels != kUnlimited && call.clouds.count > 1;
  WorkspaceParts parts(call.numbering);
  parts.take(n.sizes, 1);
  parts.take(n.table, n.slots);
  parts.take(n.slot_of_row, n.rows);
  parts.take(n.first_row, n.most);
  parts.take(n.chunk_inserted, kMostChunks);
  parts.take(n.offsets, call.clouds.count + 1, call.clouds.offsets != nullptr);
  parts.take(n.inserted_before, n.rows, limited);
  parts.take(n.cloud_inserted, call.clouds.count + 1, limited);
  parts.take(n.cloud_voxels, call.clouds.count + 1, limited);
  parts.take(n.counts, n.most, call.largest_count);
  if (bytes != nullptr) *bytes = parts.bytes();
  return n;
}

namespace {

struct Larger {
  __device__ int64_t operator()(int64_t a, int64_t b) const { return a < b ? b : a; }
};

__global__ void __launch_bounds__(kThreads)
    clear(const __grid_constant__ SparseCall call, const __grid_constant__ Numbering n) {
  wait_for_work_before();
  const int64_t step = int64_t{gridDim.x} * kThreads;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (int64_t i = thread; i < n.slots / 2; i += step) {
    reinterpret_cast<ulonglong2*>(n.table)[i] = {kFreeSlot, kFreeSlot};
  }
  if (n.counts != nullptr) {
    for (int64_t i = thread; i < n.most; i += step) n.counts[i] = 0;
  }
  if (blockIdx.x != 0) return;
  if (threadIdx.x == 0) *n.sizes = {};
  if (n.offsets == nullptr) return;
  using Scan = cub::BlockScan<int64_t, kThreads>;
  __shared__ Scan::TempStorage storage;
  int64_t greatest_before = 0;  // the greatest offset until now
  for (int64_t base = 0; base <= call.clouds.count; base += kThreads) {
    const int64_t b = base + threadIdx.x;
    int64_t offset = b <= call.clouds.count ? length_at(call.clouds.offsets, call.clouds.offsets_dtype, b, 0) : 0;
    offset = offset < greatest_before ? greatest_before : offset > n.rows ? n.rows : offset;
    int64_t greatest = 0;
    Scan(storage).InclusiveScan(offset, offset, Larger{}, greatest);
    if (b <= call.clouds.count) n.offsets[b] = offset;
    greatest_before = greatest;
    __syncthreads();
  }
}

// A slot is claimed once, and all rows that it ever holds belong to one voxel. So any row read from the slot shows
// whether it belongs to this cell.
__device__ uint32_t find_or_claim(const SparseCall& call, const Numbering& n, const SparseCell& cell, uint32_t row) {
  const uint64_t hash = hash_of(cell);
  uint32_t tag = static_cast<uint32_t>(hash >> 32);
  if (n.tag_is_cell) {
    const auto* shape = call.grid.shape;
    tag = static_cast<uint32_t>(((cell.cloud * shape[0] + cell.x) * shape[1] + cell.y) * shape[2] + cell.z);
  }
  const Word claim = static_cast<Word>(tag) << 32 | row;
  const auto mask = static_cast<uint32_t>(n.slots - 1);
  for (uint32_t slot = static_cast<uint32_t>(hash) & mask;; slot = (slot + 1) & mask) {
    Word word = *static_cast<const volatile Word*>(n.table + slot);
    if (word == kFreeSlot) {
      word = atomicCAS(n.table + slot, kFreeSlot, claim);
      if (word == kFreeSlot) return slot;
    }
    if (static_cast<uint32_t>(word >> 32) != tag) continue;
    if (!n.tag_is_cell) {
      SparseCell other;
      if (!cloud_of_row(call, n, row_of_slot(word), other.cloud)) continue;
      if (!cell_of_row(call, row_of_slot(word), other)) continue;
      if (!same_cell(call, other, row_of_slot(word), cell, row)) continue;
    }
    // The tags are equal, so the smaller word has the smaller row.
    if (row < row_of_slot(word)) atomicMin(n.table + slot, claim);
    return slot;
  }
}

__global__ void __launch_bounds__(kThreads)
    insert(const __grid_constant__ SparseCall call, const __grid_constant__ Numbering n) {
  wait_for_work_before();
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= n.rows) return;
  SparseCell cell;
  uint32_t slot = kNoSlot;
  if (cloud_of_row(call, n, row, cell.cloud)) {
    int64_t wide_coordinates[3];
    if (cell_of_row(call, row, cell)) {
      slot = find_or_claim(call, n, cell, static_cast<uint32_t>(row));
    } else if (!call.bounded && !call.wide && wide_cell_of_row(call, row, wide_coordinates)) {
      n.sizes->sizes.beyond = true;  // every thread writes the same value
    }
  }
  n.slot_of_row[row] = slot;
}

// Reads only the row of a slot, because `number` writes the other half at the same time.
__device__ bool is_first_row(const Numbering& n, int64_t row) {
  if (row >= n.rows) return false;
  const uint32_t slot = n.slot_of_row[row];
  return slot != kNoSlot && reinterpret_cast<const uint32_t*>(n.table + slot)[0] == row;
}

__global__ void __launch_bounds__(kTile) count_first_rows(const __grid_constant__ Numbering n) {
  wait_for_work_before();
  const int64_t begin = blockIdx.x * n.chunk;
  uint32_t inserted = 0;
  for (int64_t tile = begin; tile < begin + n.chunk; tile += kTile) {
    inserted += static_cast<uint32_t>(__syncthreads_count(is_first_row(n, tile + threadIdx.x)));
  }
  if (threadIdx.x == 0) n.chunk_inserted[blockIdx.x] = inserted;
}

__global__ void __launch_bounds__(kTile) number(const __grid_constant__ Numbering n, int64_t max_voxels) {
  wait_for_work_before();
  using Scan = cub::BlockScan<uint32_t, kTile, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ Scan::TempStorage storage;
  static_assert(kMostChunks <= kTile);
  uint32_t inserted_before = 0;  // voxels inserted in earlier chunks
  uint32_t ignored = 0;
  Scan(storage).ExclusiveSum(threadIdx.x < blockIdx.x ? n.chunk_inserted[threadIdx.x] : 0, ignored, inserted_before);
  const int64_t begin = blockIdx.x * n.chunk;
  for (int64_t tile = begin; tile < begin + n.chunk; tile += kTile) {
    const int64_t row = tile + threadIdx.x;
    const bool is_first = is_first_row(n, row);
    uint32_t insertion = 0;
    uint32_t inserted = 0;
    __syncthreads();  // the storage is used again
    Scan(storage).ExclusiveSum(is_first ? 1u : 0u, insertion, inserted);
    insertion += inserted_before;
    inserted_before += inserted;
    if (is_first) {
      n.first_row[insertion] = static_cast<int32_t>(row);
      reinterpret_cast<uint32_t*>(n.table + n.slot_of_row[row])[1] = insertion;
    }
    if (n.inserted_before != nullptr && row < n.rows) n.inserted_before[row] = static_cast<int32_t>(insertion);
  }
  if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) {
    n.sizes->inserted = inserted_before;
    if (n.cloud_inserted == nullptr)
      n.sizes->sizes.voxels = inserted_before < max_voxels ? inserted_before : max_voxels;
  }
}

__global__ void __launch_bounds__(kThreads)
    limit(const __grid_constant__ SparseCall call, const __grid_constant__ Numbering n) {
  wait_for_work_before();
  using Scan = cub::BlockScan<int64_t, kThreads>;
  __shared__ Scan::TempStorage storage;
  const auto inserted_before_cloud = [&](int64_t b) {
    const int64_t row = n.offsets != nullptr ? n.offsets[b] : b * call.clouds.rows;
    return row < n.rows ? static_cast<int64_t>(n.inserted_before[row]) : n.sizes->inserted;
  };
  int64_t voxels = 0;  // voxels of earlier clouds
  for (int64_t base = 0; base <= call.clouds.count; base += kThreads) {
    const int64_t b = base + threadIdx.x;
    int64_t inserted = 0;
    int64_t cloud_voxels = 0;
    if (b <= call.clouds.count) inserted = inserted_before_cloud(b);
    if (b < call.clouds.count) {
      cloud_voxels = inserted_before_cloud(b + 1) - inserted;
      if (cloud_voxels > call.max_voxels) cloud_voxels = call.max_voxels;
    }
    int64_t voxels_before = 0;
    int64_t group_voxels = 0;
    Scan(storage).ExclusiveSum(cloud_voxels, voxels_before, group_voxels);
    if (b <= call.clouds.count) {
      n.cloud_inserted[b] = inserted;
      n.cloud_voxels[b] = voxels + voxels_before;
    }
    voxels += group_voxels;
    __syncthreads();
  }
  if (threadIdx.x == 0) n.sizes->sizes.voxels = voxels;
}

__global__ void __launch_bounds__(kThreads)
    count_points(const __grid_constant__ SparseCall call, const __grid_constant__ Numbering n) {
  wait_for_work_before();
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= n.rows || n.slot_of_row[row] == kNoSlot) return;
  const uint32_t insertion = insertion_of_slot(n.table[n.slot_of_row[row]]);
  int32_t cloud = 0;
  cloud_of_row(call, n, row, cloud);
  if (voxel_of_insertion(call, n, insertion, cloud) < 0) return;
  const Word count = static_cast<Word>(atomicAdd(n.counts + insertion, 1)) + 1;
  auto* const largest = reinterpret_cast<Word*>(&n.sizes->sizes.largest_count);
  // the largest count never decreases
  if (count > *static_cast<const volatile Word*>(largest)) atomicMax(largest, count);
}

cudaError_t launch(const SparseCall& call, const Numbering& n, cudaStream_t stream) {
  cudaError_t code = launch_overlapped(clear, blocks_for(n.slots / 2, kThreads, 4096), kThreads, 0, stream, call, n);
  if (code != cudaSuccess) return code;
  if (n.rows > 0) {
    code = launch_overlapped(insert, blocks_for(n.rows, kThreads), kThreads, 0, stream, call, n);
    if (code == cudaSuccess) code = launch_overlapped(count_first_rows, n.chunks, kTile, 0, stream, n);
    if (code == cudaSuccess) code = launch_overlapped(number, n.chunks, kTile, 0, stream, n, call.max_voxels);
    if (code != cudaSuccess) return code;
  }
  if (n.cloud_inserted != nullptr) code = launch_overlapped(limit, 1, kThreads, 0, stream, call, n);
  if (code == cudaSuccess && n.counts != nullptr && n.rows > 0) {
    code = launch_overlapped(count_points, blocks_for(n.rows, kThreads), kThreads, 0, stream, call, n);
  }
  return code;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int64_t robocache_cuda_numbering_bytes(const SparseCall* call) {
  int64_t bytes = 0;
  numbering_of(*call, &bytes);
  return bytes;
}

extern "C" __attribute__((visibility("default"))) int robocache_cuda_number_voxels(const SparseCall* call,
                                                                                   SparseSizes* sizes, int32_t device,
                                                                                   void* stream_handle) {
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  const Numbering n = numbering_of(*call, nullptr);
  cudaError_t code = launch(*call, n, stream);
  if (code != cudaSuccess || sizes == nullptr) return code;
  code = cudaMemcpyAsync(sizes, &n.sizes->sizes, sizeof(*sizes), cudaMemcpyDeviceToHost, stream);
  return code != cudaSuccess ? code : cudaStreamSynchronize(stream);
}

}  // namespace robocache::sparse_cuda
