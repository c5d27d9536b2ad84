#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "robocache/core/launch_cuda.cuh"
#include "robocache/core/with_type.hpp"
#include "robocache/image/augment_math.hpp"
#include "robocache/image/transform_math.hpp"
#include "robocache/image/transform_params.hpp"

namespace robocache {
namespace {

constexpr unsigned kThreads = 256;
constexpr int32_t kRowsOfBlock = 32;
constexpr int kTogether = 8;  // pixels of a row that a thread computes, so that it stores whole vectors

// ---- Frames ---------------------------------------------------------------------------------------------------------

__device__ const uint8_t* frame_of(const TransformBatch& batch, int64_t i) {
  const TransformParams& p = batch.params;
  const FrameChoice& from = batch.from;
  int64_t row = from.rows != nullptr ? from.rows[i] - from.first_row : i;
  if (from.in_order && row >= 0) row = i;
  if (row < 0 || row >= from.frames) return nullptr;
  const int64_t bytes = int64_t{p.frame[0]} * p.frame[1] * p.channels * dtype_size(p.dtype);
  return static_cast<const uint8_t*>(from.pixels) + row * bytes;
}

// Whether output i belongs to this call: see FrameChoice.
__device__ bool belongs_to_call(const FrameChoice& from, int64_t i) {
  return from.rows == nullptr || (from.rows[i] >= from.begin && from.rows[i] < from.end);
}

__device__ ImageDraw draw_of(const TransformBatch& batch, int64_t i) { return batch.first.behind(i / batch.steps); }

__device__ Warp warp_of(const TransformBatch& batch, int64_t i) {
  return frame_warp(batch.params, draw_of(batch, i), i % batch.steps);
}

// One thread of the block draws for all its threads.
__device__ const FramePlan& plan_of(const TransformBatch& batch, int64_t i) {
  __shared__ FramePlan plan;
  if (threadIdx.x == 0) {
    plan = frame_plan(batch.params, draw_of(batch, i), i % batch.steps);
  }
  __syncthreads();
  return plan;
}

// ---- Bytes of output pixels -----------------------------------------------------------------------------------------

// Loads kBytes bytes from any address, as words if those are within [begin, end).
template <int kBytes>
__device__ void load_bytes(const uint8_t* from, const uint8_t* begin, const uint8_t* end, uint8_t* bytes) {
  constexpr int kWords = kBytes / 4;
  const auto address = reinterpret_cast<uintptr_t>(from);
  const auto aligned = address & ~uintptr_t{3};
  if (aligned < reinterpret_cast<uintptr_t>(begin) || aligned + 4 * (kWords + 1) > reinterpret_cast<uintptr_t>(end)) {
#pragma unroll
    for (int i = 0; i < kBytes; ++i) bytes[i] = from[i];
    return;
  }
  const auto* const words = reinterpret_cast<const uint32_t*>(aligned);
  const auto shift = static_cast<uint32_t>(address - aligned) * 8;
  uint32_t low = __ldg(words);
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const uint32_t high = __ldg(words + i + 1);
    const uint32_t word = __funnelshift_r(low, high, shift);
#pragma unroll
    for (int k = 0; k < 4; ++k) bytes[4 * i + k] = static_cast<uint8_t>(word >> 8 * k);
    low = high;
  }
}

// Computes pixel (row, column) of the frame's part of the resized frame.
template <class Filter, int kChannels>
__device__ void resized_pixel(const TransformParams& p, const FramePlan& plan, const uint8_t* frame, int32_t row,
                              int32_t column, uint8_t* pixel) {
  const Taps rows = Filter::taps(plan.rows, row);
  const Taps columns = Filter::taps(plan.columns, column);
  int64_t sums[kChannels] = {};
  int64_t weight_of_rows = 0;
  int32_t weight_of_columns = 0;
  for (int32_t y = rows.begin; y < rows.end; ++y) {
    const uint8_t* from =
        frame + (int64_t{plan.rows.from_first + y} * p.frame[1] + plan.columns.from_first) * kChannels;
    int32_t row_sums[kChannels] = {};
    weight_of_columns = 0;
    for (int32_t x = columns.begin; x < columns.end; ++x) {
      const int32_t w = Filter::weight(plan.columns, columns, x);
      weight_of_columns += w;
      for (int c = 0; c < kChannels; ++c) row_sums[c] += w * __ldg(from + x * kChannels + c);
    }
    const int32_t w = Filter::weight(plan.rows, rows, y);
    weight_of_rows += w;
    for (int c = 0; c < kChannels; ++c) sums[c] += int64_t{w} * row_sums[c];
  }
  const auto weight = static_cast<double>(weight_of_rows * weight_of_columns);
  for (int c = 0; c < kChannels; ++c)
    pixel[c] = rounded_mean<Filter::kOvershoots>(static_cast<double>(sums[c]), weight);
}

struct OnlyMoves {};  // in place of a filter, for a plan without a resize

// Loads `count` output pixels from (y, x) on, before colour steps. `Way` is a filter, or OnlyMoves.
template <class Way, int kChannels>
__device__ void load_pixels(const TransformBatch& batch, const FramePlan& plan, const uint8_t* frame, int32_t y,
                            int32_t x, int count, uint8_t* bytes) {
  const TransformParams& p = batch.params;
  const int32_t row = frame == nullptr ? -1 : resized_at(plan.rows, y);
  if (row < 0) {
#pragma unroll
    for (int i = 0; i < kTogether * kChannels; ++i) bytes[i] = 0;
    return;
  }
  if constexpr (std::is_same_v<Way, OnlyMoves>) {
    const uint8_t* const from =
        frame + (int64_t{plan.rows.from_first + row} * p.frame[1] + plan.columns.from_first) * kChannels;
    const int32_t first = x + plan.columns.first;
    if (count == kTogether && first >= 0 && first + kTogether <= plan.columns.sized) {
      const auto* const begin = static_cast<const uint8_t*>(batch.from.pixels);
      const uint8_t* const end = begin + batch.from.frames * p.frame[0] * p.frame[1] * kChannels;
      load_bytes<kTogether * kChannels>(from + int64_t{first - plan.columns.to_first} * kChannels, begin, end, bytes);
      return;
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      // Beyond the last pixel it repeats that pixel, which is not stored.
      const int32_t column = resized_at(plan.columns, x + (i < count ? i : count - 1));
      for (int c = 0; c < kChannels; ++c) bytes[i * kChannels + c] = from[int64_t{column} * kChannels + c];
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const int32_t column = resized_at(plan.columns, x + i);
      if (column < 0) {
        for (int c = 0; c < kChannels; ++c) bytes[i * kChannels + c] = 0;
      } else {
        resized_pixel<Way, kChannels>(p, plan, frame, row, column, bytes + i * kChannels);
      }
    }
  }
}

// ---- Storing --------------------------------------------------------------------------------------------------------

// Stores the first `count` values, as vectors if those are all values and the address is aligned.
template <int kCount, class Out>
__device__ void store(Out* to, const Out (&values)[kCount], int count) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(Out));
  using Vector = std::conditional_t<kBytes % 16 == 0, uint4, uint2>;
  if (count == kCount && reinterpret_cast<uintptr_t>(to) % sizeof(Vector) == 0) {
    union {
      Out values[kCount];
      Vector vectors[kBytes / sizeof(Vector)];
    } packed;
#pragma unroll
    for (int i = 0; i < kCount; ++i) packed.values[i] = values[i];
#pragma unroll
    for (int i = 0; i < kBytes / static_cast<int>(sizeof(Vector)); ++i) {
      __stcs(reinterpret_cast<Vector*>(to) + i, packed.vectors[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < count) to[i] = values[i];
    }
  }
}

