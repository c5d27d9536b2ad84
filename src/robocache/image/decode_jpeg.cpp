#include "robocache/image/decode_jpeg.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "robocache/core/arguments.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/core/error.hpp"
#include "robocache/image/codec.hpp"
#include "robocache/image/frames.hpp"
#include "robocache/image/resident_jpegs.hpp"

namespace robocache {
namespace {

struct Files {
  std::span<const uint8_t> bytes;
  std::span<const int64_t> offsets;  // [frames + 1]
};

void check_files(const TensorView& blobs, const TensorView& offsets) {
  if (blobs.dtype != DType::kUInt8) refuse_type("blobs: expected uint8, got ", dtype_name(blobs.dtype));
  if (blobs.ndim != 1) refuse("blobs: expected [bytes], got ", blobs.describe());
  if (offsets.dtype != DType::kInt64) refuse_type("offsets: expected int64, got ", dtype_name(offsets.dtype));
  if (offsets.ndim != 1 || offsets.shape[0] < 1) refuse("offsets: expected [N + 1], got ", offsets.describe());
  check_dense(blobs, "blobs");
  check_dense(offsets, "offsets");
  check_device(offsets, "offsets", blobs.device, {}, "blobs");
}

// Gives the host the elements of a contiguous tensor on any device.
template <class T>
class OnHost {
 public:
  OnHost(const TensorView& tensor, CudaStream stream) {
    const auto count = static_cast<size_t>(tensor.numel());
    elements_ = {static_cast<const T*>(tensor.data), count};
    if (!tensor.device.is_cuda()) return;
    copy_.resize(count);
    elements_ = copy_;
    const CudaBackend& backend = cuda_backend();
    const int32_t device = tensor.device.index;
    check_cuda(backend.copy_to_host(device, copy_.data(), tensor.data, count * sizeof(T), stream.handle),
               "decode_jpeg");
    check_cuda(backend.synchronize(device, stream.handle), "decode_jpeg");
  }
  OnHost(const OnHost&) = delete;
  OnHost& operator=(const OnHost&) = delete;

  std::span<const T> elements() const { return elements_; }

 private:
  std::vector<T> copy_;
  std::span<const T> elements_;
};

void decode_on_cuda(const Files& files, const TensorView& out, CudaStream stream) {
  const int64_t count = out.shape[0];
  const Device device = out.device;
  std::vector<int64_t> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);
  const auto name = [](int64_t i) { return "frames[" + std::to_string(i) + "]"; };
  const JpegFrames frames = prepare_jpeg_frames(files.bytes, files.offsets, rows, name);
  const FrameShape expected{out.shape[1], out.shape[2], out.shape[3]};
  if (const FrameShape shape{frames.height, frames.width, frames.channels}; shape != expected) {
    throw FrameError(name(0) + ": JPEG: expected " + expected.describe() + ", got " + shape.describe());
  }
  const ResidentJpegs resident(frames, device, Tier::kDevice);
  DeviceBuffer row_memory(device, rows.size() * sizeof(int64_t));
  row_memory.fill_from_host(rows.data(), row_memory.bytes());
  std::vector<int32_t> status(rows.size());
  const DeviceBuffer status_memory(device, status.size() * sizeof(int32_t));
  const DeviceBuffer workspace(device, static_cast<size_t>(resident.workspace_bytes(count)));
  resident.decode(static_cast<const int64_t*>(row_memory.data()), count, static_cast<uint8_t*>(out.data),
                  static_cast<int32_t*>(status_memory.data()), workspace.data(), stream);
  const CudaBackend& backend = cuda_backend();
  check_cuda(
      backend.copy_to_host(device.index, status.data(), status_memory.data(), status_memory.bytes(), stream.handle),
      "decode_jpeg");
  check_cuda(backend.synchronize(device.index, stream.handle), "decode_jpeg");
  const auto damaged = std::find(status.begin(), status.end(), 1);
  if (damaged != status.end())
    throw FrameError(name(damaged - status.begin()) + ": JPEG: its entropy-coded data is damaged");
}

}  // namespace

TensorView decode_jpeg_output(const TensorView& blobs, const TensorView& offsets, CudaStream stream) {
  check_files(blobs, offsets);
  if (offsets.shape[0] < 2) refuse("offsets: expected at least one frame where no out is given, got none");
  const OnHost<int64_t> frame_offsets(offsets, stream);
  const OnHost<uint8_t> bytes(blobs, stream);
  FrameShape shape;
  for_each_frame(
      1, [&](int64_t i) { shape = frame_shape(Codec::kJpeg, blob_at(bytes.elements(), frame_offsets.elements(), i)); });
  return TensorView::contiguous(nullptr, DType::kUInt8,
                                {offsets.shape[0] - 1, shape.height, shape.width, shape.channels}, blobs.device);
}

void decode_jpeg(const TensorView& blobs, const TensorView& offsets, const TensorView& out, CudaStream stream) {
  check_files(blobs, offsets);
  const int64_t frames = offsets.shape[0] - 1;
  if (out.dtype != DType::kUInt8) refuse_type("out: expected uint8, got ", dtype_name(out.dtype));
  if (out.ndim != 4 || out.shape[0] != frames) {
    refuse("out: expected [", std::to_string(frames), ", height, width, channels], got ", out.describe());
  }
  check_device(out, "out", blobs.device, {}, "blobs");
  check_dense(out, "out");
  if (overlaps(out, blobs) || overlaps(out, offsets))
    refuse("out: expected memory apart from blobs and offsets, got an overlap");
  if (frames == 0) return;
  const OnHost<int64_t> frame_offsets(offsets, stream);
  const OnHost<uint8_t> bytes(blobs, stream);
  const Files files{bytes.elements(), frame_offsets.elements()};
  if (out.device.is_cuda()) return decode_on_cuda(files, out, stream);
  const FrameShape shape{out.shape[1], out.shape[2], out.shape[3], DType::kUInt8};
  for_each_frame(frames, [&](int64_t i) {
    decode_frame(Codec::kJpeg, blob_at(files.bytes, files.offsets, i), shape,
                 static_cast<uint8_t*>(out.data) + i * shape.bytes());
  });
}

}  // namespace robocache
