// Turns decoded frames into a batch: crop, resize, augment, normalise (rules 41, 42 and 46 of docs/rules.md). The CPU
// and CUDA give the same bits.
//
//   const ImageOptions options{.size = {{224, 224}}, .fit = ImageFit::kPad};
//   const ImageTransform transform({480, 640, 3, DType::kUInt8}, options, "camera");
//   std::vector<float> out(3 * 224 * 224);
//   transform.run(frame, {.seed = 0, .epoch = 0, .sample = 7}, 0, out.data());
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "robocache/core/device.hpp"
#include "robocache/core/dtype.hpp"
#include "robocache/image/frame.hpp"
#include "robocache/image/options.hpp"
#include "robocache/image/transform_params.hpp"

namespace robocache {

// The transform of one camera's frames. Several threads may use it at once.
class ImageTransform {
 public:
  // Frames are uint8 of 1 or 3 channels, or depth of 1 channel: uint16, which needs `unit_m`, the metres of one unit,
  // or float32 in metres. `key` names the camera, whose draws depend on it. Throws ArgumentError, ArgumentTypeError
  // that name the option: "crop", or with a key "delta_timestamps['key'].images.crop".
  ImageTransform(const FrameShape& from, const ImageOptions& options, std::string_view key,
                 std::optional<double> unit_m = {});

  std::vector<int64_t> shape() const;  // of an output frame: [C, H, W] or [H, W, C]
  DType dtype() const { return params_.out_dtype; }
  int64_t bytes() const;  // of an output frame
  const TransformParams& params() const { return params_; }

  // Transforms one contiguous frame [H, W, C] to `out`; null gives a black frame. `step`, the frame's index in its
  // window, matters only with per_frame.
  void run(const void* frame, const ImageDraw& draw, int64_t step, void* out) const;

  // Converts a camera's 3x3 row-major matrix from input frames to this output frame. Pixel centres have whole
  // coordinates.
  void intrinsics(const double in[9], const ImageDraw& draw, int64_t step, double out[9]) const;

  // Transforms the frames of `from` to [count, steps] outputs; sample k is k samples after `first`. All memory is on
  // the device, and `workspace` has workspace_bytes(count * steps) bytes. The work goes to `stream`. Throws
  // DeviceError.
  void run_on_device(const FrameChoice& from, const ImageDraw& first, int64_t count, int64_t steps, void* out,
                     void* workspace, Device device, CudaStream stream) const;
  int64_t workspace_bytes(int64_t frames) const;

  // Writes the matrices of [count, steps] outputs (with per_frame), or of each sample's first step, to `out`. `numbers`
  // holds the number of each output's frame; this camera's frames have the numbers [begin, end). A number below 1 gives
  // a matrix of 0; matrices of other cameras' frames stay unchanged. Memory and errors as above.
  void intrinsics_on_device(const std::vector<double>& matrix, const int64_t* numbers, int64_t begin, int64_t end,
                            const ImageDraw& first, int64_t count, int64_t steps, float* out, Device device,
                            CudaStream stream) const;

 private:
  bool is_in_passes() const;

  TransformParams params_{};
};

}  // namespace robocache