template <class Out, int kChannels>
__device__ void store_pixels(const TransformParams& p, const uint8_t* bytes, int32_t y, int32_t x, int count,
                             Out* out) {
  const int64_t width = p.out[1];
  const int64_t pixel = y * width + x;
  if (p.layout == ImageLayout::kChw) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      Out values[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) values[i] = normalised<Out>(p, bytes[i * kChannels + c], c);
      store(out + c * width * p.out[0] + pixel, values, count);
    }
  } else {
    Out values[kTogether * kChannels];
#pragma unroll
    for (int i = 0; i < kTogether * kChannels; ++i) values[i] = normalised<Out>(p, bytes[i], i % kChannels);
    store(out + pixel * kChannels, values, count * kChannels);
  }
}

// ---- Kernels --------------------------------------------------------------------------------------------------------

// Calls visit(y, x, count) for the block's groups of up to `group_pixels` pixels among `rows` rows from `first_row` on.
template <class Visit>
__device__ void for_each_pixel_group(const TransformParams& p, int32_t first_row, int32_t rows, const Visit& visit,
                                     int32_t group_pixels = kTogether) {
  const int32_t groups = (p.out[1] + group_pixels - 1) / group_pixels;
  rows = min(rows, p.out[0] - first_row);
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < rows * groups; i += kThreads) {
    const int32_t row = i / groups;
    const int32_t x = (i - row * groups) * group_pixels;
    visit(first_row + row, x, min(group_pixels, p.out[1] - x));
  }
}

