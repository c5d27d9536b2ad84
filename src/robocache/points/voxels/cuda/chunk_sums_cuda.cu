#include "robocache/points/voxels/cuda/chunk_sums_cuda.cuh"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "robocache/points/voxels/cuda/cell_fills_cuda.cuh"
#include "robocache/points/voxels/cuda/chunk_cuda.cuh"
#include "robocache/points/voxels/cuda/fast_sums_cuda.cuh"

namespace robocache::voxels_cuda {
namespace {

// ---- The decision between chunks and tiles ----

// Each block samples one chunk, and clears a part of the counts.
template <bool kFast>
__global__ void __launch_bounds__(kChunkThreads)
    sample_chunks(const __grid_constant__ VoxelReduction call, const __grid_constant__ ChunkSums plan,
                  const __grid_constant__ FastGrid grid) {
  constexpr int kBits = 16;
  __shared__ uint32_t seen[1 << (kBits - 5)];
  __shared__ ScanOrder::Sample sample;
  for (int i = threadIdx.x; i < 1 << (kBits - 5); i += kChunkThreads) seen[i] = 0;
  if (threadIdx.x == 0) sample = {};
  wait_for_work_before();
  __syncthreads();
  if (blockIdx.x < ScanOrder::kSamples) {
    const int64_t chunk = int64_t{blockIdx.x} * plan.chunks / ScanOrder::kSamples;
    const int64_t row = chunk * kChunkRows + threadIdx.x * 4;
    float points[12];
    if constexpr (kFast) load_points(call, row, plan.rows, points);
    uint32_t cells[4];
    cells_of_rows<kFast>(call, grid, row, plan.rows, points, cells);
    uint32_t rows = 0;
    uint32_t segments = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (cells[i] == kNoCell) continue;
      const uint32_t hash = hash_of(cells[i], kBits);
      const uint32_t bit = 1u << hash % 32;
      ++rows;
      segments += (atomicOr(&seen[hash / 32], bit) & bit) == 0;
    }
    rows = __reduce_add_sync(~0u, rows);
    segments = __reduce_add_sync(~0u, segments);
    if (threadIdx.x % 32 == 0) {
      atomicAdd(&sample.rows, rows);
      atomicAdd(&sample.segments, segments);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      plan.scan_order->samples[blockIdx.x] = sample;
      if (blockIdx.x == 0) {
        plan.scan_order->tiles_serve = 0;
        plan.scan_order->touched = 0;
      }
    }
  }
  const int64_t first = int64_t{blockIdx.x} * kChunkThreads + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * kChunkThreads;
  for (int64_t i = first; i < (call.cells + 3) / 4; i += step) {
    reinterpret_cast<uint4*>(plan.counts)[i] = make_uint4(0, 0, 0, 0);
  }
  for (int64_t i = first; i < call.clouds.count; i += step) plan.dropped[i] = 0;
}

// ---- Sums ----

// A given quantum needs one pass. The cells' own quanta need two passes: the first finds the largest magnitudes and
// sorts, the second adds.
enum class Pass { kAddGiven, kLook, kAddOwn };

__device__ uint32_t shared_address(const void* in_shared_memory) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(in_shared_memory));
}

__device__ void load_shared(uint32_t address, float& value) {
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address));
}
template <class T>
__device__ void load_shared(uint32_t address, T& value) {
  uint16_t bits;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(address));
  value = std::bit_cast<T>(bits);
}

// Atomic operations without a result, at base[entry]. nvcc would compile atomicAdd and atomicMax to slower operations
// with a result.
__device__ void add_at(Word* base, uint32_t entry, int64_t value) {
  asm volatile("{.reg .u64 at; mad.wide.u32 at, %1, 8, %0; red.relaxed.gpu.global.add.u64 [at], %2;}" ::"l"(base),
               "r"(entry), "l"(value)
               : "memory");
}
__device__ void raise_at(uint32_t* base, uint32_t entry, uint32_t value) {
  asm volatile("{.reg .u64 at; mad.wide.u32 at, %1, 4, %0; red.relaxed.gpu.global.max.u32 [at], %2;}" ::"l"(base),
               "r"(entry), "r"(value)
               : "memory");
}

