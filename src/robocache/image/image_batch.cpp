#include "robocache/image/image_batch.hpp"

#include <string>

#include "robocache/core/arguments.hpp"
#include "robocache/core/thread_pool.hpp"

namespace robocache {
namespace {

FrameShape shape_of(const TensorView& frames) {
  if (frames.ndim != 4) {
    refuse("frames: expected [N, H, W, C], got ", shape_string(frames));
  }
  check_dense(frames, "frames");
  return {frames.shape[1], frames.shape[2], frames.shape[3], frames.dtype};
}

}  // namespace

ImageBatch::ImageBatch(const TensorView& frames, const std::optional<TensorView>& rows, const ImageOptions& options,
                       std::optional<double> unit_m)
    : frames_(frames), rows_(rows), transform_(shape_of(frames), options, "", unit_m) {
  output_.dtype = transform_.dtype();
  output_.device = frames.device;
  int64_t count = frames.shape[0];
  output_.shape[static_cast<size_t>(output_.ndim++)] = count;
  if (rows) {
    if (rows->dtype != DType::kInt64) refuse_type("rows: expected int64, got ", dtype_name(rows->dtype));
    if (rows->ndim != 1 && rows->ndim != 2) {
      refuse("rows: expected [B] or [B, T], got ", shape_string(*rows));
    }
    check_device(*rows, "rows", frames.device, {}, "frames");
    check_dense(*rows, "rows");
    output_.ndim = rows->ndim;
    output_.shape = rows->shape;
    count = rows->shape[0];
    if (rows->ndim == 2) steps_ = rows->shape[1];
  }
  count_ = count;
  for (const int64_t extent : transform_.shape()) output_.shape[static_cast<size_t>(output_.ndim++)] = extent;
  int64_t stride = 1;
  for (int d = output_.ndim; d-- > 0;) {
    output_.strides[static_cast<size_t>(d)] = stride;
    stride *= output_.shape[static_cast<size_t>(d)];
  }
}

void ImageBatch::run(const ImageDraw& first, const TensorView& out, void* workspace, CudaStream stream) const {
  check_expected(out, "out", output_, {}, "frames");
  check_dense(out, "out");
  if (overlaps(out, frames_)) refuse("out: expected memory apart from frames, got an overlap");
  if (rows_ && overlaps(out, *rows_)) refuse("out: expected memory apart from rows, got an overlap");
  const auto* const rows = rows_ ? static_cast<const int64_t*>(rows_->data) : nullptr;
  if (frames_.device.is_cuda()) {
    transform_.run_on_device({.pixels = frames_.data, .frames = frames_.shape[0], .rows = rows}, first, count_, steps_,
                             out.data, workspace, frames_.device, stream);
    return;
  }
  const int64_t n = count_ * steps_;
  for (int64_t i = 0; rows != nullptr && i < n; ++i) {
    if (rows[i] < frames_.shape[0]) continue;
    refuse("rows: expected below ", std::to_string(frames_.shape[0]), ", the number of frames, got ",
           std::to_string(rows[i]), " at ", std::to_string(i));
  }
  const int64_t frame_bytes = frames_.strides[0] * dtype_size(frames_.dtype);
  parallel_for(n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = rows != nullptr ? rows[i] : i;
      const void* const frame = row < 0 ? nullptr : static_cast<const char*>(frames_.data) + row * frame_bytes;
      transform_.run(frame, first.behind(i / steps_), i % steps_,
                     static_cast<char*>(out.data) + i * transform_.bytes());
    }
  });
}

}  // namespace robocache