template <class Out>
__device__ Out* out_of(const TransformBatch& batch, int64_t i) {
  const TransformParams& p = batch.params;
  return static_cast<Out*>(batch.out) + i * (int64_t{p.out[0]} * p.out[1] * p.channels);
}

// Returns how many rows each block of a frame computes.
__device__ int32_t rows_of_block(const TransformParams& p) {
  return (p.out[0] + static_cast<int32_t>(gridDim.y) - 1) / static_cast<int32_t>(gridDim.y);
}

// Makes frames that are only cropped or shifted, without colour steps.
template <class Out, int kChannels>
__global__ void __launch_bounds__(kThreads) move_frames(const __grid_constant__ TransformBatch batch) {
  wait_for_work_before();
  const int64_t i = blockIdx.x;
  if (!belongs_to_call(batch.from, i)) return;
  const FramePlan& plan = plan_of(batch, i);
  const uint8_t* const frame = frame_of(batch, i);
  Out* const out = out_of<Out>(batch, i);
  const int32_t rows = rows_of_block(batch.params);
  for_each_pixel_group(batch.params, blockIdx.y * rows, rows, [&](int32_t y, int32_t x, int count) {
    uint8_t bytes[kTogether * kChannels];
    load_pixels<OnlyMoves, kChannels>(batch, plan, frame, y, x, count, bytes);
    store_pixels<Out, kChannels>(batch.params, bytes, y, x, count, out);
  });
}

