// JPEG files to pixels, as a plain function of tensors.
#pragma once

#include "robocache/core/device.hpp"
#include "robocache/core/tensor_view.hpp"

namespace robocache {

// What decode_jpeg writes: uint8 [N, height, width, channels] on the device of `blobs`, without memory, as the first
// frame's header says. Throws as decode_jpeg; ArgumentError where there is no frame.
TensorView decode_jpeg_output(const TensorView& blobs, const TensorView& offsets, CudaStream stream);

// `blobs` uint8 [bytes] and `offsets` int64 [N + 1], both dense and of one device: frame i is bytes
// [offsets[i], offsets[i + 1]). `out` is uint8 [N, height, width, channels], dense, the shape of every frame. The
// pixels are decode_frame's. Throws ArgumentError and ArgumentTypeError for tensors that are otherwise; FrameError
// naming the first frame that does not decode: "frames[7]: ...".
//
// On CUDA the frames are what jpeg_frames.hpp takes, as segment_jpeg makes them. The host looks at their headers, so
// files go there and back, device memory is allocated and the call waits; resident_jpegs.hpp does that once for frames
// that are decoded again and again. Throws DeviceError and OutOfMemory, too.
void decode_jpeg(const TensorView& blobs, const TensorView& offsets, const TensorView& out, CudaStream stream);

}  // namespace robocache