// Returns the larger of `most` and |x|, or NaN if one is NaN.
__device__ float larger(float most, float x) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(most), "f"(fabsf(x)));
  return larger;
}

template <class T>
constexpr uint32_t kRowBytes = kSlabFeatures * sizeof(T);
template <class T>
constexpr uint32_t kSlabBytes = (kChunkRows + 1) * kRowBytes<T>;

// Starts copying the features of a chunk's rows, from `feature` on, to shared memory: 1 or 2 vectors per row, and a row
// of zeros after the last one.
template <class T>
__device__ void copy_slab(const VoxelReduction& call, int64_t first, int rows, int64_t feature, int vectors,
                          FeatureVector<T>* slab) {
  const int bits = vectors - 1;
  const int row = static_cast<int>(threadIdx.x) >> bits;
  const int part = static_cast<int>(threadIdx.x) & bits;
  const auto stride = static_cast<uint32_t>(call.features.row_stride);
  const T* from = static_cast<const T*>(call.features.data) + first * stride + (feature + part * kWide) +
                  uint64_t{static_cast<uint32_t>(row)} * stride;
  uint32_t to = shared_address(slab + row * 2 + part);
  const int step = kChunkThreads >> bits;
  const uint64_t jump = static_cast<uint64_t>(step) * stride;
  const auto copy = [&] {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(sizeof(FeatureVector<T>))
                 : "memory");
    from += jump;
    to += static_cast<uint32_t>(step) * kRowBytes<T>;
  };
  if (rows == kChunkRows) {
#pragma unroll 4
    for (int k = 0; k < kChunkRows / step; ++k) copy();
  } else {
    for (int i = row; i < rows; i += step) copy();
  }
  if (threadIdx.x < 2) slab[kChunkRows * 2 + threadIdx.x] = {};
}

__device__ void wait_for_slab() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Clears the sums of a cell and lists it as touched. The thread that counted the cell's first rows calls it.
__device__ void clear_sums(const VoxelReduction& call, const ChunkSums& plan, uint32_t cell) {
  const uint64_t entry = uint64_t{cell} * static_cast<uint32_t>(call.features.count);
  for (int64_t f = 0; f < call.features.count; f += 2) {
    *reinterpret_cast<ulonglong2*>(plan.sums + entry + f) = make_ulonglong2(0, 0);
  }
  for (int64_t f = 0; plan.largest && f < call.features.count; f += 4) {
    *reinterpret_cast<uint4*>(plan.largest + entry + f) = make_uint4(0, 0, 0, 0);
  }
  __threadfence();
  atomicOr(plan.counts + cell, kCleared);
  plan.touched[atomicAdd(&plan.scan_order->touched, 1u)] = cell;
}

// Sorts a chunk and counts its rows. When a warp returns, the sums of its segments in global memory are 0.
__device__ void sort_chunk(const VoxelReduction& call, const ChunkSums& plan, Chunk& chunk, const uint32_t (&cells)[4],
                           uint32_t slab, uint32_t row_bytes) {
  uint32_t counts_before[Chunk::kSlotsPerThread] = {kCleared, kCleared, kCleared, kCleared};
  chunk.sort(cells, static_cast<uint32_t>(call.features.count), slab, row_bytes,
             [&](int k, uint32_t cell, uint32_t rows) { counts_before[k] = atomicAdd(plan.counts + cell, rows); });
  // Clears all its cells before it waits for other threads, so that no two threads wait for each other.
  const uint32_t* const own_cells = chunk.table.cells + threadIdx.x * Chunk::kSlotsPerThread;
  bool waits = false;
#pragma unroll
  for (int k = 0; k < Chunk::kSlotsPerThread; ++k) {
    if (counts_before[k] == 0) clear_sums(call, plan, own_cells[k]);
    waits |= counts_before[k] != 0 && (counts_before[k] & kCleared) == 0;
  }
  if (!__any_sync(~0u, waits)) return;  // later additions reach memory after the clearing
#pragma unroll
  for (int k = 0; k < Chunk::kSlotsPerThread; ++k) {
    if (counts_before[k] == 0 || (counts_before[k] & kCleared)) continue;
    const volatile uint32_t* const state = plan.counts + own_cells[k];
    // Polling without a pause would slow down the thread that clears.
    while ((*state & kCleared) == 0) __nanosleep(200);
  }
  __threadfence();
}

