// JPEG frames in memory that a CUDA device reads. Two kernels decode any selection of them: the first has a thread for
// each segment (entropy coding, dequantisation, inverse DCT), the second upsamples chroma and converts colours. The
// pixels are libjpeg-turbo's, bit for bit.
#pragma once

#include <cstdint>

#include "robocache/core/backend.hpp"
#include "robocache/image/jpeg_frames.hpp"
#include "robocache/source/tier.hpp"

namespace robocache {

// Options of a decoding: its frames' place in a batch, the marks of damaged frames, and data that fetch() has copied.
struct JpegMarks {
  int64_t first_row = 0;                // the row number of the first frame
  bool leaves_others = false;           // leave `out` unchanged for rows outside the frames
  bool* is_pad = nullptr;               // [count]: set to true if the frame is damaged; other elements stay as they are
  JpegDamage* damage_report = nullptr;  // counts damaged frames, where the host can read it
  const void* fetched = nullptr;        // the memory that fetch() filled for the same rows, with this stride
  int64_t fetched_stride = 0;
};

class ResidentJpegs {
 public:
  ResidentJpegs() = default;
  // Copies the frames to memory of `device`, a CUDA device. With kPinned it keeps the entropy-coded data, which is
  // nearly everything, in pinned host memory, which the kernel reads across the link. Returns when the copies are
  // complete. Throws ArgumentError for another tier or device, DeviceError, OutOfMemory.
  ResidentJpegs(const JpegFrames& frames, Device device, Tier tier);

  // Takes frames whose words the caller keeps readable by the device's kernels as long as this object lives.
  ResidentJpegs(const JpegFrames& frames, const uint32_t* words, Device device);

  // Returns the bytes that the frames take in the memory of the tier.
  static int64_t bytes(const JpegFrames& frames) {
    return static_cast<int64_t>(frames.words.size() * sizeof(uint32_t));
  }

  Device device() const { return device_; }
  int64_t frame_count() const { return params_.frame_count; }
  int32_t height() const { return params_.height; }
  int32_t width() const { return params_.width; }
  int32_t channels() const { return params_.channels; }

  // Returns the size of the workspace for decoding `count` frames at once.
  int64_t workspace_bytes(int64_t count) const;

  // Returns the most bytes of entropy-coded data of any frame; a multiple of 16.
  int64_t largest_data_bytes() const { return largest_data_bytes_; }

  // Queues a copy of the entropy-coded data of frames rows[0..count), counted from `first_row`, to `to`. The data of
  // frame i begins at byte i * stride; `stride` is a multiple of 16 and at least largest_data_bytes(). All memory is on
  // the device, 16-byte aligned. Throws DeviceError.
  void fetch(const int64_t* rows, int64_t count, int64_t first_row, void* to, int64_t stride, CudaStream stream) const;

  // Queues the decoding of frames rows[0..count) to `out`, uint8 [count, height, width, channels]. A row without a
  // frame gives black. If the entropy-coded data of frame rows[i] is damaged, the output is black and status[i] becomes
  // 1, else 0; `status` may be null. All memory is on the device; the workspace is aligned to 256 bytes. Allocates
  // nothing and waits for nothing. Throws DeviceError.
  void decode(const int64_t* rows, int64_t count, uint8_t* out, int32_t* status, void* workspace, CudaStream stream,
              const JpegMarks& marks = {}) const;

 private:
  Device device_;
  DeviceBuffer device_words_;
  PinnedBuffer pinned_words_;
  DeviceBuffer segments_, frames_, tables_, long_entries_;
  DecodeJpegParams params_{};  // for every call, without the arguments of decode()
  int64_t largest_data_bytes_ = 0;
};

// Decodes frames that come with a batch: `memory` is a copy of pack_jpegs' memory on the device, 256-byte aligned.
// Frame i is black if rows[i] is below marks.first_row.
int64_t packed_jpegs_workspace_bytes(const FrameShape& shape, int64_t count);
void decode_packed_jpegs(const PackedJpegs& packed, const void* memory, const FrameShape& shape, const int64_t* rows,
                         int64_t count, uint8_t* out, void* workspace, Device device, CudaStream stream,
                         const JpegMarks& marks);

}  // namespace robocache
