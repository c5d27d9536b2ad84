// An ImageTransform as an operation on tensors.
//
// `frames` is [N, H, W, C] uint8 with C 1 or 3, or depth [N, H, W, 1]: uint16 with unit_m, or float32. It is
// contiguous, on the CPU or a CUDA device. `rows` is int64 [B] or [B, T], contiguous, on the same device. It holds the
// index of each output's frame; a negative index gives black. Without rows, each frame gives one output and B = N. The
// output is [B, (T,) C, h, w] or [B, (T,) h, w, C], of the options' dtype. An index of N or more is refused on the CPU
// and gives black on CUDA.
#pragma once

#include <optional>

#include "robocache/core/device.hpp"
#include "robocache/core/tensor_view.hpp"
#include "robocache/image/transform.hpp"

namespace robocache {

class ImageBatch {
 public:
  // Does not read the tensors' memory. Throws ArgumentError, ArgumentTypeError.
  ImageBatch(const TensorView& frames, const std::optional<TensorView>& rows, const ImageOptions& options,
             std::optional<double> unit_m = {});

  const TensorView& output() const { return output_; }  // without memory

  // Needed on a CUDA device; 0 on the CPU.
  int64_t workspace_bytes() const { return frames_.device.is_cuda() ? transform_.workspace_bytes(count_ * steps_) : 0; }

  // `first` is the random draw of sample 0; sample b takes first.behind(b). `out` is contiguous and does not overlap an
  // input; `workspace` has workspace_bytes(). Throws ArgumentError, ArgumentTypeError, DeviceError.
  void run(const ImageDraw& first, const TensorView& out, void* workspace, CudaStream stream) const;

 private:
  TensorView frames_;
  std::optional<TensorView> rows_;
  ImageTransform transform_;
  int64_t count_ = 0;  // B
  int64_t steps_ = 1;
  TensorView output_;
};

}  // namespace robocache
