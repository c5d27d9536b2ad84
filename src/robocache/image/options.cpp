#include "robocache/image/options.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "robocache/core/arguments.hpp"

namespace robocache {
namespace {

using Json = nlohmann::json;

// Reads one option. Errors begin with `name`.
struct Read {
  const std::string name;
  const Json& json;

  [[noreturn]] void refuse_as(const char* expected) const {
    refuse_type(name, ": expected ", expected, ", got ", json.dump(-1, ' ', false, Json::error_handler_t::replace));
  }

  void to(bool& value) const {
    if (!json.is_boolean()) refuse_as("True or False");
    value = json.get<bool>();
  }
  void to(int64_t& value, const char* expected = "a whole number") const {
    if (!json.is_number_integer()) refuse_as(expected);
    value = json.get<int64_t>();
  }
  void to(double& value, const char* expected = "a number") const {
    if (!json.is_number()) refuse_as(expected);
    value = json.get<double>();
  }
  void to(std::string& value, const char* expected = "text") const {
    if (!json.is_string()) refuse_as(expected);
    value = json.get<std::string>();
  }
  template <HasNames Enum>
  void to(Enum& value) const {
    std::string text;
    to(text);
    value = value_of<Enum>(text, name);
  }
  void to(DType& value) const {
    std::string text;
    to(text, "the name of a dtype");
    value = dtype_from_name(text, name);
  }
  template <class T>
  void to(std::vector<T>& value, const char* expected) const {
    if (!json.is_array()) refuse_as(expected);
    for (const Json& entry : json) Read{name, entry}.to(value.emplace_back(), expected);
  }
  void to(std::vector<std::string>& value) const { to(value, "a list of cameras' keys"); }
  void to(std::optional<ImageSize>& value) const {
    std::vector<int64_t> sides;
    to(sides, "(height, width) in pixels");
    if (sides.size() != 2) refuse_as("(height, width) in pixels");
    value = {sides[0], sides[1]};
  }
  // A single number x means a range of x around the neutral value, or [x, x] for an option without a neutral value.
  void to(std::optional<ImageRange>& value) const {
    constexpr const char* kExpected = "a number or (low, high)";
    if (json.is_array()) {
      std::vector<double> ends;
      to(ends, kExpected);
      if (ends.size() != 2) refuse_as(kExpected);
      value = {ends[0], ends[1]};
      return;
    }
    double x = 0;
    to(x, kExpected);
    const std::string_view option = std::string_view(name).substr(name.rfind('.') + 1);
    if (option == "brightness" || option == "contrast" || option == "saturation") {
      value = {std::max(0.0, 1 - x), 1 + x};
    } else if (option == "hue" || option == "rotation") {
      value = {-x, x};
    } else {
      value = {x, x};
    }
  }
  // Reads a number for each channel.
  void to(std::vector<double>& value) const {
    constexpr const char* kExpected = "a number, one a channel, or 'imagenet'";
    if (json.is_array()) return to(value, kExpected);
    if (!json.is_string()) return to(value.emplace_back(), kExpected);
    if (json != "imagenet") refuse(name, ": expected ", kExpected, ", got '", json.get<std::string>(), "'");
    value = name.ends_with("std") ? std::vector{0.229, 0.224, 0.225} : std::vector{0.485, 0.456, 0.406};
  }
};

Json json_of(const std::optional<ImageRange>& range) { return range ? Json{range->low, range->high} : Json(); }
Json json_of(const std::optional<ImageSize>& size) { return size ? Json{size->height, size->width} : Json(); }
Json json_of(const std::vector<double>& channels) { return channels.empty() ? Json() : Json(channels); }
Json json_of(DType dtype) { return dtype_name(dtype); }
template <class T>
Json json_of(const T& value) {
  if constexpr (HasNames<T>) {
    return name_of(value);
  } else {
    return value;
  }
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

// Checks the output's dtype and its normalisation.
void check_values(const ImageOptions& options, std::string_view prefix) {
  for (const double mean : options.mean) {
    if (!std::isfinite(static_cast<float>(mean)))
      refuse(prefix, "mean: expected finite numbers, got ", number_text(mean));
  }
  for (const double stddev : options.stddev) {
    if (stddev > 0 && std::isnormal(static_cast<float>(1 / (255 * stddev)))) continue;
    refuse(prefix, "std: expected numbers above 0 within float32, got ", number_text(stddev));
  }
  switch (options.dtype) {
    case DType::kUInt8:
      if (!options.mean.empty() || !options.stddev.empty()) {
        refuse(prefix, options.mean.empty() ? "std" : "mean",
               ": goes with a floating dtype, got uint8, which is not normalised");
      }
      break;
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kFloat32:
      break;
    default:
      refuse(prefix, "dtype: expected uint8, float16, bfloat16 or float32, got ", dtype_name(options.dtype));
  }
}

}  // namespace

ImageOptions image_options_from_json(std::string_view json, std::string_view prefix) {
  const Json object = Json::parse(json, nullptr, false);
  if (!object.is_object()) refuse_type(prefix, "options: expected a JSON object, got ", json);
  ImageOptions result;
  for (const auto& [option, value] : object.items()) {
    bool is_known = false;
    for_each_field(result, [&](const char* field, auto& member) {
      if (option != field) return;
      is_known = true;
      if (!value.is_null()) Read{std::string(prefix) + field, value}.to(member);
    });
    if (!is_known) refuse_type(prefix, option, ": no such option of images");
  }
  check_image_options(result, prefix);
  return result;
}

std::string image_options_to_json(const ImageOptions& options) {
  Json object;
  for_each_field(options, [&](const char* name, const auto& value) { object[name] = json_of(value); });
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

void check_image_options(const ImageOptions& options, std::string_view prefix) {
  const auto option_name = [&](const char* name) { return std::string(prefix) + name; };
  if (options.crop_scale && !(options.crop_scale->low > 0)) {
    refuse(prefix, "crop_scale: expected parts of the frame's area above 0, got ",
           number_text(options.crop_scale->low));
  }
  check_range(options.crop_scale, option_name("crop_scale"), 0, 1);
  check_size(options.size, option_name("size"));
  check_size(options.crop, option_name("crop"));
  if (options.fit != ImageFit::kStretch && !options.size) refuse(prefix, "fit: goes with a size, got none");
  if (options.shift < 0 || options.shift > 16384) {
    refuse(prefix, "shift: expected from 0 to 16384 pixels, got ", std::to_string(options.shift));
  }
  if (options.shift > 0 && options.crop) refuse(prefix, "shift: goes without crop, got both");
  constexpr double kLargest = 1000;  // of a factor, a standard deviation or a ratio
  check_range(options.brightness, option_name("brightness"), 0, kLargest);
  check_range(options.contrast, option_name("contrast"), 0, kLargest);
  check_range(options.saturation, option_name("saturation"), 0, kLargest);
  check_range(options.hue, option_name("hue"), -0.5, 0.5);
  const auto check_probability = [&](double probability, const char* name) {
    if (!(probability >= 0 && probability <= 1)) {
      refuse(prefix, name, ": expected a probability from 0 to 1, got ", number_text(probability));
    }
  };
  check_probability(options.flip_horizontal, "flip_horizontal");
  check_probability(options.flip_vertical, "flip_vertical");
  check_probability(options.erase, "erase");
  check_range(options.rotation, option_name("rotation"), -180, 180);
  constexpr double kLeastSigma = 0.01;
  check_range(options.blur, option_name("blur"), kLeastSigma, kLargest);
  if (!options.blur && options.blur_kernel != 0) refuse(prefix, "blur_kernel: goes with blur, got none");
  if (options.blur && (options.blur_kernel < 3 || options.blur_kernel > 63 || options.blur_kernel % 2 == 0)) {
    refuse(prefix, "blur_kernel: with blur, expected an odd number of pixels from 3 to 63, got ",
           std::to_string(options.blur_kernel));
  }
  const auto check_erased = [&](bool is_set, const char* name) {
    if (is_set && options.erase == 0) refuse(prefix, name, ": goes with erase, the probability of it, got none");
  };
  check_erased(options.erase_scale.has_value(), "erase_scale");
  check_erased(options.erase_ratio.has_value(), "erase_ratio");
  check_erased(!options.erase_value.empty(), "erase_value");
  check_range(options.erase_scale, option_name("erase_scale"), 0, 1);
  constexpr double kLeastRatio = 0.001;
  check_range(options.erase_ratio, option_name("erase_ratio"), kLeastRatio, kLargest);
  for (const double value : options.erase_value) {
    if (!(value >= 0 && value <= 1)) {
      refuse(prefix, "erase_value: expected values from 0, black, to 1, got ", number_text(value));
    }
  }
  check_values(options, prefix);
}

}  // namespace robocache
