// What is asked for of a camera's frames on their way into a batch, and the checks of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "robocache/core/dtype.hpp"

namespace robocache {

enum class ImageFit : uint8_t {
  kStretch,  // the sides go each by its own factor
  kPad,      // the whole frame, black beside it: a letterbox
  kCrop,     // the middle of the frame, as much of it as has the sides' proportion
};

enum class CropAt : uint8_t { kRandom, kCenter };

enum class ImageLayout : uint8_t { kChw, kHwc };

struct ImageSize {
  int64_t height, width;

  bool operator==(const ImageSize&) const = default;
};

// A number is drawn evenly from [low, high].
struct ImageRange {
  double low, high;
};

// The order of the steps is that of the members (rule 41 of docs/rules.md). Of depth the geometry alone may be asked for.
struct ImageOptions {
  std::optional<ImageRange> crop_scale = {};  // the part of the frame's area to take, in its proportions
  std::optional<ImageSize> size = {};  // to resize to; none: no resizing, but what crop_scale took becomes a frame
  ImageFit fit = ImageFit::kStretch;
  std::optional<ImageSize> crop = {};  // of the resized frame
  CropAt crop_at = CropAt::kRandom;    // where crop and crop_scale lie
  int64_t shift = 0;                   // instead of crop: up to so many pixels each way, the edge repeated behind
  std::optional<ImageRange> brightness = {}, contrast = {}, saturation = {};  // factors
  std::optional<ImageRange> hue = {};                                         // turns, from -0.5 to 0.5
  std::vector<double> mean = {}, stddev = {};  // of values from 0 to 1; one, or one a channel; none: 0 and 1
  DType dtype = DType::kFloat32;               // or float16, bfloat16; uint8 is not normalised
  ImageLayout layout = ImageLayout::kChw;
  bool per_frame = false;                  // each frame of a window has draws of its own
  std::vector<std::string> together = {};  // cameras that share this one's draws
};

// From a JSON object of Python's names (`std` for stddev), none of which must be there. A range may be one number: x of
// brightness, contrast and saturation is [max(0, 1 - x), 1 + x], of hue [-x, x], of crop_scale [x, x]; a mean or std one
// number or "imagenet". Throws ArgumentError, ArgumentTypeError whose text begins with `of` and the name.
ImageOptions image_options_from_json(std::string_view json, std::string_view of = "");

// The checks that need no frame, likewise.
void check_image_options(const ImageOptions& options, std::string_view of = "");

}  // namespace robocache
