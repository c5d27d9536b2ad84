// JPEG frames that lie where a CUDA device reaches them and are decoded there, any of them at any time, in two kernels:
// a thread for each segment (entropy coding, dequantisation, inverse DCT), then chroma to full size and colour. The
// pixels are libjpeg-turbo's, bit for bit.
#pragma once

#include <cstdint>

#include "robocache/core/backend.hpp"
#include "robocache/image/jpeg_frames.hpp"
#include "robocache/source/tier.hpp"

namespace robocache {

// Beside what decoding always does.
struct JpegMarks {
  int64_t first_row = 0;          // what the first frame's row is called
  bool leaves_others = false;     // of rows that are none of the frames `out` stays as it is
  bool* is_pad = nullptr;         // [count]: true where a frame is damaged; the others stay as they are
  JpegDamage* found = nullptr;    // where the host reads it: counts them
  const void* fetched = nullptr;  // what fetch() has made of the same rows, by this stride
  int64_t fetched_stride = 0;
};

class ResidentJpegs {
 public:
  ResidentJpegs() = default;
  // Copies the frames to memory of `device`, a CUDA device; with kPinned their entropy-coded data, nearly all of it, to
  // pinned host memory, which the kernel reads across the link. Returns when they are there.
  // Throws ArgumentError for another tier or device, DeviceError, OutOfMemory.
  ResidentJpegs(const JpegFrames& frames, Device device, Tier tier);

  // Of frames whose words somebody else keeps where the device's kernels read them, as long as this lives.
  ResidentJpegs(const JpegFrames& frames, const uint32_t* words, Device device);

  // What the frames take: of the tier's memory, and of the device's besides.
  static int64_t bytes(const JpegFrames& frames) {
    return static_cast<int64_t>(frames.words.size() * sizeof(uint32_t));
  }
  static int64_t table_bytes(const JpegFrames& frames);

  Device device() const { return device_; }
  int64_t frame_count() const { return params_.frame_count; }
  int32_t height() const { return params_.height; }
  int32_t width() const { return params_.width; }
  int32_t channels() const { return params_.channels; }

  // Of the workspace that decoding `count` frames at once takes.
  int64_t workspace_bytes(int64_t count) const;

  // Of entropy-coded data, that a frame has at most; a multiple of 16.
  int64_t largest_data_bytes() const { return largest_data_bytes_; }

  // Queues a copy of the entropy-coded data of frames rows[0..count), counted from `first_row`, to `to`: the i-th one's is
  // at i * stride bytes, a multiple of 16 and at least largest_data_bytes(). All memory is the device's, 16-byte aligned.
  // Throws DeviceError.
  void fetch(const int64_t* rows, int64_t count, int64_t first_row, void* to, int64_t stride, CudaStream stream) const;

  using Marks = JpegMarks;

  // Queues the decoding of frames rows[0..count) to `out`, uint8 [count, height, width, channels]. A row below the
  // first or past the last frame is black. status[i], unless it is null, becomes 1, and the frame black, where the
  // entropy-coded data of rows[i] is damaged, else 0. All memory is the device's; the workspace is aligned to 256
  // bytes. Allocates nothing and waits for nothing. Throws DeviceError.
  void decode(const int64_t* rows, int64_t count, uint8_t* out, int32_t* status, void* workspace, CudaStream stream,
              const Marks& marks) const;
  void decode(const int64_t* rows, int64_t count, uint8_t* out, int32_t* status, void* workspace,
              CudaStream stream) const {
    decode(rows, count, out, status, workspace, stream, {});
  }

 private:
  Device device_;
  DeviceBuffer device_words_;
  PinnedBuffer pinned_words_;
  DeviceBuffer segments_, frames_, tables_, long_entries_;
  DecodeJpegParams params_{};  // of every call, but for what decode() is given
  int64_t largest_data_bytes_ = 0;
};

// The same of frames that a batch brings along: what pack_jpegs made, copied to `memory` of the device, 256-byte aligned.
// Frame i is black where rows[i] is below marks.first_row.
int64_t packed_jpegs_workspace_bytes(const FrameShape& shape, int64_t count);
void decode_packed_jpegs(const PackedJpegs& packed, const void* memory, const FrameShape& shape, const int64_t* rows,
                         int64_t count, uint8_t* out, void* workspace, Device device, CudaStream stream,
                         const JpegMarks& marks);

}  // namespace robocache
