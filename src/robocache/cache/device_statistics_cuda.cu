#include <cuda_runtime.h>

#include "robocache/cache/device_statistics_params.hpp"
#include "robocache/core/launch_cuda.cuh"
#include "robocache/core/order_key.hpp"

namespace robocache {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kBins = 1 << kPassBits;

// Returns how many bits of a key are below those of a pass.
__host__ __device__ int shift_of(int key_bits, int pass) {
  const int shift = key_bits - kPassBits * (pass + 1);
  return shift < 0 ? 0 : shift;
}

int blocks_of_rows(const DeviceColumns& p) {
  const int64_t end = p.first_row + p.rows;
  return static_cast<int>((end + kSumBlock - 1) / kSumBlock - p.first_row / kSumBlock);
}

// A thread sums one lane of a block of one column, and counts the next bits of the keys of these rows.
template <class Real>
__global__ void __launch_bounds__(kThreads) add_rows(const __grid_constant__ DeviceColumns p) {
  using Key = decltype(order_key(Real{}));
  constexpr int kKeyBits = 8 * sizeof(Key);
  const int64_t lane_index = blockIdx.y * int64_t{kThreads} + threadIdx.x;
  if (lane_index >= kSumLanes * p.width) return;
  const int64_t column = lane_index % p.width;
  const int64_t block = p.first_row / kSumBlock + blockIdx.x;
  const int64_t begin = max(block * kSumBlock, p.first_row);
  const int64_t end = min((block + 1) * kSumBlock, p.first_row + p.rows);
  const int64_t full_rows = p.all_rows - p.all_rows % kSumLanes;
  const auto* const values = static_cast<const Real*>(p.values) + column;
  const bool* const is_pad = p.is_pad + column / p.features;
  const int64_t marks_per_row = p.width / p.features;
  const int64_t half = int64_t{p.ranks} * p.width;
  const uint64_t* const keys = p.keys + (p.pass % 2) * half + column;
  uint32_t* const bins = p.bins + column * kBins;
  const double mean = p.pass == 1 ? p.means[column] : 0;
  const int shift = shift_of(kKeyBits, p.pass);
  const int upper_shift = shift_of(kKeyBits, p.pass - 1);
  const auto mask = (Key{1} << (upper_shift - shift)) - 1;
  double sum = begin % kSumBlock == 0 ? 0 : p.open_lanes[p.turn * kSumLanes * p.width + lane_index];
  int64_t finite = 0;

  const auto add = [&](Real x, bool pad) {
    if (pad || !(x - x == 0)) return;
    ++finite;
    const double d = static_cast<double>(x) - mean;
    if (p.pass < 2) sum += p.pass == 0 ? static_cast<double>(x) : d * d;
    const Key key = order_key(x);
    const uint64_t upper = p.pass == 0 ? 0 : key >> upper_shift;
    for (int rank = 0; rank < p.ranks; ++rank) {
      if (__ldg(keys + int64_t{rank} * p.width) != upper) continue;
      atomicAdd(bins + int64_t{rank} * p.width * kBins + static_cast<int>(key >> shift & mask), 1U);
      break;  // ranks with the same bits share the first one's bins
    }
  };
  const auto add_row = [&](int64_t row) {
    const int64_t i = row - p.first_row;
    add(values[i * p.width], is_pad[i * marks_per_row]);
  };

  constexpr int kTogether = 8;  // rows that are loaded before any is used
  const int64_t last = min(end, full_rows);
  int64_t row = begin + lane_index / p.width;
  for (; row + (kTogether - 1) * kSumLanes < last; row += kTogether * kSumLanes) {
    Real x[kTogether];
    bool pad[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int64_t i = row - p.first_row + k * kSumLanes;
      x[k] = values[i * p.width];
      pad[k] = is_pad[i * marks_per_row];
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k) add(x[k], pad[k]);
  }
  for (; row < last; row += kSumLanes) add_row(row);
  if (lane_index < p.width) {
    for (row = max(begin, full_rows); row < end; ++row) add_row(row);
  }
  p.lanes[blockIdx.x * kSumLanes * p.width + lane_index] = sum;
  if (blockIdx.x + 1 == gridDim.x) p.open_lanes[(1 - p.turn) * kSumLanes * p.width + lane_index] = sum;
  if (p.pass == 0) atomicAdd(reinterpret_cast<Word*>(p.counts + column), static_cast<Word>(finite));
}

// Adds the blocks that end in this part, in order.
__global__ void add_blocks(const __grid_constant__ DeviceColumns p, int blocks) {
  const int64_t column = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (column >= p.width) return;
  const int64_t end = p.first_row + p.rows;
  if (end % kSumBlock != 0 && end != p.all_rows) --blocks;
  double sum = p.sums[column];
#pragma unroll 4
  for (int block = 0; block < blocks; ++block) {
    const double* const l = p.lanes + int64_t{block} * kSumLanes * p.width + column;
    const int64_t w = p.width;
    sum += ((l[0] + l[w]) + (l[2 * w] + l[3 * w])) + ((l[4 * w] + l[5 * w]) + (l[6 * w] + l[7 * w]));
  }
  p.sums[column] = sum;
}

// A warp finds the next bits of the key with one rank of one column.
__global__ void __launch_bounds__(kThreads) find_bits(const __grid_constant__ DeviceColumns p, int bits) {
  const int64_t half = int64_t{p.ranks} * p.width;
  const int64_t rank_index = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / kWarp;
  if (rank_index >= half || p.counts[rank_index % p.width] == 0) return;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const uint64_t* const keys = p.keys + (p.pass % 2) * half;
  const uint64_t key = keys[rank_index];
  int64_t first = rank_index % p.width;
  while (keys[first] != key) first += p.width;
  const uint32_t* const bins = p.bins + first * kBins;
  int64_t inside = p.inside[rank_index];
  for (int begin = 0; begin < 1 << bits; begin += kWarp) {
    const int64_t in_bin = bins[begin + lane];
    int64_t up_to_bin = in_bin;
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int64_t below = __shfl_up_sync(~0U, up_to_bin, distance);
      if (lane >= distance) up_to_bin += below;
    }
    const unsigned lanes_beyond = __ballot_sync(~0U, inside < up_to_bin);
    if (lanes_beyond == 0) {
      inside -= __shfl_sync(~0U, up_to_bin, kWarp - 1);
      continue;
    }
    if (lane == __ffs(static_cast<int>(lanes_beyond)) - 1) {
      p.keys[(1 - p.pass % 2) * half + rank_index] = key << bits | static_cast<uint64_t>(begin + lane);
      p.inside[rank_index] = inside - (up_to_bin - in_bin);
    }
    return;
  }
}

}  // namespace
}  // namespace robocache

