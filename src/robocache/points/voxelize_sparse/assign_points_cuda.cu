// Finds the voxel of each row and the rows of each voxel.
//
//   key, sort          put the voxels in the requested order, unless that is the order of insertion
//   describe           writes coords, and starts each voxel's list of rows with its first row
//   assign             writes the voxel of each row; adds the row to the voxel's list, or compares its priority
//   choose             reads from the lists which rows are kept, or takes the row with the least priority
//
// Long lists would be slow, so their rows are sorted by voxel instead.
#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "robocache/points/voxelize_sparse/sparse_cuda.cuh"

namespace robocache::sparse_cuda {
namespace {

constexpr int64_t kLongList = 32;
using WideKey = unsigned __int128;

struct Assignment {
  int64_t most_voxels;  // the most voxels that can be found and fit in the arrays
  int key_bits;         // bits of the order's keys; 0 for the order of insertion
  bool wide;            // whether keys have more than 64 bits
  bool listed;          // whether assign lists the rows
  bool sorted;          // whether rows are sorted by voxel
  Word* keys[2];        // [voxels]
  WideKey* wide_keys[2];
  int32_t* insertions[2];       // [voxels] indices in the order of insertion; the second array has them in the
                                // requested order
  int32_t* voxel_of_insertion;  // [voxels] the voxel with each index in the order of insertion
  uint32_t* list;               // [voxels, P] rows; the rest is kNoRow
  Word* least;                  // [voxels] the least priority of the voxel's rows
  uint32_t* row_voxels[2];      // [rows]
  int32_t* rows[2];
  int32_t* start;  // [voxels] index of the voxel's first row among the sorted rows
  char* sort_memory;
  size_t sort_bytes;
};

int bits_for(uint64_t value) { return std::max(1, static_cast<int>(std::bit_width(value))); }

// Sets the bits of the widest key. A key whose bits are all 1 is greater than any voxel's key.
void set_key_bits(const SparseCall& call, Assignment& p) {
  const int64_t* const shape = call.grid.shape;
  if (call.order == VoxelOrder::kFirst) return;
  const int cloud_bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(call.clouds.count)));
  if (call.bounded && call.order == VoxelOrder::kLinear) {
    const double cells = static_cast<double>(call.clouds.count) * static_cast<double>(shape[0]) *
                         static_cast<double>(shape[1]) * static_cast<double>(shape[2]);
    if (cells < 0x1p62) {
      p.key_bits = bits_for(static_cast<uint64_t>(call.clouds.count * shape[0] * shape[1] * shape[2]) + 1);
      return;
    }
  }
  if (call.bounded && call.order == VoxelOrder::kMorton) {
    const auto longest = static_cast<uint64_t>(std::max({shape[0], shape[1], shape[2]}));
    const int axis_bits = bits_for(longest);
    if (axis_bits <= 21 && 3 * axis_bits + cloud_bits <= 63) {
      p.key_bits = 3 * axis_bits + cloud_bits;
      return;
    }
  }
  p.wide = true;
  p.key_bits = 97 + cloud_bits;  // above the low 64 bits: 33 bits of a Morton code, or the 32 bits of x
}

cudaError_t sort_voxels(const Assignment& p, void* memory, size_t& bytes, cudaStream_t stream) {
  const auto sort = [&](auto* const* keys) {
    return cub::DeviceRadixSort::SortPairs(memory, bytes, keys[0], keys[1], p.insertions[0], p.insertions[1],
                                           p.most_voxels, 0, p.key_bits, stream);
  };
  return p.wide ? sort(p.wide_keys) : sort(p.keys);
}

cudaError_t sort_rows(const SparseCall& call, const Numbering& n, const Assignment& p, void* memory, size_t& bytes,
                      cudaStream_t stream) {
  return cub::DeviceRadixSort::SortPairs(memory, bytes, p.row_voxels[0], p.row_voxels[1], p.rows[0], p.rows[1], n.rows,
                                         0, bits_for(static_cast<uint64_t>(call.voxels)), stream);
}