// Returns the four entries of this thread.
template <class Four, class Each>
__device__ Four& four_of(Each* of_rows) {
  static_assert(sizeof(Four) == 4 * sizeof(Each));
  return reinterpret_cast<Four*>(of_rows)[threadIdx.x];
}

// Packs four entries of Chunk::ordered into 16 bits each, as row numbers in the chunk, and unpacks them.
template <class T>
__device__ uint2 packed(uint4 ordered, uint32_t slab) {
  const auto row = [&](uint32_t bits) { return (OrderedRow(bits).offset() - slab) / kRowBytes<T> | bits >> 31 << 15; };
  return {row(ordered.x) | row(ordered.y) << 16, row(ordered.z) | row(ordered.w) << 16};
}
template <class T>
__device__ uint4 unpacked(uint2 rows, uint32_t slab) {
  const auto ordered = [&](uint32_t row) {
    return OrderedRow(slab + (row & 0x7fff) * kRowBytes<T>, row >> 15 & 1).bits;
  };
  return {ordered(rows.x), ordered(rows.x >> 16), ordered(rows.y), ordered(rows.y >> 16)};
}

// Copies the exponents of a chunk's segments to shared memory, for the features of the slab from `feature` on.
__device__ void copy_exponents(const uint8_t* exponents, uint32_t feature, int vectors, Chunk& chunk) {
  constexpr uint32_t kAhead = 4;
  const int bits = vectors - 1;
  const uint32_t part = (threadIdx.x & static_cast<uint32_t>(bits)) * kWide;
  const uint32_t step = kChunkThreads >> bits;
  for (uint32_t i = threadIdx.x >> bits; i < chunk.segments; i += step * kAhead) {
    uint32_t fours[kAhead];
#pragma unroll
    for (uint32_t k = 0; k < kAhead; ++k) {
      const uint32_t segment = i + k * step;
      if (segment < chunk.segments) {
        fours[k] = *reinterpret_cast<const uint32_t*>(exponents + chunk.first_entries[segment] + feature + part);
      }
    }
#pragma unroll
    for (uint32_t k = 0; k < kAhead; ++k) {
      const uint32_t segment = i + k * step;
      if (segment < chunk.segments) *reinterpret_cast<uint32_t*>(chunk.exponents[segment] + part) = fours[k];
    }
  }
}

