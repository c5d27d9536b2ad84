#include <cuda_pipeline_primitives.h>
#include <cuda_runtime.h>

#include "robocache/core/launch_cuda.cuh"
#include "robocache/image/decode_jpeg_params.hpp"
#include "robocache/image/jpeg_color.hpp"
#include "robocache/image/jpeg_scan.hpp"

namespace robocache {
namespace {

// ---- Entropy coding, dequantisation and inverse DCT: one thread per segment -----------------------------------------

constexpr unsigned kScanThreads = 64;
constexpr unsigned kWarp = 32;
// The bytes of a warp's segments are copied to shared memory together. Reading bit by bit from global memory would wait
// for the first byte of every sector.
constexpr uint32_t kStagedWords = kWarp * 56;

// The coefficients of one block for each thread, with 8 of them (16 bytes) side by side.
class SharedCoefficients {
 public:
  __device__ explicit SharedCoefficients(uint4* all) : first_(all + threadIdx.x) {
    for (unsigned i = 0; i < 8; ++i) first_[i * kScanThreads] = uint4{};
  }
  __device__ void set(uint32_t index, int16_t value) {
    reinterpret_cast<int16_t*>(first_ + index / 8 * kScanThreads)[index % 8] = value;
  }
  __device__ void take(uint32_t (&words)[32]) {
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) {
      const uint4 vector = first_[i * kScanThreads];
      first_[i * kScanThreads] = uint4{};
      words[4 * i] = vector.x;
      words[4 * i + 1] = vector.y;
      words[4 * i + 2] = vector.z;
      words[4 * i + 3] = vector.w;
    }
  }