cudaError_t assignment_of(const SparseCall& call, const Numbering& n, Assignment& p, int64_t& bytes) {
  p = {};
  p.most_voxels = std::min(call.voxels, n.most);
  set_key_bits(call, p);
  const bool is_ordered = p.key_bits > 0 && p.most_voxels > 0;
  if (!is_ordered) p.key_bits = 0;
  const bool limits_rows = !call.random && call.points_per_voxel != kUnlimited && n.rows > 0;
  p.sorted = limits_rows && call.points_per_voxel > kLongList;
  p.listed = limits_rows && !p.sorted;
  if (is_ordered) {
    size_t needed = 0;
    if (const cudaError_t code = sort_voxels(p, nullptr, needed, nullptr); code != cudaSuccess) return code;
    p.sort_bytes = needed;
  }
  if (p.sorted) {
    size_t needed = 0;
    if (const cudaError_t code = sort_rows(call, n, p, nullptr, needed, nullptr); code != cudaSuccess) return code;
    p.sort_bytes = std::max(p.sort_bytes, needed);
  }
  WorkspaceParts parts(call.workspace);
  for (int i = 0; i < 2; ++i) {
    parts.take(p.keys[i], p.most_voxels, is_ordered && !p.wide);
    parts.take(p.wide_keys[i], p.most_voxels, is_ordered && p.wide);
    parts.take(p.insertions[i], p.most_voxels, is_ordered);
    parts.take(p.row_voxels[i], n.rows, p.sorted);
    parts.take(p.rows[i], n.rows, p.sorted);
  }
  parts.take(p.voxel_of_insertion, p.most_voxels, is_ordered);
  if (p.listed) {
    p.list = reinterpret_cast<uint32_t*>(call.rows_of_voxel);
    parts.take(p.list, call.voxels * call.points_per_voxel, p.list == nullptr);
  }
  parts.take(p.least, call.voxels, call.random);
  parts.take(p.start, call.voxels, p.sorted);
  parts.take(p.sort_memory, static_cast<int64_t>(p.sort_bytes), p.sort_bytes > 0);
  bytes = parts.bytes();
  return cudaSuccess;
}

// Returns the number of voxels in the call's arrays.
__device__ int64_t found_voxels(const SparseCall& call, const Numbering& n) {
  const int64_t voxels = n.sizes->sizes.voxels;
  return voxels < call.voxels ? voxels : call.voxels;
}

// Returns the first row of the voxel with index `insertion` in the order of insertion, and sets its cell.
__device__ int32_t first_row_of(const SparseCall& call, const Numbering& n, int64_t insertion, SparseCell& cell) {
  const int32_t row = n.first_row[insertion_of_voxel(call, n, insertion)];
  cloud_of_row(call, n, row, cell.cloud);
  cell_of_row(call, row, cell);
  return row;
}

__global__ void __launch_bounds__(kThreads)
    key(const __grid_constant__ SparseCall call, const __grid_constant__ Numbering n,
        const __grid_constant__ Assignment p) {
  wait_for_work_before();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.most_voxels) return;
  p.insertions[0][i] = static_cast<int32_t>(i);
  const bool is_found = i < found_voxels(call, n);
  SparseCell cell{};
  if (is_found) first_row_of(call, n, i, cell);
  if (p.wide) {
    const SparseKey wide = sort_key(call.order, cell);
    p.wide_keys[0][i] = is_found ? static_cast<WideKey>(wide.high) << 64 | wide.low : ~WideKey{0};
    return;
  }
  Word bits = ~Word{0};
  if (is_found && call.order == VoxelOrder::kLinear) {
    const auto* shape = call.grid.shape;
    bits = static_cast<Word>(((cell.cloud * shape[0] + cell.x) * shape[1] + cell.y) * shape[2] + cell.z);
  } else if (is_found) {
    const int code_bits = p.key_bits - static_cast<int>(64 - __clzll(static_cast<long long>(call.clouds.count)));
    bits = static_cast<Word>(cell.cloud) << code_bits | spread_bits(static_cast<uint64_t>(cell.x)) |
           spread_bits(static_cast<uint64_t>(cell.y)) << 1 | spread_bits(static_cast<uint64_t>(cell.z)) << 2;
  }
  p.keys[0][i] = bits;
}