// Returns the mean luma of a brightened frame. All threads of a block compute it.
template <class Load>
__device__ float mean_of_frame(const TransformParams& p, const Load& load) {
  __shared__ Word total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  int64_t sum = 0;
  for_each_pixel_group(p, 0, p.out[0], [&](int32_t y, int32_t x, int count) { sum += load(y, x, count); });
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_down_sync(~0u, sum, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(&total, static_cast<Word>(sum));
  __syncthreads();
  return mean_luma(static_cast<int64_t>(total), int64_t{p.out[0]} * p.out[1]);
}

// Makes all other frames. With contrast, a block computes a whole frame and passes over its pixels twice.
template <class Filter, class Out, int kChannels>
__global__ void __launch_bounds__(kThreads) make_frames(const __grid_constant__ TransformBatch batch) {
  wait_for_work_before();
  const TransformParams& p = batch.params;
  const int64_t i = blockIdx.x;
  if (!belongs_to_call(batch.from, i)) return;
  const FramePlan& plan = plan_of(batch, i);
  const uint8_t* const frame = frame_of(batch, i);
  Out* const out = out_of<Out>(batch, i);
  const auto load = [&](int32_t y, int32_t x, int count, uint8_t* bytes) {
    load_pixels<Filter, kChannels>(batch, plan, frame, y, x, count, bytes);
    if (p.brightens) {
      for (int k = 0; k < kTogether * kChannels; ++k) bytes[k] = brightened(bytes[k], plan.brightness);
    }
  };
  float mean = 0;
  if (p.contrasts) {
    mean = mean_of_frame(p, [&](int32_t y, int32_t x, int count) {
      uint8_t bytes[kTogether * kChannels] = {};
      load(y, x, count, bytes);
      int64_t sum = 0;
      for (int k = 0; k < count; ++k) sum += luma(bytes + k * kChannels, kChannels);
      return sum;
    });
  }
  const int32_t rows = rows_of_block(p);
  const auto compute = [&](int32_t y, int32_t x, int count) {
    uint8_t bytes[kTogether * kChannels] = {};
    load(y, x, count, bytes);
    if (p.contrasts) {
      for (int k = 0; k < kTogether * kChannels; ++k) bytes[k] = away_from(mean, bytes[k], plan.contrast);
    }
    if constexpr (kChannels == 3) {
      for (int k = 0; k < kTogether; ++k) {
        if (p.saturates) saturate(bytes + 3 * k, plan.saturation);
        if (p.hues) turn_hue(bytes + 3 * k, plan.hue);
      }
    }
    store_pixels<Out, kChannels>(p, bytes, y, x, count, out);
  };
  // With few frames a thread computes one pixel at a time: the device has enough threads.
  for_each_pixel_group(p, blockIdx.y * rows, rows, compute, rows <= kRowsOfBlock / kTogether ? 1 : kTogether);
}

template <bool kWarps, class Out>
__global__ void __launch_bounds__(kThreads) make_depth(const __grid_constant__ TransformBatch batch) {
  wait_for_work_before();
  const TransformParams& p = batch.params;
  const int64_t i = blockIdx.x;
  if (!belongs_to_call(batch.from, i)) return;
  const FramePlan& plan = plan_of(batch, i);
  const uint8_t* const frame = frame_of(batch, i);
  Out* const out = out_of<Out>(batch, i);
  const int32_t rows = rows_of_block(p);
  if constexpr (kWarps) {
    __shared__ Warp warp;
    if (threadIdx.x == 0) warp = warp_of(batch, i);
    __syncthreads();
    for_each_pixel_group(p, blockIdx.y * rows, rows, [&](int32_t y, int32_t x, int count) {
      for (int k = 0; k < count; ++k) {
        out[int64_t{y} * p.out[1] + x + k] =
            frame == nullptr ? Out{} : warped_depth<Out>(p, plan, warp, frame, y, x + k);
      }
    });
    return;
  }
  for_each_pixel_group(p, blockIdx.y * rows, rows, [&](int32_t y, int32_t x, int count) {
    const int32_t row = frame == nullptr ? -1 : resized_at(plan.rows, y);
    for (int k = 0; k < count; ++k) {
      const int32_t column = resized_at(plan.columns, x + k);
      out[int64_t{y} * p.out[1] + x + k] =
          row < 0 || column < 0 ? Out{} : depth_at<Out>(p, frame, depth_offset(p, plan, row, column));
    }
  });
}

// A thread computes one matrix.
__global__ void __launch_bounds__(kThreads) write_intrinsics(const __grid_constant__ IntrinsicsBatch batch) {
  wait_for_work_before();
  const int64_t steps_per_sample = batch.params.per_frame ? batch.steps : 1;
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= batch.count * steps_per_sample) return;
  const int64_t sample = i / steps_per_sample;
  const int64_t step = i - sample * steps_per_sample;
  const int64_t number = batch.numbers[sample * batch.steps + step];
  if (number < batch.begin || number >= batch.end) return;
  double matrix[9] = {};
  if (number >= 1) {
    const ImageDraw draw = batch.first.behind(sample);
    planned_intrinsics(batch.params, frame_plan(batch.params, draw, step), frame_warp(batch.params, draw, step),
                       batch.matrix, matrix);
  }
  for (int k = 0; k < 9; ++k) batch.out[9 * i + k] = static_cast<float>(matrix[k]);
}

// ---- Flips, rotation, blur, erasing ---------------------------------------------------------------------------------

// Warps bytes [H, W, C] to bytes.
__global__ void __launch_bounds__(kThreads) warp_frames(const __grid_constant__ TransformBatch batch) {
  wait_for_work_before();
  const TransformParams& p = batch.params;
  const int64_t i = blockIdx.x;
  if (!belongs_to_call(batch.from, i)) return;
  __shared__ Warp warp;
  if (threadIdx.x == 0) warp = warp_of(batch, i);
  __syncthreads();
  const int64_t bytes = int64_t{p.out[0]} * p.out[1] * p.channels;
  const uint8_t* const from = static_cast<const uint8_t*>(batch.from.pixels) + i * bytes;
  uint8_t* const out = static_cast<uint8_t*>(batch.out) + i * bytes;
  const int32_t first = blockIdx.y * kRowsOfBlock;
  const int32_t pixels = min(kRowsOfBlock, p.out[0] - first) * p.out[1];
  for (int32_t k = threadIdx.x; k < pixels; k += kThreads) {
    const int32_t y = first + k / p.out[1];
    const int32_t x = k % p.out[1];
    warped_pixel(p, warp, from, y, x, out + (int64_t{y} * p.out[1] + x) * p.channels);
  }
}

