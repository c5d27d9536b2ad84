// The options that transform a camera's frames for a batch, and their checks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "robocache/core/dtype.hpp"
#include "robocache/core/enum_names.hpp"
#include "robocache/core/fields.hpp"

namespace robocache {

enum class ImageFit : uint8_t {
  kStretch,  // each side is scaled by its own factor
  kPad,      // the whole frame is scaled, with black bars: a letterbox
  kCrop,     // the largest centred part of the frame that has the proportions of `size`
};
template <>
inline constexpr std::string_view kNames<ImageFit>[] = {"stretch", "pad", "crop"};

// How a resize weighs pixels. All but kNearest are antialiased: they cover more pixels where a side shrinks.
enum class ImageInterpolation : uint8_t {
  kBilinear,
  kNearest,  // the pixel that contains the centre
  kBicubic,  // Keys' cubic with a = -1/2, as PIL's and antialiased torch's
  kArea,     // the mean over the area of the result's pixel
};
template <>
inline constexpr std::string_view kNames<ImageInterpolation>[] = {"bilinear", "nearest", "bicubic", "area"};

enum class CropAt : uint8_t { kRandom, kCenter };
template <>
inline constexpr std::string_view kNames<CropAt>[] = {"random", "center"};

enum class ImageLayout : uint8_t { kChw, kHwc };
template <>
inline constexpr std::string_view kNames<ImageLayout>[] = {"chw", "hwc"};

struct ImageSize {
  int64_t height, width;

  bool operator==(const ImageSize&) const = default;
};

// A number is drawn uniformly from [low, high].
struct ImageRange {
  double low, high;
};

// The steps, in the order in which they are applied (rule 41 of docs/rules.md). Depth takes only the geometric ones.
struct ImageOptions {
  std::optional<ImageRange> crop_scale = {};  // the share of the frame's area to cut out, with the frame's proportions
  // The size to resize to; without it, the part that crop_scale cuts out keeps its size.
  std::optional<ImageSize> size = {};
  ImageFit fit = ImageFit::kStretch;
  ImageInterpolation interpolation = ImageInterpolation::kBilinear;  // of the resize; depth always uses kNearest
  std::optional<ImageSize> crop = {};                                // from the resized frame
  CropAt crop_at = CropAt::kRandom;                                  // the position of crop and crop_scale
  int64_t shift = 0;  // instead of crop: moves by up to this many pixels in each direction and repeats the edge
  double flip_horizontal = 0, flip_vertical = 0;  // probabilities; one draw for all cameras and frames of a sample
  std::optional<ImageRange> rotation = {};        // degrees, counter-clockwise, about the centre
  std::optional<ImageRange> blur = {};            // the standard deviation of a Gaussian, in pixels
  int64_t blur_kernel = 0;                        // the Gaussian's width in pixels, odd
  std::optional<ImageRange> brightness = {}, contrast = {}, saturation = {};  // factors
  std::optional<ImageRange> hue = {};                                         // turns, from -0.5 to 0.5
  double erase = 0;                            // the probability that a rectangle is erased
  std::optional<ImageRange> erase_scale = {};  // the rectangle's share of the area; default 0.02 to 0.33
  std::optional<ImageRange> erase_ratio = {};  // the rectangle's height over width, uniform in the logarithm; default
                                               // 0.3 to 3.3
  std::vector<double> erase_value = {};        // what fills the rectangle, from 0 to 1: one value, or one per channel
  std::vector<double> mean = {}, stddev = {};  // in values from 0 to 1: one, or one per channel; empty: 0 and 1
  DType dtype = DType::kFloat32;               // or float16, bfloat16; uint8 is not normalised
  ImageLayout layout = ImageLayout::kChw;
  bool per_frame = false;                  // each frame of a window has its own draws
  std::vector<std::string> together = {};  // other cameras that share this one's draws

  static constexpr auto fields() {
    using Self = ImageOptions;
    return std::tuple(
        Field{"crop_scale", &Self::crop_scale}, Field{"size", &Self::size}, Field{"fit", &Self::fit},
        Field{"interpolation", &Self::interpolation}, Field{"crop", &Self::crop}, Field{"crop_at", &Self::crop_at},
        Field{"shift", &Self::shift}, Field{"flip_horizontal", &Self::flip_horizontal},
        Field{"flip_vertical", &Self::flip_vertical}, Field{"rotation", &Self::rotation}, Field{"blur", &Self::blur},
        Field{"blur_kernel", &Self::blur_kernel}, Field{"brightness", &Self::brightness},
        Field{"contrast", &Self::contrast}, Field{"saturation", &Self::saturation}, Field{"hue", &Self::hue},
        Field{"erase", &Self::erase}, Field{"erase_scale", &Self::erase_scale},
        Field{"erase_ratio", &Self::erase_ratio}, Field{"erase_value", &Self::erase_value}, Field{"mean", &Self::mean},
        Field{"std", &Self::stddev}, Field{"dtype", &Self::dtype}, Field{"layout", &Self::layout},
        Field{"per_frame", &Self::per_frame}, Field{"together", &Self::together});
  }
};

// Reads a JSON object with Python's names (`std` for stddev), all of them optional. A range may be one number x: for
// brightness, contrast and saturation it means [max(0, 1 - x), 1 + x], for hue and rotation [-x, x], for the others [x,
// x]. A mean, std or erase_value may be one number or "imagenet". Throws ArgumentError or ArgumentTypeError, whose text
// begins with `prefix` and the option's name.
ImageOptions image_options_from_json(std::string_view json, std::string_view prefix = "");

// The inverse: writes every option, and each number bit for bit.
std::string image_options_to_json(const ImageOptions& options);

// Returns the options without randomness, as a policy sees frames: crops are in the centre, crop_scale is its largest
// share, and shifts, flips, rotation, blur, colours and erasing are off.
ImageOptions without_augmentation(ImageOptions options);

// Runs the checks that need no frame. Throws like image_options_from_json.
void check_image_options(const ImageOptions& options, std::string_view prefix = "");

}  // namespace robocache