 private:
  uint4* first_;
};

struct ScanShared {
  JpegTables tables;
  uint4 coefficients[8 * kScanThreads];
  uint32_t words[kScanThreads / kWarp][kStagedWords];
};

// Returns the frame of output `output`, or null.
__device__ const JpegFrame* frame_at(const DecodeJpegParams& p, int64_t output) {
  int64_t row = p.rows[output] - p.first_row;
  if (p.in_order && row >= 0) row = output;
  return row >= 0 && row < p.frame_count ? p.frames + row : nullptr;
}

// Copies the words of the warp's segments to `staged`, lane after lane. Returns the address of this lane's words: in
// `staged`, or the original one if `staged` is too small.
__device__ const uint32_t* stage(const uint32_t* words, uint32_t count, uint32_t* staged) {
  constexpr unsigned kAll = 0xffffffffu;
  const unsigned lane = threadIdx.x % kWarp;
  uint32_t end = count;
  for (unsigned step = 1; step < kWarp; step *= 2) {
    const uint32_t previous_end = __shfl_up_sync(kAll, end, step);
    if (lane >= step) end = end > kStagedWords || previous_end > kStagedWords ? kStagedWords + 1 : end + previous_end;
  }
  const bool fits = end <= kStagedWords;
  const uint32_t begin = end - count;
  const auto address = reinterpret_cast<unsigned long long>(words);
  for (unsigned i = 0; i < kWarp; ++i) {
    const uint32_t to = __shfl_sync(kAll, begin, i);
    const uint32_t length = __shfl_sync(kAll, fits ? count : 0, i);
    const auto* from = reinterpret_cast<const uint32_t*>(__shfl_sync(kAll, address, i));
    for (uint32_t word = lane; word < length; word += kWarp) {
      __pipeline_memcpy_async(staged + to + word, from + word, sizeof(uint32_t));
    }
  }
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncwarp();
  return fits ? staged + begin : words;
}

// Each frame has `lanes` threads; all segments of a block have the same tables.
__global__ void __launch_bounds__(kScanThreads, 7)
    scan_segments(const __grid_constant__ DecodeJpegParams p, int64_t lanes) {
  __shared__ ScanShared shared;
  wait_for_work_before();
  const int64_t thread = blockIdx.x * int64_t{kScanThreads} + threadIdx.x;
  const int64_t output = thread / lanes;
  const auto segment = static_cast<int32_t>(thread - output * lanes);
  const JpegFrame* const frame = output < p.count ? frame_at(p, output) : nullptr;
  const bool has_segment = frame != nullptr && segment < frame->segment_count;
  if (!__syncthreads_or(has_segment)) return;

  // Without `one_table`, the whole block belongs to one frame.
  const JpegTables* const tables = p.tables + (p.one_table ? 0 : frame->tables);
  for (unsigned i = threadIdx.x; i < sizeof(JpegTables) / sizeof(uint4); i += kScanThreads) {
    __pipeline_memcpy_async(reinterpret_cast<uint4*>(&shared.tables) + i, reinterpret_cast<const uint4*>(tables) + i,
                            sizeof(uint4));
  }
  uint32_t first_byte = 0, bytes = 0;
  const uint32_t* words = p.words;
  if (has_segment) {
    const uint32_t* const begins = p.segments + frame->segments + segment;
    first_byte = begins[0] % 4;
    bytes = begins[1] - begins[0];
    words += (p.words_stride > 0 ? output * p.words_stride : frame->words) + begins[0] / 4;
  }
  words = stage(words, JpegBits::word_count(first_byte, bytes), shared.words[threadIdx.x / kWarp]);
  SharedCoefficients coefficients(shared.coefficients);
  __syncthreads();
  if (!has_segment) return;
  const JpegPlanes planes = jpeg_planes(*frame, p.height, p.width, p.channels);
  p.damage[output * p.most_segments + segment] =
      !decode_jpeg_segment(*frame, planes, shared.tables, p.long_entries, p.channels, segment, words, first_byte, bytes,
                           coefficients, p.planes + output * p.plane_bytes);
}

// ---- Chroma upsampling and colour: one block per group of rows of a frame ------------------------------------------

constexpr unsigned kColorThreads = 256;
constexpr int64_t kRunsOfThread = 4;  // if there are enough frames: starting a block costs as much as computing a run

__device__ void report_damage(const DecodeJpegParams& p, int64_t output) {
  if (p.is_pad != nullptr) p.is_pad[output] = true;
  if (p.damage_report == nullptr) return;
  p.damage_report->row = p.rows[output];
  __threadfence_system();
  atomicAdd_system(reinterpret_cast<unsigned long long*>(&p.damage_report->frames), 1ull);
}

// A group of rows is one contiguous part of the output. It is computed in shared memory and then written 16 bytes at a
// time.
__global__ void __launch_bounds__(kColorThreads)
    color_rows(const __grid_constant__ DecodeJpegParams p, int32_t rows_of_block, int32_t blocks_of_frame) {
  extern __shared__ uint4 shared[];
  wait_for_work_before();
  const int64_t output = blockIdx.x / blocks_of_frame;
  const int32_t block = blockIdx.x - static_cast<int32_t>(output * blocks_of_frame);
  const int32_t first_row = block * rows_of_block;
  const int32_t rows = min(rows_of_block, p.height - first_row);
  const int64_t pitch = int64_t{p.width} * p.channels;
  uint8_t* const out = p.out + (output * p.height + first_row) * pitch;
  const auto bytes = static_cast<int32_t>(rows * pitch);

  const JpegFrame* const frame = frame_at(p, output);
  if (frame == nullptr && p.leaves_others) return;
  bool is_damaged = false;
  if (frame != nullptr) {
    for (int32_t i = threadIdx.x; i < frame->segment_count; i += kColorThreads) {
      is_damaged |= p.damage[output * p.most_segments + i] != 0;
    }
  }
  is_damaged = __syncthreads_or(is_damaged) != 0;
  if (block == 0 && threadIdx.x == 0) {
    if (p.status != nullptr) p.status[output] = is_damaged;
    if (is_damaged) report_damage(p, output);
  }

  // `pixels` has the alignment of `out`, so that vectors of 16 bytes are aligned in both.
  const auto shift = static_cast<int32_t>(reinterpret_cast<uintptr_t>(out) % sizeof(uint4));
  uint8_t* const pixels = reinterpret_cast<uint8_t*>(shared) + shift;
  if (frame == nullptr || is_damaged) {
    for (int32_t i = threadIdx.x; i < bytes; i += kColorThreads) pixels[i] = 0;
  } else {
    const JpegPlanes planes = jpeg_planes(*frame, p.height, p.width, p.channels);
    const uint8_t* const samples = p.planes + output * p.plane_bytes;
    const int32_t runs = (p.width + kJpegRun - 1) / kJpegRun;
    const bool is_word_aligned = (shift | static_cast<int32_t>(pitch)) % 4 == 0;
    const int32_t row_step = static_cast<int32_t>(kColorThreads) / runs;
    const int32_t run_step = static_cast<int32_t>(kColorThreads) - row_step * runs;
    int32_t row = static_cast<int32_t>(threadIdx.x) / runs;
    int32_t run = static_cast<int32_t>(threadIdx.x) - row * runs;
    for (; row < rows; row += row_step) {
      const int32_t x = run * kJpegRun;
      uint8_t* const to = pixels + row * pitch + x * p.channels;
      const auto write = [&](const auto& words) {
        const int32_t byte_count = min(kJpegRun, p.width - x) * p.channels;
        if (is_word_aligned && byte_count == static_cast<int32_t>(sizeof(words))) {
          for (unsigned word = 0; word < sizeof(words) / 4; ++word) reinterpret_cast<uint32_t*>(to)[word] = words[word];
        } else {
          for (int32_t byte = 0; byte < static_cast<int32_t>(sizeof(words)); ++byte) {
            if (byte < byte_count) to[byte] = static_cast<uint8_t>(words[byte / 4] >> (8 * (byte % 4)));
          }
        }
      };
      if (p.channels == 3) {
        uint32_t rgb[6];
        jpeg_rgb_run(samples, *frame, planes, first_row + row, x, rgb);
        write(rgb);
      } else {
        uint32_t grey[2];
        jpeg_grey_run(samples, planes, first_row + row, x, grey);
        write(grey);
      }
      run += run_step;
      if (run >= runs) {
        run -= runs;
        ++row;
      }
    }
  }
  __syncthreads();
  const int32_t head = min(bytes, (16 - shift) % 16);
  const int32_t body = (bytes - head) / 16;
  for (int32_t i = threadIdx.x; i < body; i += kColorThreads) {
    reinterpret_cast<uint4*>(out + head)[i] = reinterpret_cast<const uint4*>(pixels + head)[i];
  }
  const int32_t edge_bytes = bytes - 16 * body;  // the bytes before and after the aligned body
  for (int32_t i = threadIdx.x; i < edge_bytes; i += kColorThreads) {
    const int32_t byte = i < head ? i : i + 16 * body;
    out[byte] = pixels[byte];
  }
}

// ---- Copying words from host memory, a frame per warp ---------------------------------------------------------------

// There are few blocks, so each fits on a multiprocessor beside blocks of scan_segments. Together they keep the link
// busy. More loads in flight would delay the decoding that runs at the same time.
constexpr unsigned kFetchBlocks = 24;
constexpr unsigned kFetchThreads = 128;
constexpr unsigned kFetchLoads = 4;  // loads of 16 bytes, in flight per thread

__global__ void __launch_bounds__(kFetchThreads) fetch_words(const __grid_constant__ DecodeJpegParams p) {
  wait_for_work_before();
  const int64_t warps = int64_t{gridDim.x} * (kFetchThreads / kWarp);
  const unsigned lane = threadIdx.x % kWarp;
  for (int64_t output = (blockIdx.x * kFetchThreads + threadIdx.x) / kWarp; output < p.count; output += warps) {
    const JpegFrame* const frame = frame_at(p, output);
    if (frame == nullptr) continue;
    const uint32_t count = (p.segments[frame->segments + frame->segment_count] + 15) / 16;
    const auto* const from = reinterpret_cast<const uint4*>(p.words + frame->words);
    auto* const to = reinterpret_cast<uint4*>(p.fetched + output * p.words_stride);
    for (uint32_t first = lane; first < count; first += kWarp * kFetchLoads) {
      uint4 loaded[kFetchLoads];
#pragma unroll
      for (unsigned i = 0; i < kFetchLoads; ++i) {
        if (first + i * kWarp < count) loaded[i] = from[first + i * kWarp];
      }
#pragma unroll
      for (unsigned i = 0; i < kFetchLoads; ++i) {
        if (first + i * kWarp < count) to[first + i * kWarp] = loaded[i];
      }
    }
  }
}

}  // namespace
}  // namespace robocache

