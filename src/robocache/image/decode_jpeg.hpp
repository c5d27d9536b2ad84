// Decodes JPEG files to pixels, as a function of tensors.
#pragma once

#include "robocache/core/device.hpp"
#include "robocache/core/tensor_view.hpp"

namespace robocache {

// Returns the tensor that decode_jpeg writes, without memory: uint8 [N, height, width, channels] on the device of
// `blobs`, with the shape of the first frame's header. Throws like decode_jpeg, and ArgumentError if there is no frame.
TensorView decode_jpeg_output(const TensorView& blobs, const TensorView& offsets, CudaStream stream);

// `blobs` is uint8 [bytes] and `offsets` int64 [N + 1], both contiguous and on one device. Frame i is bytes
// [offsets[i], offsets[i + 1]). `out` is uint8 [N, height, width, channels], contiguous; all frames have that shape.
// The pixels equal those of decode_frame. Throws ArgumentError and ArgumentTypeError for other tensors, and FrameError
// that names the first frame that does not decode: "frames[7]: ...".
//
// On CUDA, the frames must be in the form that jpeg_frames.hpp accepts, as from segment_jpeg. The host reads their
// headers: the files are copied to the host and back, device memory is allocated, and the call waits.
// resident_jpegs.hpp does this once for frames that are decoded repeatedly. Also throws DeviceError and OutOfMemory.
void decode_jpeg(const TensorView& blobs, const TensorView& offsets, const TensorView& out, CudaStream stream);

}  // namespace robocache
