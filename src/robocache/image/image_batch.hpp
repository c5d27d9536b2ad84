// An ImageTransform as an operation on tensors.
//
// frames [N, H, W, C] uint8, C 1 or 3, or depth [N, H, W, 1], uint16 with unit_m or float32; dense, on the CPU or a CUDA
// device. rows int64 [B] or [B, T], dense, there too: which frame each output is; below 0 is black. None: each frame once,
// B = N. The output is [B, (T,) C, h, w], or [B, (T,) h, w, C], of the options' dtype.
// A row of N or more is refused on the CPU; on CUDA it is black.
#pragma once

#include <optional>

#include "robocache/core/device.hpp"
#include "robocache/core/tensor_view.hpp"
#include "robocache/image/transform.hpp"

namespace robocache {

class ImageBatch {
 public:
  // Reads no memory of the tensors. Throws ArgumentError, ArgumentTypeError.
  ImageBatch(const TensorView& frames, const std::optional<TensorView>& rows, const ImageOptions& options,
             std::optional<double> unit_m = {});

  const TensorView& output() const { return output_; }  // without memory

  // Sample b of B has the draw first.sample + b. `out` is dense and does not overlap an input. Throws ArgumentError,
  // ArgumentTypeError, DeviceError.
  void run(const ImageDraw& first, const TensorView& out, CudaStream stream) const;

 private:
  TensorView frames_;
  std::optional<TensorView> rows_;
  ImageTransform transform_;
  int64_t count_ = 0;  // B
  int64_t steps_ = 1;
  TensorView output_;
};

}  // namespace robocache