__global__ void __launch_bounds__(kThreads)
    describe(const __grid_constant__ SparseCall call, const __grid_constant__ Numbering n,
             const __grid_constant__ Assignment p) {
  wait_for_work_before();
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  const int64_t voxel_count = found_voxels(call, n);
  const int64_t most = call.points_per_voxel;
  if (thread == 0 && call.num_voxels != nullptr) *call.num_voxels = n.sizes->sizes.voxels;
  if (call.dropped != nullptr) {
    for (int64_t b = thread; b < call.clouds.count; b += step) call.dropped[b] = 0;
  }
  for (int64_t voxel = thread; voxel < call.voxels; voxel += step) {
    SparseCell cell{-1, -1, -1, -1};
    int32_t row = -1;
    if (voxel < voxel_count) {
      int64_t insertion = voxel;
      if (p.key_bits > 0) {
        insertion = p.insertions[1][voxel];
        p.voxel_of_insertion[insertion] = static_cast<int32_t>(voxel);
      }
      row = first_row_of(call, n, insertion, cell);
    }
    write_coords(call, voxel, cell);
    if (p.list != nullptr) {
      uint32_t* const list = p.list + voxel * most;
      list[0] = static_cast<uint32_t>(row);
      for (int64_t entry = 1; entry < most; ++entry) list[entry] = kNoRow;
    }
    if (call.counts != nullptr) call.counts[voxel] = p.listed && row >= 0 ? 1 : 0;
    if (p.least != nullptr) p.least[voxel] = ~Word{0};
  }
  if (p.list != nullptr || call.rows_of_voxel == nullptr || call.random) return;
  for (int64_t i = thread; i < call.voxels * most; i += step) call.rows_of_voxel[i] = -1;
}

// Inserts a row into a voxel's ascending list of its P least rows. The list begins with the voxel's first row.
//
// Each entry keeps the least row offered to it. It offers every other row to the next entry, so no row is lost before
// the end of the list. By induction, the k-th least row never moves past entry k: an entry passes it on only for a
// lesser row, and the i-th least row, for i < k, never moves past entry i. So the P least rows end in their own
// entries. A row may skip an entry that showed a lesser row, because an entry's row only decreases.
__device__ void put_into_list(uint32_t* list, int64_t most, uint32_t row, int32_t* count) {
  const auto read_entry = [&](int64_t entry) { return *static_cast<const volatile uint32_t*>(list + entry); };
  if (most == 1 || read_entry(most - 1) < row) return;
  int64_t entry = 1;
  while (entry < most - 1 && read_entry(entry) < row) ++entry;
  for (; entry < most; ++entry) {
    const uint32_t old_row = atomicMin(list + entry, row);
    if (old_row == kNoRow) {  // once per entry
      if (count != nullptr) atomicAdd(count, 1);
      return;
    }
    if (old_row > row) row = old_row;
  }
}

__global__ void __launch_bounds__(kThreads)
    assign(const __grid_constant__ SparseCall call, const __grid_constant__ Numbering n,
           const __grid_constant__ Assignment p) {
  wait_for_work_before();
  __shared__ int32_t block_cloud;
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  int32_t cloud = 0;
  const bool is_point = row < n.rows && cloud_of_row(call, n, row, cloud);
  if (threadIdx.x == 0) block_cloud = cloud;
  int64_t voxel = -1;
  Word slot = kFreeSlot;
  if (is_point && n.slot_of_row[row] != kNoSlot) {
    slot = n.table[n.slot_of_row[row]];
    voxel = voxel_of_insertion(call, n, insertion_of_slot(slot), cloud);
    if (voxel >= found_voxels(call, n)) voxel = -1;
    if (voxel >= 0 && p.key_bits > 0) voxel = p.voxel_of_insertion[voxel];
  }
  if (row < n.rows) {
    call.point_to_voxel[row] = static_cast<int32_t>(voxel);
    if (p.sorted) {
      p.row_voxels[0][row] = static_cast<uint32_t>(voxel < 0 ? call.voxels : voxel);
      p.rows[0][row] = static_cast<int32_t>(row);
    }
  }
  if (voxel >= 0 && p.list != nullptr && row != row_of_slot(slot)) {
    const int64_t most = call.points_per_voxel;
    put_into_list(p.list + voxel * most, most, static_cast<uint32_t>(row),
                  call.counts != nullptr ? call.counts + voxel : nullptr);
  }
  if (voxel >= 0 && p.least != nullptr) {
    const Word priority = sample_priority(call.seed, row);
    if (priority < *static_cast<const volatile Word*>(p.least + voxel)) atomicMin(p.least + voxel, priority);
  }
  if (call.dropped == nullptr) return;
  __syncthreads();
  const bool is_dropped = is_point && voxel < 0;
  const bool is_in_block_cloud = is_dropped && cloud == block_cloud;
  if (is_dropped && !is_in_block_cloud) atomicAdd(reinterpret_cast<Word*>(call.dropped + cloud), Word{1});
  const int dropped = __syncthreads_count(is_in_block_cloud);
  if (threadIdx.x == 0 && dropped > 0) {
    atomicAdd(reinterpret_cast<Word*>(call.dropped + block_cloud), static_cast<Word>(dropped));
  }
}