// Blurs bytes [H, W, C] to bytes. A block computes a tile: it first sums along rows, also for the rows above and below
// the tile that contribute.
__global__ void __launch_bounds__(kThreads) blur_frames(const __grid_constant__ TransformBatch batch) {
  constexpr int32_t kTile = 32;
  wait_for_work_before();
  const TransformParams& p = batch.params;
  const int64_t i = blockIdx.x;
  if (!belongs_to_call(batch.from, i)) return;
  __shared__ BlurWeights weights;
  __shared__ int32_t sums[kTile + 2 * kMostBlurReach][kTile * 3];
  if (threadIdx.x == 0) weights = blur_weights(p, draw_of(batch, i), i % batch.steps);
  __syncthreads();
  const int64_t bytes = int64_t{p.out[0]} * p.out[1] * p.channels;
  const uint8_t* const from = static_cast<const uint8_t*>(batch.from.pixels) + i * bytes;
  uint8_t* const out = static_cast<uint8_t*>(batch.out) + i * bytes;
  const int32_t tiles = (p.out[1] + kTile - 1) / kTile;
  const int32_t reach = p.blur_reach;
  for (int32_t tile = blockIdx.y; tile < tiles * ((p.out[0] + kTile - 1) / kTile); tile += gridDim.y) {
    const int32_t first_row = tile / tiles * kTile;
    const int32_t first_column = tile % tiles * kTile;
    const int32_t rows = min(kTile, p.out[0] - first_row);
    const int32_t values = min(kTile, p.out[1] - first_column) * p.channels;
    for (int32_t k = threadIdx.x; k < (rows + 2 * reach) * values; k += kThreads) {
      const int32_t y = reflected(first_row + k / values - reach, p.out[0]);
      const int32_t x = first_column + k % values / p.channels;
      const uint8_t* const row = from + int64_t{y} * p.out[1] * p.channels + k % values % p.channels;
      int32_t sum = weights.by_distance[0] * row[x * p.channels];
      for (int32_t d = 1; d <= reach; ++d) {
        sum += weights.by_distance[d] *
               (row[reflected(x - d, p.out[1]) * p.channels] + row[reflected(x + d, p.out[1]) * p.channels]);
      }
      sums[k / values][k % values] = sum;
    }
    __syncthreads();
    for (int32_t k = threadIdx.x; k < rows * values; k += kThreads) {
      const int32_t y = k / values;
      const int32_t v = k % values;
      int64_t sum = int64_t{weights.by_distance[0]} * sums[y + reach][v];
      for (int32_t d = 1; d <= reach; ++d) {
        sum += int64_t{weights.by_distance[d]} * (int64_t{sums[y + reach - d][v]} + sums[y + reach + d][v]);
      }
      out[(int64_t{first_row + y} * p.out[1] + first_column) * p.channels + v] =
          blurred(weights, static_cast<double>(sum));
    }
    __syncthreads();
  }
}

template <class Out>
__global__ void __launch_bounds__(kThreads) erase_parts(const __grid_constant__ TransformBatch batch) {
  wait_for_work_before();
  const TransformParams& p = batch.params;
  const int64_t i = blockIdx.x;
  if (!belongs_to_call(batch.from, i)) return;
  __shared__ ErasedPart part;
  if (threadIdx.x == 0) part = erased_part(p, draw_of(batch, i), i % batch.steps);
  __syncthreads();
  Out* const out = out_of<Out>(batch, i);
  for (int32_t k = threadIdx.x; k < part.size[0] * part.size[1]; k += kThreads) {
    const int32_t y = part.first[0] + k / part.size[1];
    const int32_t x = part.first[1] + k % part.size[1];
    for (int c = 0; c < p.channels; ++c) out[out_offset(p, y, x, c)] = normalised<Out>(p, p.erased[c], c);
  }
}

using Kernel = void (*)(TransformBatch);

template <class Out, int kChannels>
Kernel colour_kernel(const TransformParams& p) {
  const bool resizes = p.crop_scales || p.frame[0] != p.sized[0] || p.frame[1] != p.sized[1];
  if (!resizes && !p.jitters) return move_frames<Out, kChannels>;
  Kernel kernel = nullptr;
  with_filter(p.interpolation, [&](auto filter) { kernel = make_frames<decltype(filter), Out, kChannels>; });
  return kernel;
}