extern "C" __attribute__((visibility("default"))) int robocache_cuda_fetch_jpegs(
    const robocache::DecodeJpegParams* params, int32_t device, void* stream_handle) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  return launch_overlapped(fetch_words, blocks_for(params->count, kFetchThreads / kWarp, kFetchBlocks), kFetchThreads,
                           0, static_cast<cudaStream_t>(stream_handle), *params);
}

extern "C" __attribute__((visibility("default"))) int robocache_cuda_decode_jpeg(
    const robocache::DecodeJpegParams* params, int32_t device, void* stream_handle) {
  using namespace robocache;
  const DecodeJpegParams& p = *params;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  const int64_t lanes =
      p.one_table ? p.most_segments : blocks_for(p.most_segments, kScanThreads) * int64_t{kScanThreads};
  cudaError_t code =
      launch_overlapped(scan_segments, blocks_for(p.count * lanes, kScanThreads), kScanThreads, 0, stream, p, lanes);
  if (code != cudaSuccess) return code;

  const int64_t pitch = int64_t{p.width} * p.channels;
  const int64_t runs = (p.width + kJpegRun - 1) / kJpegRun;
  const int64_t blocks_of_one_run = p.count * p.height * runs / kColorThreads;
  const int64_t runs_of_thread =
      std::clamp<int64_t>(blocks_of_one_run / (4 * multiprocessors(device)), 1, kRunsOfThread);
  const auto rows = static_cast<int32_t>(std::clamp<int64_t>(runs_of_thread * kColorThreads / runs, 1, p.height));
  const auto blocks_of_frame = static_cast<int32_t>(blocks_for(p.height, rows));
  const size_t shared_bytes = static_cast<size_t>(rows * pitch) + sizeof(uint4);
  if (shared_bytes > 48 * 1024) {
    code =
        cudaFuncSetAttribute(color_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (code != cudaSuccess) return code;
  }
  return launch_overlapped(color_rows, blocks_for(p.count * blocks_of_frame, 1), kColorThreads, shared_bytes, stream, p,
                           rows, blocks_of_frame);
}
