// From decoded frames to a batch: crop, resize, jitter, normalise (rules 41, 42 and 46 of docs/rules.md). The same bits on the
// CPU and on CUDA.
//
//   const ImageTransform transform({480, 640, 3, DType::kUInt8}, {.size = {{224, 224}}, .fit = ImageFit::kPad}, "camera");
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

// For the frames of one camera. May be used by several threads at once.
class ImageTransform {
 public:
  // Frames are uint8 of 1 or 3 channels, or depth of one: uint16, which needs `unit_m`, the metres of one unit, or float32
  // metres. `key` is the camera's, for the draws. Throws ArgumentError, ArgumentTypeError that name the option: "crop", of a
  // camera with a key "images['key'].crop".
  ImageTransform(const FrameShape& from, const ImageOptions& options, std::string_view key,
                 std::optional<double> unit_m = {});

  std::vector<int64_t> shape() const;  // of an output frame: [C, H, W] or [H, W, C]
  DType dtype() const { return params_.out_dtype; }
  int64_t bytes() const;  // of an output frame
  const TransformParams& params() const { return params_; }

  // One frame [H, W, C], or null for a black one, to `out`, dense. `step`, the frame's place in its window, counts with
  // per_frame alone.
  void run(const void* frame, const ImageDraw& draw, int64_t step, void* out) const;

  // A camera's matrix, 3x3 row-major, of frames as they come: that of the same frame as it goes out. Centres of pixels are
  // whole numbers.
  void intrinsics(const double in[9], const ImageDraw& draw, int64_t step, double out[9]) const;

  // The frames of `from` to [count, steps] outputs; sample k of `count` has the draw first.sample + k. All memory on the
  // device, work on its stream. Throws DeviceError.
  void run_on_device(const FrameChoice& from, const ImageDraw& first, int64_t count, int64_t steps, void* out,
                     Device device, CudaStream stream) const;

  // The matrices of [count, steps] outputs with per_frame, else of each sample's first step, to `out`: of a camera whose
  // frames have the numbers [begin, end), 0 below 1; others' are left as they are. As above.
  void intrinsics_on_device(const std::vector<double>& matrix, const int64_t* numbers, int64_t begin, int64_t end,
                            const ImageDraw& first, int64_t count, int64_t steps, float* out, Device device,
                            CudaStream stream) const;

 private:
  TransformParams params_{};
};

}  // namespace robocache
