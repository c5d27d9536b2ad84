#include "robocache/image/options.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "robocache/core/arguments.hpp"

namespace robocache {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFits[] = {"stretch", "pad", "crop"};
constexpr std::string_view kInterpolations[] = {"bilinear", "nearest", "bicubic", "area"};
constexpr std::string_view kCropAts[] = {"random", "center"};
constexpr std::string_view kLayouts[] = {"chw", "hwc"};

// One of the options; null if the caller left it out.
struct Option {
  std::string name;
  const Json& value;

  explicit operator bool() const { return !value.is_null(); }

  [[noreturn]] void refuse_as(const char* expected) const {
    refuse_type(name, ": expected ", expected, ", got ", value.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  double number(const char* expected) const {
    if (!value.is_number()) refuse_as(expected);
    return value.get<double>();
  }
  int64_t whole(const char* expected) const {
    if (!value.is_number_integer()) refuse_as(expected);
    return value.get<int64_t>();
  }
  bool boolean() const {
    if (!value.is_boolean()) refuse_as("True or False");
    return value.get<bool>();
  }
  std::string text(const char* expected) const {
    if (!value.is_string()) refuse_as(expected);
    return value.get<std::string>();
  }
  std::vector<double> numbers(const char* expected) const {
    if (!value.is_array()) refuse_as(expected);
    std::vector<double> result;
    for (const Json& entry : value) {
      if (!entry.is_number()) refuse_as(expected);
      result.push_back(entry.get<double>());
    }
    return result;
  }
  // Returns the index of the text among the names, which `expected` lists.
  size_t one_of(std::span<const std::string_view> names, const char* expected) const {
    const std::string got = text(expected);
    const auto found = std::find(names.begin(), names.end(), got);
    if (found == names.end()) refuse(name, ": expected ", expected, ", got '", got, "'");
    return static_cast<size_t>(found - names.begin());
  }
};

std::optional<ImageSize> size_of(const Option& option) {
  if (!option) return {};
  constexpr const char* kExpected = "(height, width) in pixels";
  if (!option.value.is_array() || option.value.size() != 2) option.refuse_as(kExpected);
  const auto side = [&](size_t i) { return Option{option.name, option.value[i]}.whole(kExpected); };
  return ImageSize{side(0), side(1)};
}

// Reads a range. `of_number` converts a single number to a range.
template <class OfNumber>
std::optional<ImageRange> range_of(const Option& option, const OfNumber& of_number) {
  if (!option) return {};
  constexpr const char* kExpected = "a number or (low, high)";
  if (!option.value.is_array()) return of_number(option.number(kExpected));
  const std::vector<double> ends = option.numbers(kExpected);
  if (ends.size() != 2) option.refuse_as(kExpected);
  return ImageRange{ends[0], ends[1]};
}

std::vector<double> channels_of(const Option& option, const std::vector<double>& imagenet) {
  if (!option) return {};
  constexpr const char* kExpected = "a number, one a channel, or 'imagenet'";
  if (option.value.is_string()) {
    option.one_of(std::array{std::string_view("imagenet")}, kExpected);
    return imagenet;
  }
  if (!option.value.is_array()) return {option.number(kExpected)};
  return option.numbers(kExpected);
}

void check_range(const std::optional<ImageRange>& range, const std::string& name, double least, double most) {
  if (!range) return;
  if (range->low >= least && range->low <= range->high && range->high <= most) return;
  refuse(name, ": expected ", number_text(least), " <= low <= high <= ", number_text(most), ", got ",
         number_text(range->low), " and ", number_text(range->high));
}

void check_size(const std::optional<ImageSize>& size, const std::string& name) {
  constexpr int64_t kMost = 16384;
  if (!size || (size->height >= 1 && size->width >= 1 && size->height <= kMost && size->width <= kMost)) return;
  refuse(name, ": expected (height, width) from 1 to ", std::to_string(kMost), " pixels, got ",
         std::to_string(size->height), " and ", std::to_string(size->width));
}

}  // namespace

ImageOptions image_options_from_json(std::string_view json, std::string_view of) {
  static const char* const known[] = {"size",    "fit",         "interpolation",   "crop_scale",    "crop",
                                      "crop_at", "shift",       "flip_horizontal", "flip_vertical", "rotation",
                                      "blur",    "blur_kernel", "brightness",      "contrast",      "saturation",
                                      "hue",     "erase",       "erase_scale",     "erase_ratio",   "erase_value",
                                      "mean",    "std",         "dtype",           "layout",        "per_frame",
                                      "together"};
  const Json object = Json::parse(json, nullptr, false);
  if (!object.is_object()) refuse_type(of, "options: expected a JSON object, got ", json);
  for (const auto& [name, value] : object.items()) {
    if (std::find(std::begin(known), std::end(known), name) == std::end(known)) {
      refuse_type(of, name, ": no such option of images");
    }
  }
  const Json none;
  const auto option = [&](const char* name) {
    const auto found = object.find(name);
    return Option{std::string(of) + name, found == object.end() ? none : *found};
  };
  const auto about_one = [](double x) { return ImageRange{std::max(0.0, 1 - x), 1 + x}; };

  ImageOptions result;
  const auto fixed = [](double x) { return ImageRange{x, x}; };
  const auto both_ways = [](double x) { return ImageRange{-x, x}; };
  const auto probability = [&](const char* name) {
    const Option asked = option(name);
    return asked ? asked.number("a probability from 0 to 1") : 0.0;
  };
  result.crop_scale = range_of(option("crop_scale"), fixed);
  result.size = size_of(option("size"));
  if (const Option fit = option("fit")) {
    result.fit = static_cast<ImageFit>(fit.one_of(kFits, "'stretch', 'pad' or 'crop'"));
  }
  if (const Option interpolation = option("interpolation")) {
    constexpr const char* kExpected = "'bilinear', 'nearest', 'bicubic' or 'area'";
    result.interpolation = static_cast<ImageInterpolation>(interpolation.one_of(kInterpolations, kExpected));
  }
  result.crop = size_of(option("crop"));
  if (const Option crop_at = option("crop_at")) {
    result.crop_at = static_cast<CropAt>(crop_at.one_of(kCropAts, "'random' or 'center'"));
  }
  if (const Option shift = option("shift")) result.shift = shift.whole("a whole number of pixels");
  result.flip_horizontal = probability("flip_horizontal");
  result.flip_vertical = probability("flip_vertical");
  result.rotation = range_of(option("rotation"), both_ways);
  result.blur = range_of(option("blur"), fixed);
  if (const Option kernel = option("blur_kernel")) result.blur_kernel = kernel.whole("an odd number of pixels");
  result.brightness = range_of(option("brightness"), about_one);
  result.contrast = range_of(option("contrast"), about_one);
  result.saturation = range_of(option("saturation"), about_one);
  result.hue = range_of(option("hue"), both_ways);
  result.erase = probability("erase");
  result.erase_scale = range_of(option("erase_scale"), fixed);
  result.erase_ratio = range_of(option("erase_ratio"), fixed);
  result.erase_value = channels_of(option("erase_value"), {0.485, 0.456, 0.406});
  result.mean = channels_of(option("mean"), {0.485, 0.456, 0.406});
  result.stddev = channels_of(option("std"), {0.229, 0.224, 0.225});
  if (const Option dtype = option("dtype"))
    result.dtype = dtype_from_name(dtype.text("the name of a dtype"), dtype.name);
  if (const Option layout = option("layout")) {
    result.layout = static_cast<ImageLayout>(layout.one_of(kLayouts, "'chw' or 'hwc'"));
  }
  if (const Option per_frame = option("per_frame")) result.per_frame = per_frame.boolean();
  if (const Option together = option("together")) {
    constexpr const char* kExpected = "a list of cameras' keys";
    if (!together.value.is_array()) together.refuse_as(kExpected);
    for (const Json& key : together.value) result.together.push_back(Option{together.name, key}.text(kExpected));
  }
  check_image_options(result, of);
  return result;
}

std::string image_options_to_json(const ImageOptions& options) {
  const auto range = [](const std::optional<ImageRange>& ends) { return ends ? Json{ends->low, ends->high} : Json(); };
  const auto size = [](const std::optional<ImageSize>& sides) {
    return sides ? Json{sides->height, sides->width} : Json();
  };
  const auto numbers = [](const std::vector<double>& of_channels) {
    return of_channels.empty() ? Json() : Json(of_channels);
  };
  const Json object = {{"crop_scale", range(options.crop_scale)},
                       {"size", size(options.size)},
                       {"fit", kFits[static_cast<size_t>(options.fit)]},
                       {"interpolation", kInterpolations[static_cast<size_t>(options.interpolation)]},
                       {"crop", size(options.crop)},
                       {"crop_at", kCropAts[static_cast<size_t>(options.crop_at)]},
                       {"shift", options.shift},
                       {"flip_horizontal", options.flip_horizontal},
                       {"flip_vertical", options.flip_vertical},
                       {"rotation", range(options.rotation)},
                       {"blur", range(options.blur)},
                       {"blur_kernel", options.blur_kernel},
                       {"brightness", range(options.brightness)},
                       {"contrast", range(options.contrast)},
                       {"saturation", range(options.saturation)},
                       {"hue", range(options.hue)},
                       {"erase", options.erase},
                       {"erase_scale", range(options.erase_scale)},
                       {"erase_ratio", range(options.erase_ratio)},
                       {"erase_value", numbers(options.erase_value)},
                       {"mean", numbers(options.mean)},
                       {"std", numbers(options.stddev)},
                       {"dtype", dtype_name(options.dtype)},
                       {"layout", kLayouts[static_cast<size_t>(options.layout)]},
                       {"per_frame", options.per_frame},
                       {"together", options.together}};
  return object.dump();
}

ImageOptions without_augmentation(ImageOptions options) {
  if (options.crop_scale) options.crop_scale->low = options.crop_scale->high;
  options.crop_at = CropAt::kCenter;
  options.shift = 0;
  options.flip_horizontal = options.flip_vertical = options.erase = 0;
  options.rotation = options.blur = options.erase_scale = options.erase_ratio = {};
  options.blur_kernel = 0;
  options.erase_value = {};
  options.brightness = options.contrast = options.saturation = options.hue = {};
  options.together = {};
  return options;
}

void check_image_options(const ImageOptions& options, std::string_view of) {
  const auto named = [&](const char* name) { return std::string(of) + name; };
  if (options.crop_scale && !(options.crop_scale->low > 0)) {
    refuse(of, "crop_scale: expected parts of the frame's area above 0, got ", number_text(options.crop_scale->low));
  }
  check_range(options.crop_scale, named("crop_scale"), 0, 1);
  check_size(options.size, named("size"));
  check_size(options.crop, named("crop"));
  if (options.fit != ImageFit::kStretch && !options.size) refuse(of, "fit: goes with a size, got none");
  if (options.shift < 0 || options.shift > 16384) {
    refuse(of, "shift: expected from 0 to 16384 pixels, got ", std::to_string(options.shift));
  }
  if (options.shift > 0 && options.crop) refuse(of, "shift: goes without crop, got both");
  constexpr double kMostFactor = 1000;
  check_range(options.brightness, named("brightness"), 0, kMostFactor);
  check_range(options.contrast, named("contrast"), 0, kMostFactor);
  check_range(options.saturation, named("saturation"), 0, kMostFactor);
  check_range(options.hue, named("hue"), -0.5, 0.5);
  const auto check_probability = [&](double asked, const char* name) {
    if (!(asked >= 0 && asked <= 1)) {
      refuse(of, name, ": expected a probability from 0 to 1, got ", number_text(asked));
    }
  };
  check_probability(options.flip_horizontal, "flip_horizontal");
  check_probability(options.flip_vertical, "flip_vertical");
  check_probability(options.erase, "erase");
  check_range(options.rotation, named("rotation"), -180, 180);
  constexpr double kLeastSigma = 0.01;
  check_range(options.blur, named("blur"), kLeastSigma, kMostFactor);
  if (options.blur.has_value() != (options.blur_kernel != 0)) {
    refuse(of, "blur_kernel: goes with blur, got ", options.blur ? "none" : "it alone");
  }
  if (options.blur && (options.blur_kernel < 3 || options.blur_kernel > 63 || options.blur_kernel % 2 == 0)) {
    refuse(of, "blur_kernel: expected an odd number of pixels from 3 to 63, got ", std::to_string(options.blur_kernel));
  }
  const auto check_erased = [&](bool asked, const char* name) {
    if (asked && options.erase == 0) refuse(of, name, ": goes with erase, the probability of it, got none");
  };
  check_erased(options.erase_scale.has_value(), "erase_scale");
  check_erased(options.erase_ratio.has_value(), "erase_ratio");
  check_erased(!options.erase_value.empty(), "erase_value");
  check_range(options.erase_scale, named("erase_scale"), 0, 1);
  constexpr double kLeastRatio = 0.001;
  check_range(options.erase_ratio, named("erase_ratio"), kLeastRatio, kMostFactor);
  for (const double value : options.erase_value) {
    if (!(value >= 0 && value <= 1)) {
      refuse(of, "erase_value: expected values from 0, black, to 1, got ", number_text(value));
    }
  }
  for (const double mean : options.mean) {
    if (!std::isfinite(static_cast<float>(mean))) refuse(of, "mean: expected finite numbers, got ", number_text(mean));
  }
  for (const double stddev : options.stddev) {
    if (stddev > 0 && std::isnormal(static_cast<float>(1 / (255 * stddev)))) continue;
    refuse(of, "std: expected numbers above 0 within float32, got ", number_text(stddev));
  }
  switch (options.dtype) {
    case DType::kUInt8:
      if (!options.mean.empty() || !options.stddev.empty()) {
        refuse(of, options.mean.empty() ? "std" : "mean",
               ": goes with a floating dtype, got uint8, which is not normalised");
      }
      break;
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kFloat32:
      break;
    default:
      refuse(of, "dtype: expected uint8, float16, bfloat16 or float32, got ", dtype_name(options.dtype));
  }
}

}  // namespace robocache