template <class Out>
Kernel depth_kernel(const TransformParams& p) {
  return p.warps ? make_depth<true, Out> : make_depth<false, Out>;
}

Kernel kernel_of(const TransformParams& p) {
  Kernel kernel = nullptr;
  const auto set_colour_kernel = [&](auto type) {
    using Out = decltype(type);
    kernel = p.channels == 1 ? colour_kernel<Out, 1>(p) : colour_kernel<Out, 3>(p);
  };
  if (p.out_dtype == DType::kUInt8) {
    set_colour_kernel(uint8_t{});
  } else if (p.out_dtype == DType::kFloat32) {
    p.dtype == DType::kUInt8 ? set_colour_kernel(float{}) : void(kernel = depth_kernel<float>(p));
  } else if (p.out_dtype == DType::kFloat16) {
    p.dtype == DType::kUInt8 ? set_colour_kernel(Float16{}) : void(kernel = depth_kernel<Float16>(p));
  } else {
    p.dtype == DType::kUInt8 ? set_colour_kernel(BFloat16{}) : void(kernel = depth_kernel<BFloat16>(p));
  }
  return kernel;
}

}  // namespace
}  // namespace robocache

extern "C" __attribute__((visibility("default"))) int robocache_cuda_transform_images(
    const robocache::TransformBatch* batch, int32_t device, void* stream) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  const TransformParams& p = batch->params;
  const int64_t frames = batch->count * batch->steps;
  const bool takes_whole_frames = p.dtype == DType::kUInt8 && p.contrasts;
  // Few frames are spread over the whole device.
  const int64_t rows = std::clamp<int64_t>(frames * p.out[0] / (2 * multiprocessors(device)), 1, kRowsOfBlock);
  const dim3 blocks(static_cast<unsigned>(frames), takes_whole_frames ? 1 : blocks_for(p.out[0], rows, 65535));
  return launch_overlapped(kernel_of(p), blocks, kThreads, 0, static_cast<cudaStream_t>(stream), *batch);
}

extern "C" __attribute__((visibility("default"))) int robocache_cuda_warp_images(const robocache::TransformBatch* batch,
                                                                                 int32_t device, void* stream) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  const dim3 blocks(static_cast<unsigned>(batch->count * batch->steps),
                    blocks_for(batch->params.out[0], kRowsOfBlock, 65535));
  return launch_overlapped(warp_frames, blocks, kThreads, 0, static_cast<cudaStream_t>(stream), *batch);
}

extern "C" __attribute__((visibility("default"))) int robocache_cuda_blur_images(const robocache::TransformBatch* batch,
                                                                                 int32_t device, void* stream) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  const int64_t pixels = int64_t{batch->params.out[0]} * batch->params.out[1];
  const dim3 blocks(static_cast<unsigned>(batch->count * batch->steps), blocks_for(pixels, 32 * 32, 65535));
  return launch_overlapped(blur_frames, blocks, kThreads, 0, static_cast<cudaStream_t>(stream), *batch);
}

extern "C" __attribute__((visibility("default"))) int robocache_cuda_erase_images(
    const robocache::TransformBatch* batch, int32_t device, void* stream) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  Kernel kernel = erase_parts<uint8_t>;
  if (batch->params.out_dtype == DType::kFloat32) kernel = erase_parts<float>;
  if (batch->params.out_dtype == DType::kFloat16) kernel = erase_parts<Float16>;
  if (batch->params.out_dtype == DType::kBFloat16) kernel = erase_parts<BFloat16>;
  return launch_overlapped(kernel, dim3(static_cast<unsigned>(batch->count * batch->steps)), kThreads, 0,
                           static_cast<cudaStream_t>(stream), *batch);
}

extern "C" __attribute__((visibility("default"))) int robocache_cuda_intrinsics(const robocache::IntrinsicsBatch* batch,
                                                                                int32_t device, void* stream) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  const int64_t matrices = batch->count * (batch->params.per_frame ? batch->steps : 1);
  if (matrices == 0) return cudaSuccess;
  return launch_overlapped(write_intrinsics, blocks_for(matrices, kThreads), kThreads, 0,
                           static_cast<cudaStream_t>(stream), *batch);
}