template <class T, Pass kPass, bool kFast>
__global__ void __launch_bounds__(kChunkThreads, kChunkBlocks)
    sum_chunks(const __grid_constant__ VoxelReduction call, const __grid_constant__ ChunkSums plan,
               const __grid_constant__ FastGrid grid) {
  extern __shared__ __align__(128) unsigned char memory[];
  FeatureVector<T>* const slab = reinterpret_cast<FeatureVector<T>*>(memory);
  Chunk& chunk = *reinterpret_cast<Chunk*>(memory + kSlabBytes<T>);
  constexpr bool kSorts = kPass != Pass::kAddOwn;
  const uint32_t slab_address = shared_address(slab);
  wait_for_work_before();
  if (__syncthreads_or(static_cast<int>(plan.scan_order->tiles_serve))) return;  // another block may set it now
  if (kSorts && !plan.scan_order->is_scan()) {
    if (threadIdx.x == 0) plan.scan_order->tiles_serve = 1;
    return;
  }
  const auto count = static_cast<uint32_t>(call.features.count);
  const auto vectors_at = [&](uint32_t feature) { return count - feature > kWide ? 2 : 1; };

  // Loads the first data of the next chunk early.
  float points[12];
  uint2 ordered;
  uint4 first_entries;
  uint16_t start;
  uint32_t totals;
  uint32_t next_totals;  // of the chunk after the next one
  if constexpr (!kSorts) next_totals = blockIdx.x < plan.chunks ? plan.totals[blockIdx.x] : 0;
  const auto load_ahead = [&](int64_t chunk_index) {
    if (chunk_index >= plan.chunks) return;
    if constexpr (!kSorts) {
      totals = next_totals;
      ordered = four_of<uint2>(plan.ordered + chunk_index * kChunkRows);
      if (threadIdx.x * 4 < totals >> 16) first_entries = four_of<uint4>(plan.first_entries + chunk_index * kChunkRows);
      if (threadIdx.x < kStarts) start = plan.starts[chunk_index * kStarts + threadIdx.x];
      if (chunk_index + gridDim.x < plan.chunks) next_totals = plan.totals[chunk_index + gridDim.x];
    } else if constexpr (kFast) {
      const int64_t first = chunk_index * kChunkRows;
      load_points(call, first + threadIdx.x * 4, min(plan.rows, first + kChunkRows), points);
    }
  };
  load_ahead(blockIdx.x);
  if constexpr (kSorts) {
    chunk.clear();
    __syncthreads();
  }
  float most = 0;
  for (int64_t chunk_index = blockIdx.x; chunk_index < plan.chunks; chunk_index += gridDim.x) {
    const int64_t first = chunk_index * kChunkRows;
    const int64_t end_row = min(plan.rows, first + kChunkRows);
    const int rows = static_cast<int>(end_row - first);
    copy_slab<T>(call, first, rows, 0, vectors_at(0), slab);
    if constexpr (kSorts) {
      uint32_t cells[4];
      cells_of_rows<kFast>(call, grid, first + threadIdx.x * 4, end_row, points, cells);
      sort_chunk(call, plan, chunk, cells, slab_address, kRowBytes<T>);
    } else {
      four_of<uint4>(chunk.ordered) = unpacked<T>(ordered, slab_address);
      four_of<uint4>(chunk.first_entries) = first_entries;
      if (threadIdx.x < kStarts) chunk.starts[threadIdx.x] = start;
      if (threadIdx.x == 0) {
        chunk.segments = totals >> 16;
        chunk.rows = totals & 0xffff;
      }
      __syncthreads();
    }
    for (uint32_t base = 0; base < count; base += kSlabFeatures) {
      const int vectors = vectors_at(base);
      if (base > 0) {
        __syncthreads();
        copy_slab<T>(call, first, rows, base, vectors, slab);
      }
      // A group has one thread per feature. Each group takes an equal share of the rows.
      const int bits = vectors + 1;
      const uint32_t f = threadIdx.x & ((1u << bits) - 1);
      if constexpr (!kSorts) copy_exponents(plan.exponents, base, vectors, chunk);
      wait_for_slab();
      __syncthreads();
      const uint32_t in_cells = chunk.rows;
      if (base == 0) {
        if constexpr (kPass == Pass::kLook) {
          four_of<uint2>(plan.ordered + chunk_index * kChunkRows) =
              packed<T>(four_of<uint4>(chunk.ordered), slab_address);
          if (threadIdx.x * 4 < chunk.segments) {
            four_of<uint4>(plan.first_entries + chunk_index * kChunkRows) = four_of<uint4>(chunk.first_entries);
          }
          if (threadIdx.x < kStarts) plan.starts[chunk_index * kStarts + threadIdx.x] = chunk.starts[threadIdx.x];
          if (threadIdx.x == 0) plan.totals[chunk_index] = chunk.segments << 16 | in_cells;
        }
        if constexpr (kSorts) chunk.clear();
        load_ahead(chunk_index + gridDim.x);
      }

      constexpr uint32_t kPerThread = kChunkRows / kChunkThreads;
      const uint32_t begin = (threadIdx.x >> bits) * (kPerThread << bits);
      const uint32_t end = min(begin + (kPerThread << bits), in_cells);
      const uint32_t f_bytes = f * static_cast<uint32_t>(sizeof(T));
      uint32_t entry = 0;
      uint32_t largest = 0;
      int64_t sum = 0;
      float factor = 0;
      const auto add_segment = [&] {
        if constexpr (kPass == Pass::kLook) {
          raise_at(plan.largest + base + f, entry, largest);
          largest = 0;
        } else {
          add_at(plan.sums + base + f, entry, sum);
          sum = 0;
        }
      };
      uint32_t segment = 0;
      const auto begin_segment = [&] {
        entry = chunk.first_entries[segment];
        if constexpr (!kSorts) factor = __uint_as_float(static_cast<uint32_t>(chunk.exponents[segment][f]) << 23);
      };
      static_assert(kPerThread * kWide % kShare == 0);
      if (begin < end) {
        segment = chunk.starts[begin / kShare];
        begin_segment();
        if (OrderedRow(chunk.ordered[begin]).begins()) --segment;  // the loop begins this segment again
      }
#pragma unroll 1
      for (uint32_t index = begin; index < end; index += 8) {
        const uint4 a = reinterpret_cast<const uint4*>(chunk.ordered + index)[0];
        const uint4 b = reinterpret_cast<const uint4*>(chunk.ordered + index)[1];
        const OrderedRow eight[8] = {OrderedRow(a.x), OrderedRow(a.y), OrderedRow(a.z), OrderedRow(a.w),
                                     OrderedRow(b.x), OrderedRow(b.y), OrderedRow(b.z), OrderedRow(b.w)};
        T values[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) load_shared(eight[k].offset() | f_bytes, values[k]);
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          if (eight[k].begins()) {
            add_segment();
            ++segment;
            begin_segment();
          }
          const float value = to_feature_work(values[k]);
          if constexpr (kPass == Pass::kLook) {
            most = larger(most, value);
            largest = max(largest, __float_as_uint(value) & 0x7fffffffu);
          } else if constexpr (kPass == Pass::kAddOwn) {
            sum += __float2ll_rn(value * factor);
          } else {
            const float quanta = value * plan.factor;
            most = larger(most, quanta);
            sum += __float2int_rn(quanta);
          }
        }
      }
      if (begin < end) add_segment();
    }
    __syncthreads();
  }
  // With a given quantum, a feature beyond this bound has a coarse part.
  constexpr float kBound = kPass == Pass::kAddGiven ? 0x1p30f : std::numeric_limits<float>::infinity();
  if (!(most < kBound)) plan.scan_order->tiles_serve = 1;
}

