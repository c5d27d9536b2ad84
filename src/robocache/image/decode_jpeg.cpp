#include "robocache/image/decode_jpeg.hpp"

#include <numeric>
#include <span>
#include <vector>

#include "robocache/core/arguments.hpp"
#include "robocache/core/error.hpp"
#include "robocache/image/codec.hpp"
#include "robocache/image/frames.hpp"

namespace robocache {
namespace {

struct Files {
  std::span<const uint8_t> bytes;
  std::span<const int64_t> offsets;  // [frames + 1]
};

Files checked_files(const TensorView& blobs, const TensorView& offsets) {
  if (blobs.dtype != DType::kUInt8) refuse_type("blobs: expected uint8, got ", dtype_name(blobs.dtype));
  if (blobs.ndim != 1) refuse("blobs: expected [bytes], got ", blobs.describe());
  if (offsets.dtype != DType::kInt64) refuse_type("offsets: expected int64, got ", dtype_name(offsets.dtype));
  if (offsets.ndim != 1 || offsets.shape[0] < 1) refuse("offsets: expected [N + 1], got ", offsets.describe());
  check_dense(blobs, "blobs");
  check_dense(offsets, "offsets");
  check_device(offsets, "offsets", blobs.device, {}, "blobs");
  if (blobs.device.is_cuda()) refuse("blobs: expected on cpu, got on ", device_name(blobs.device));
  return {{static_cast<const uint8_t*>(blobs.data), static_cast<size_t>(blobs.shape[0])},
          {static_cast<const int64_t*>(offsets.data), static_cast<size_t>(offsets.shape[0])}};
}

}  // namespace

TensorView decode_jpeg_output(const TensorView& blobs, const TensorView& offsets) {
  const Files files = checked_files(blobs, offsets);
  if (files.offsets.size() < 2) refuse("offsets: expected at least one frame where no out is given, got none");
  FrameShape shape;
  for_each_frame(1, [&](int64_t i) { shape = frame_shape(Codec::kJpeg, blob_at(files.bytes, files.offsets, i)); });
  return TensorView::contiguous(nullptr, DType::kUInt8,
                                {offsets.shape[0] - 1, shape.height, shape.width, shape.channels}, blobs.device);
}

void decode_jpeg(const TensorView& blobs, const TensorView& offsets, const TensorView& out) {
  const Files files = checked_files(blobs, offsets);
  const int64_t frames = offsets.shape[0] - 1;
  if (out.dtype != DType::kUInt8) refuse_type("out: expected uint8, got ", dtype_name(out.dtype));
  if (out.ndim != 4 || out.shape[0] != frames) {
    refuse("out: expected [", std::to_string(frames), ", height, width, channels], got ", out.describe());
  }
  check_device(out, "out", blobs.device, {}, "blobs");
  check_dense(out, "out");
  if (overlaps(out, blobs) || overlaps(out, offsets)) refuse("out: expected memory of its own, got some of an input");
  const FrameShape shape{out.shape[1], out.shape[2], out.shape[3], DType::kUInt8};
  for_each_frame(frames, [&](int64_t i) {
    decode_frame(Codec::kJpeg, blob_at(files.bytes, files.offsets, i), shape,
                 static_cast<uint8_t*>(out.data) + i * shape.bytes());
  });
}

}  // namespace robocache