// Adds a part of the rows to a pass. The first part begins the pass.
extern "C" __attribute__((visibility("default"))) int robocache_cuda_add_columns(
    const robocache::DeviceColumns* columns, int32_t device, void* stream) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  const DeviceColumns& p = *columns;
  auto* const queue = static_cast<cudaStream_t>(stream);
  const auto width = static_cast<size_t>(p.width);
  const size_t entries = width * static_cast<size_t>(p.ranks);
  if (p.first_row == 0) {
    cudaMemsetAsync(p.sums, 0, width * sizeof(double), queue);
    cudaMemsetAsync(p.bins, 0, entries * kBins * sizeof(uint32_t), queue);
    if (p.pass == 0) {
      cudaMemsetAsync(p.counts, 0, width * sizeof(int64_t), queue);
      cudaMemsetAsync(p.keys, 0, entries * sizeof(uint64_t), queue);
    }
  }
  const int blocks = blocks_of_rows(p);
  const dim3 grid(static_cast<unsigned>(blocks), blocks_for(kSumLanes * p.width, kThreads));
  (p.is_wide ? add_rows<double> : add_rows<float>)<<<grid, kThreads, 0, queue>>>(p);
  if (p.pass < 2) add_blocks<<<blocks_for(p.width, kThreads), kThreads, 0, queue>>>(p, blocks);
  return cudaGetLastError();
}

// Ends a pass: finds the next bits of the keys with the ranks in `inside`.
extern "C" __attribute__((visibility("default"))) int robocache_cuda_find_columns(
    const robocache::DeviceColumns* columns, int32_t device, void* stream) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  const DeviceColumns& p = *columns;
  const int key_bits = p.is_wide ? 64 : 32;
  const int bits = shift_of(key_bits, p.pass - 1) - shift_of(key_bits, p.pass);
  find_bits<<<blocks_for(int64_t{p.ranks} * p.width * kWarp, kThreads), kThreads, 0,
              static_cast<cudaStream_t>(stream)>>>(p, bits);
  return cudaGetLastError();
}