// ---- Results of the touched cells ----

constexpr int kThreads = 256;
constexpr int kWriteBlocks = 6;  // per multiprocessor
static_assert(kWriteBlocks % 3 == 0);

// Calls body(cell, feature) for every kWide-th feature of the touched cells. `blocks` blocks share the work.
template <class Body>
__device__ void for_each_touched(const ChunkSums& plan, Group group, uint32_t count, uint32_t block, uint32_t blocks,
                                 Body body) {
  const uint32_t feature = group.lane() * kWide;
  if (feature >= count) return;
  const uint32_t touched = plan.scan_order->touched;
  const uint32_t step = blocks * group.count_in(kThreads);
  for (uint32_t i = block * group.count_in(kThreads) + group.index_in_block(); i < touched; i += step) {
    body(plan.touched[i], feature);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    settle_quanta(const __grid_constant__ VoxelReduction call, const __grid_constant__ ChunkSums plan, Group group) {
  wait_for_work_before();
  if (plan.scan_order->tiles_serve) return;
  const auto count = static_cast<uint32_t>(call.features.count);
  for_each_touched(plan, group, count, blockIdx.x, gridDim.x, [&](uint32_t cell, uint32_t feature) {
    const uint64_t entry = uint64_t{cell} * count + feature;
    const uint32_t points = plan.counts[cell] & ~kCleared;
    const auto settle = [&](uint32_t magnitude) {
      const int32_t above = magnitude == 0 ? kNoExponent : exponent_above(__uint_as_float(magnitude));
      const Quantum quantum(exponent_of<T>(call, true, above, points));
      if (quantum.factor == 0) plan.scan_order->tiles_serve = 1;
      return __float_as_uint(quantum.factor) >> 23;
    };
    const uint4 four = *reinterpret_cast<const uint4*>(plan.largest + entry);
    *reinterpret_cast<uint32_t*>(plan.exponents + entry) =
        settle(four.x) | settle(four.y) << 8 | settle(four.z) << 16 | settle(four.w) << 24;
  });
}

template <class T>
__device__ void write_touched(const VoxelReduction& call, const ChunkSums& plan, const Outputs& outputs, Group group,
                              uint32_t block, uint32_t blocks) {
  const auto count = static_cast<uint32_t>(call.features.count);
  for_each_touched(plan, group, count, block, blocks, [&](uint32_t cell, uint32_t feature) {
    const int64_t entry = int64_t{cell} * count + feature;
    const uint32_t points = plan.counts[cell] & ~kCleared;
    int32_t exponents[kWide];
    int64_t sums[kWide];
#pragma unroll
    for (int j = 0; j < kWide; ++j) {
      exponents[j] = plan.exponents ? 127 - plan.exponents[entry + j] : call.quantum_exponent;
      sums[j] = static_cast<int64_t>(plan.sums[entry + j]);
    }
    store_sums<T>(outputs, entry, points, exponents, sums);
    T* const means = outputs.as<T>(VoxelMode::kMean);
    if (points <= kMostByFloat64 || !means) return;
#pragma unroll
    for (int j = 0; j < kWide; ++j) means[entry + j] = rounded_quotient<T>(sums[j], exponents[j], points);
  });
}

// Writes the cells without rows, and the outputs that need no sums.
__device__ void write_others(const VoxelReduction& call, const ChunkSums& plan, const Outputs& outputs,
                             const Fills& fills, uint32_t block, uint32_t blocks) {
  const int64_t first = int64_t{block} * kThreads + threadIdx.x;
  const int64_t step = int64_t{blocks} * kThreads;
  for (int64_t i = first; call.dropped && i < call.clouds.count; i += step) call.dropped[i] = plan.dropped[i];
  int32_t* const counts = outputs.as<int32_t>(VoxelMode::kCount);
  bool* const occupancy = outputs.as<bool>(VoxelMode::kOccupancy);
  uint32_t* const bits = outputs.as<uint32_t>(VoxelMode::kOccupancyBits);
  const unsigned lane = threadIdx.x % 32;
  for (int64_t line = first - lane; line < call.cells; line += step) {
    const int64_t cell = line + lane;
    const uint32_t points = cell < call.cells ? plan.counts[cell] & ~kCleared : 0;
    const uint32_t word = __ballot_sync(~0u, points != 0);
    if (cell < call.cells) {
      if (counts) counts[cell] = static_cast<int32_t>(points);
      if (occupancy) occupancy[cell] = points != 0;
      if (bits && lane == 0) bits[line / kLineCells] = word;
    }
    const auto cells = static_cast<uint32_t>(min(call.cells - line, int64_t{kLineCells}));
    if (word != ~0u) fill_line(fills, line, cells, word, call.features.count, true);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, kWriteBlocks)
    write_sums(const __grid_constant__ VoxelReduction call, const __grid_constant__ ChunkSums plan,
               const __grid_constant__ Outputs outputs, const __grid_constant__ Fills fills, Group group) {
  wait_for_work_before();
  if (plan.scan_order->tiles_serve) return;
  // Reading sums is limited by latency and filling by bandwidth, so both run at the same time.
  const uint32_t third = blockIdx.x / 3;
  const uint32_t thirds = gridDim.x / 3;
  if (blockIdx.x % 3 == 0) {
    write_touched<T>(call, plan, outputs, group, third, thirds);
  } else {
    write_others(call, plan, outputs, fills, blockIdx.x - third - 1, 2 * thirds);
  }
}

template <class T>
constexpr int64_t kSharedBytes = int64_t{kSlabBytes<T>} + static_cast<int64_t>(sizeof(Chunk));

}  // namespace

bool may_sum_by_chunks(const VoxelReduction& call, int device) {
  return suits_chunks(call) && kSharedBytes<float> <= most_shared_bytes(device);
}

bool has_fast_sums(const VoxelReduction& call, const TilePlan& tiles) {
  bool is_called = false;
  const auto fast = [&](auto, auto) {
    is_called = true;
    return cudaSuccess;
  };
  with_fast_sums(call, tiles, wanted_of(call, Outputs(call)), fast, [] { return cudaSuccess; });
  return is_called;
}

ChunkSums chunk_sums_for(const VoxelReduction& call, WorkspaceParts& parts) {
  ChunkSums plan{};
  plan.rows = row_count(call.clouds);
  plan.chunks = static_cast<int>((plan.rows + kChunkRows - 1) / kChunkRows);
  const bool is_own_quantum = call.quantum_exponent == kOwnQuantum;
  plan.factor = is_own_quantum ? 0 : std::ldexp(1.0f, -call.quantum_exponent);
  const int64_t rows = int64_t{plan.chunks} * kChunkRows;
  const int64_t entries = call.cells * call.features.count;
  parts.take(plan.scan_order, 1);
  parts.take(plan.dropped, call.clouds.count);
  parts.take(plan.counts, call.cells);
  parts.take(plan.touched, call.cells);
  parts.take(plan.sums, entries);
  parts.take(plan.largest, entries, is_own_quantum);
  parts.take(plan.exponents, entries, is_own_quantum);
  parts.take(plan.ordered, rows, is_own_quantum);
  parts.take(plan.starts, int64_t{plan.chunks} * kStarts, is_own_quantum);
  parts.take(plan.first_entries, rows, is_own_quantum);
  parts.take(plan.totals, plan.chunks, is_own_quantum);
  return plan;
}

cudaError_t launch_chunk_sums(const VoxelReduction& call, const ChunkSums& plan, const TilePlan& tiles, int device,
                              cudaStream_t stream) {
  const int multiprocessor_count = multiprocessors(device);
  const bool is_packed = is_fast(call);
  const FastGrid grid = fast_grid(call.grid);
  const Outputs outputs(call);
  VoxelReduction sampled = call;
  sampled.dropped = nullptr;
  VoxelReduction sorted = call;
  sorted.dropped = call.dropped ? plan.dropped : nullptr;  // tiles may have to count the dropped points again
  cudaError_t code = launch_tile_kernel(is_packed ? sample_chunks<true> : sample_chunks<false>,
                                        std::max(multiprocessor_count, ScanOrder::kSamples), kChunkThreads, 0, stream,
                                        sampled, plan, grid);
  if (code != cudaSuccess) return code;
  return with_fast_sums(
      call, tiles, wanted_of(call, outputs),
      [&](auto type, auto own) {
        using T = decltype(type);
        const Group group = group_of(call.features.count / kWide);
        const auto sum = [&](auto kernel) {
          return launch_tile_kernel(kernel, kChunkBlocks * multiprocessor_count, kChunkThreads, kSharedBytes<T>, stream,
                                    sorted, plan, grid);
        };
        if constexpr (own()) {
          code = sum(is_packed ? sum_chunks<T, Pass::kLook, true> : sum_chunks<T, Pass::kLook, false>);
          if (code != cudaSuccess) return code;
          code = launch_tile_kernel(settle_quanta<T>, 4 * multiprocessor_count, kThreads, 0, stream, call, plan, group);
          if (code != cudaSuccess) return code;
          code = sum(sum_chunks<T, Pass::kAddOwn, false>);
        } else {
          code = sum(is_packed ? sum_chunks<T, Pass::kAddGiven, true> : sum_chunks<T, Pass::kAddGiven, false>);
        }
        if (code != cudaSuccess) return code;
        return launch_tile_kernel(write_sums<T>, kWriteBlocks * multiprocessor_count, kThreads, 0, stream, call, plan,
                                  outputs, fills_of(call), group);
      },
      [] { return cudaSuccess; });
}

}  // namespace robocache::voxels_cuda