// With lists, finds the rows that are in them. With priorities, finds the row with the least priority.
__global__ void __launch_bounds__(kThreads)
    choose(const __grid_constant__ SparseCall call, const __grid_constant__ Numbering n,
           const __grid_constant__ Assignment p) {
  wait_for_work_before();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (call.random) {
    if (i < call.voxels) call.rows_of_voxel[i] = static_cast<int32_t>(row_of_slot(p.least[i]));
  } else if (i < n.rows) {
    const int32_t voxel = call.point_to_voxel[i];
    const int64_t most = call.points_per_voxel;
    const bool kept = voxel >= 0 && static_cast<uint32_t>(i) <= p.list[voxel * most + most - 1];
    call.kept[i] = kept ? voxel : -1;
  }
}

__global__ void __launch_bounds__(kThreads)
    find_starts(const __grid_constant__ SparseCall call, const __grid_constant__ Numbering n,
                const __grid_constant__ Assignment p) {
  wait_for_work_before();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n.rows) return;
  const uint32_t voxel = p.row_voxels[1][i];
  if (voxel < call.voxels && (i == 0 || p.row_voxels[1][i - 1] != voxel)) p.start[voxel] = static_cast<int32_t>(i);
}

__global__ void __launch_bounds__(kThreads)
    choose_sorted(const __grid_constant__ SparseCall call, const __grid_constant__ Numbering n,
                  const __grid_constant__ Assignment p) {
  wait_for_work_before();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n.rows) return;
  const uint32_t voxel = p.row_voxels[1][i];
  const int32_t row = p.rows[1][i];
  const int64_t most = call.points_per_voxel;
  const int64_t entry = voxel < call.voxels ? i - p.start[voxel] : most;
  const bool kept = entry < most;
  if (call.kept != nullptr) call.kept[row] = kept ? static_cast<int32_t>(voxel) : -1;
  if (!kept) return;
  if (call.rows_of_voxel != nullptr) call.rows_of_voxel[voxel * most + entry] = row;
  const bool last = entry == most - 1 || i == n.rows - 1 || p.row_voxels[1][i + 1] != voxel;
  if (last && call.counts != nullptr) call.counts[voxel] = static_cast<int32_t>(entry + 1);
}

cudaError_t launch(const SparseCall& call, const Numbering& n, const Assignment& p, cudaStream_t stream) {
  cudaError_t code = cudaSuccess;
  size_t sort_bytes = p.sort_bytes;
  const auto queue = [&](auto* kernel, int64_t items) {
    if (code == cudaSuccess && items > 0) {
      code = launch_overlapped(kernel, blocks_for(items, kThreads), kThreads, 0, stream, call, n, p);
    }
  };
  if (p.key_bits > 0) {
    queue(key, p.most_voxels);
    if (code == cudaSuccess) code = sort_voxels(p, p.sort_memory, sort_bytes, stream);
  }
  const bool cleared = p.list == nullptr && call.rows_of_voxel != nullptr && !call.random;
  const int64_t entries = cleared ? call.voxels * call.points_per_voxel : call.voxels;
  queue(describe, std::clamp<int64_t>(std::max(entries, call.clouds.count), 1, int64_t{4096} * kThreads));
  queue(assign, n.rows);
  if (call.random) queue(choose, call.voxels);
  if (p.listed && call.kept != nullptr) queue(choose, n.rows);
  if (p.sorted) {
    sort_bytes = p.sort_bytes;
    if (code == cudaSuccess) code = sort_rows(call, n, p, p.sort_memory, sort_bytes, stream);
    queue(find_starts, n.rows);
    queue(choose_sorted, n.rows);
  }
  return code;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int robocache_cuda_assign_bytes(const SparseCall* call,
                                                                                  int64_t* bytes, int32_t device) {
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  Assignment p{};
  return assignment_of(*call, numbering_of(*call, nullptr), p, *bytes);
}

extern "C" __attribute__((visibility("default"))) int robocache_cuda_assign_points(const SparseCall* call,
                                                                                   int32_t device, void* stream) {
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  const Numbering n = numbering_of(*call, nullptr);
  Assignment p{};
  int64_t bytes = 0;
  const cudaError_t code = assignment_of(*call, n, p, bytes);
  return code != cudaSuccess ? code : launch(*call, n, p, static_cast<cudaStream_t>(stream));
}

}  // namespace robocache::sparse_cuda
