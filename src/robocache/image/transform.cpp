#include "robocache/image/transform.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "robocache/core/arguments.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/core/cpu_isa.hpp"
#include "robocache/core/mix_bits.hpp"
#include "robocache/image/augment_math.hpp"
#include "robocache/image/transform_cpu.hpp"
#include "robocache/image/transform_math.hpp"

namespace robocache {
namespace {

void check_frame(const FrameShape& from, const std::optional<double>& unit_m, const std::string& prefix) {
  const bool is_depth = from.dtype == DType::kUInt16 || from.dtype == DType::kFloat32;
  if (from.dtype != DType::kUInt8 && !is_depth) {
    refuse_type(prefix, "frames: expected uint8, or depth of uint16 or float32, got ", from.describe());
  }
  if (from.channels != 1 && (is_depth || from.channels != 3)) {
    refuse(prefix, "frames: expected ", is_depth ? "depth of 1 channel" : "1 or 3 channels", ", got ", from.describe());
  }
  if (from.height < 1 || from.width < 1 || from.height > kMaxFrameSide || from.width > kMaxFrameSide) {
    refuse(prefix, "frames: expected sides from 1 to ", std::to_string(kMaxFrameSide), ", got ", from.describe());
  }
  if (from.dtype == DType::kUInt16 && !unit_m) {
    refuse(prefix, "unit_m: expected the metres of one unit of uint16 depth (0.001 for millimetres), got none");
  }
  const bool is_metres = from.dtype == DType::kFloat32 && unit_m == 1;  // as caches of earlier versions store it
  if (from.dtype != DType::kUInt16 && unit_m && !is_metres) {
    refuse(prefix, "unit_m: goes with uint16 depth, got ", from.describe());
  }
  if (unit_m && !(*unit_m > 0 && std::isfinite(*unit_m))) {
    refuse(prefix, "unit_m: expected metres above 0, got ", number_text(*unit_m));
  }
}

// Refuses options that have no meaning for such frames.
void check_colour(const FrameShape& from, const ImageOptions& options, const std::string& prefix) {
  const auto refuse_if = [&](bool is_set, const char* name, const char* expected) {
    if (is_set) refuse(prefix, name, ": goes with ", expected, ", got ", from.describe());
  };
  if (from.channels == 1) {
    refuse_if(options.saturation.has_value(), "saturation", "frames of 3 channels");
    refuse_if(options.hue.has_value(), "hue", "frames of 3 channels");
  }
  if (from.dtype != DType::kUInt8) {
    refuse_if(options.brightness.has_value(), "brightness", "frames of colour or grey");
    refuse_if(options.contrast.has_value(), "contrast", "frames of colour or grey");
    refuse_if(options.blur.has_value(), "blur", "frames of colour or grey");
    refuse_if(options.erase > 0, "erase", "frames of colour or grey");
    refuse_if(!options.mean.empty(), "mean", "frames of colour or grey");
    refuse_if(!options.stddev.empty(), "std", "frames of colour or grey");
    const ImageInterpolation interpolation = options.interpolation;
    refuse_if(interpolation == ImageInterpolation::kBicubic || interpolation == ImageInterpolation::kArea,
              "interpolation", "frames of colour or grey, unless it is 'nearest'");
    refuse_if(options.dtype == DType::kUInt8, "dtype", "float32, float16 or bfloat16 for metres of depth");
  }
  const auto check_channels = [&](const std::vector<double>& numbers, const char* name) {
    const auto count = static_cast<int64_t>(numbers.size());
    if (count <= 1 || count == from.channels) return;
    refuse(prefix, name, ": expected one number, or one for each channel of ", from.describe(), ", got ",
           std::to_string(count));
  };
  check_channels(options.erase_value, "erase_value");
  check_channels(options.mean, "mean");
  check_channels(options.stddev, "std");
}

// Returns the key of the draws. Cameras that draw together have the same key, whichever of them names the others.
uint64_t key_of(const ImageOptions& options, std::string_view key) {
  std::vector<std::string> keys = options.together;
  keys.emplace_back(key);
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  uint64_t hash = 0;
  for (const std::string& camera : keys) {
    for (const char letter : camera) hash = mix_bits(hash + static_cast<unsigned char>(letter) + 1);
    hash = mix_bits(~hash);
  }
  return hash;
}

TransformParams params_of(const FrameShape& from, const ImageOptions& options, std::string_view key,
                          const std::optional<double>& unit_m) {
  const auto side = [](int64_t pixels) { return static_cast<int32_t>(pixels); };
  const ImageSize sized = options.size.value_or(ImageSize{from.height, from.width});
  const ImageSize out = options.crop.value_or(sized);
  TransformParams p{.frame = {side(from.height), side(from.width)},
                    .sized = {side(sized.height), side(sized.width)},
                    .out = {side(out.height), side(out.width)},
                    .channels = side(from.channels),
                    .dtype = from.dtype,
                    .out_dtype = options.dtype,
                    .layout = options.layout,
                    .crop_scales = options.crop_scale.has_value(),
                    .crop_scale = options.crop_scale.value_or(ImageRange{1, 1}),
                    .fit = options.fit,
                    .interpolation = options.interpolation,
                    .crops_at_random = options.crop_at == CropAt::kRandom,
                    .shift = side(options.shift),
                    .warps = options.flip_vertical > 0 || options.flip_horizontal > 0 || options.rotation,
                    .flip = {options.flip_vertical, options.flip_horizontal},
                    .rotates = options.rotation.has_value(),
                    .rotation = options.rotation.value_or(ImageRange{0, 0}),
                    .blur_reach = static_cast<int32_t>(options.blur_kernel / 2),
                    .blur = options.blur.value_or(ImageRange{1, 1}),
                    .erase = options.erase,
                    .erase_scale = options.erase_scale.value_or(ImageRange{0.02, 0.33}),
                    .brightens = options.brightness.has_value(),
                    .contrasts = options.contrast.has_value(),
                    .saturates = options.saturation.has_value(),
                    .hues = options.hue.has_value(),
                    .brightness = options.brightness.value_or(ImageRange{1, 1}),
                    .contrast = options.contrast.value_or(ImageRange{1, 1}),
                    .saturation = options.saturation.value_or(ImageRange{1, 1}),
                    .hue = options.hue.value_or(ImageRange{0, 0}),
                    .unit_m = unit_m.value_or(1),
                    .per_frame = options.per_frame,
                    .key = key_of(options, key)};
  const ImageRange ratio = options.erase_ratio.value_or(ImageRange{0.3, 3.3});
  p.erase_log_ratio = {std::log(ratio.low), std::log(ratio.high)};
  p.jitters = p.brightens || p.contrasts || p.saturates || p.hues;
  const auto number_of_channel = [](const std::vector<double>& numbers, size_t c, double default_number) {
    return numbers.empty() ? default_number : numbers.size() == 1 ? numbers[0] : numbers[c];
  };
  for (size_t c = 0; c < static_cast<size_t>(from.channels); ++c) {
    p.erased[c] = static_cast<uint8_t>(std::nearbyint(255 * number_of_channel(options.erase_value, c, 0)));
    const double stddev = number_of_channel(options.stddev, c, 1);
    p.scale[c] = static_cast<float>(1 / (255 * stddev));
    p.offset[c] = static_cast<float>(-number_of_channel(options.mean, c, 0) / stddev);
  }
  return p;
}

// Refuses sizes whose resize would overflow its integers: 32 bits for positions, 2^23 for the weights of an axis, 2^43
// for the weights of a pixel.
void check_resize(const TransformParams& p, const std::string& prefix) {
  TransformParams uncropped = p;
  uncropped.crop_scales = false;
  const FramePlan plan = frame_plan(uncropped, {}, 0);
  const AxisPlan* const axes[] = {&plan.rows, &plan.columns};
  const bool resizes = p.crop_scales || plan.rows.from != plan.rows.to || plan.columns.from != plan.columns.to;
  if (!resizes) return;
  double weight = 1;
  bool is_beyond = false;
  for (const AxisPlan* axis : axes) {
    // The sides of a drawn crop are rounded, which changes their ratio by less than a factor of 2.
    const double slack = p.crop_scales && p.fit != ImageFit::kStretch ? 2 : 1;
    const double from = axis->from;
    const double most_to = axis->to * slack + slack - 1;
    const double least_to = std::max(1.0, std::floor(axis->to / slack) - (slack - 1));
    const double larger = std::max(from, most_to);
    const double factor = std::max(from / least_to, 1.0);
    // The most that the weights of a pixel's taps add up to, by the filters of transform_math.hpp.
    double axis_weight = 2 * larger * (factor + 1);
    if (p.interpolation == ImageInterpolation::kBicubic) axis_weight = 0x1.8p15 * (factor + 1);
    if (p.interpolation == ImageInterpolation::kArea) axis_weight = from;
    if (p.interpolation == ImageInterpolation::kNearest) axis_weight = 1;
    weight *= axis_weight;
    is_beyond = is_beyond || from > 16384 || most_to > 32769 || axis_weight >= 0x1p23;
  }
  if (!is_beyond && weight < 0x1p43) return;
  refuse(prefix, "size: ", std::to_string(p.sized[0]), " x ", std::to_string(p.sized[1]), " cannot be made of ",
         std::to_string(p.frame[0]), " x ", std::to_string(p.frame[1]),
         ": expected frames of up to 16384 a side, shrunk by no more than some 60 times");
}

char* scratch_of(size_t bytes) {
  thread_local std::vector<char> memory;
  constexpr size_t kAlignment = 64;
  if (memory.size() < bytes + kAlignment) memory = std::vector<char>(bytes + kAlignment);
  const auto first = reinterpret_cast<uintptr_t>(memory.data());
  return memory.data() + (kAlignment - first % kAlignment) % kAlignment;
}

}  // namespace

ImageTransform::ImageTransform(const FrameShape& from, const ImageOptions& options, std::string_view key,
                               std::optional<double> unit_m) {
  const std::string prefix = key.empty() ? "" : "delta_timestamps['" + std::string(key) + "'].images.";
  check_image_options(options, prefix);
  check_frame(from, unit_m, prefix);
  check_colour(from, options, prefix);
  params_ = params_of(from, options, key, unit_m);
  check_resize(params_, prefix);
  if (params_.out[0] > params_.sized[0] || params_.out[1] > params_.sized[1]) {
    refuse(prefix, "crop: expected at most ", std::to_string(params_.sized[0]), " and ",
           std::to_string(params_.sized[1]), ", the frame's height and width, got ", std::to_string(params_.out[0]),
           " and ", std::to_string(params_.out[1]));
  }
  if (const int64_t least = std::min(params_.out[0], params_.out[1]); params_.blur_reach >= least) {
    refuse(prefix, "blur_kernel: expected at most ", std::to_string(2 * least - 1), " for images of ",
           std::to_string(params_.out[0]), " x ", std::to_string(params_.out[1]), ", got ",
           std::to_string(options.blur_kernel));
  }
}

std::vector<int64_t> ImageTransform::shape() const {
  const int64_t h = params_.out[0];
  const int64_t w = params_.out[1];
  const int64_t c = params_.channels;
  return params_.layout == ImageLayout::kChw ? std::vector<int64_t>{c, h, w} : std::vector<int64_t>{h, w, c};
}

int64_t ImageTransform::bytes() const {
  return int64_t{params_.out[0]} * params_.out[1] * params_.channels * dtype_size(params_.out_dtype);
}

void ImageTransform::run(const void* frame, const ImageDraw& draw, int64_t step, void* out) const {
  const FramePlan plan = frame_plan(params_, draw, step);
  const Augments augments = frame_augments(params_, draw, step);
  char* const scratch = scratch_of(static_cast<size_t>(transform_scratch(params_).end));
  ROBOCACHE_SELECT_ISA(transform_frame)(params_, plan, augments, frame, scratch, out);
}

void ImageTransform::intrinsics(const double in[9], const ImageDraw& draw, int64_t step, double out[9]) const {
  planned_intrinsics(params_, frame_plan(params_, draw, step), frame_warp(params_, draw, step), in, out);
}

// Whether frames take several passes on a device: frames of bytes are flipped, rotated and blurred between the geometry
// and the colours.
bool ImageTransform::is_in_passes() const {
  return params_.dtype == DType::kUInt8 && (params_.warps || params_.blur_reach > 0);
}

int64_t ImageTransform::workspace_bytes(int64_t frames) const {
  return is_in_passes() ? 2 * frames * params_.out[0] * params_.out[1] * params_.channels : 0;
}

void ImageTransform::run_on_device(const FrameChoice& from, const ImageDraw& first, int64_t count, int64_t steps,
                                   void* out, void* workspace, Device device, CudaStream stream) const {
  if (count == 0 || steps == 0) return;
  using Launch = int(const TransformBatch*, int32_t device, void* stream);
  static Launch* const transform = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_transform_images"));
  static Launch* const warp = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_warp_images"));
  static Launch* const blur = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_blur_images"));
  static Launch* const erase = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_erase_images"));
  TransformBatch batch{.params = params_, .first = first, .from = from, .count = count, .steps = steps, .out = out};
  const auto run = [&](Launch* launch) { check_cuda(launch(&batch, device.index, stream.handle), "image transform"); };
  if (is_in_passes()) {
    TransformParams& p = batch.params;
    auto* frames = static_cast<char*>(workspace);
    char* next = frames + workspace_bytes(count * steps) / 2;
    batch.out = frames;
    p.out_dtype = DType::kUInt8;
    p.layout = ImageLayout::kHwc;
    p.jitters = p.brightens = p.contrasts = p.saturates = p.hues = false;
    run(transform);
    batch.from.frames = count * steps;
    batch.from.in_order = true;
    const auto pass = [&](Launch* launch) {
      batch.from.pixels = frames;
      batch.out = next;
      run(launch);
      std::swap(frames, next);
    };
    if (p.warps) pass(warp);
    if (p.blur_reach > 0) pass(blur);
    p = params_;
    for (int i = 0; i < 2; ++i) p.frame[i] = p.sized[i] = p.out[i];
    p.crop_scales = false;
    p.fit = ImageFit::kStretch;
    p.shift = 0;
    batch.from.pixels = frames;
    batch.out = out;
  }
  run(transform);
  if (params_.erase > 0) run(erase);
}

void ImageTransform::intrinsics_on_device(const std::vector<double>& matrix, const int64_t* numbers, int64_t begin,
                                          int64_t end, const ImageDraw& first, int64_t count, int64_t steps, float* out,
                                          Device device, CudaStream stream) const {
  IntrinsicsBatch batch{.params = params_,
                        .first = first,
                        .matrix = {},
                        .numbers = numbers,
                        .begin = begin,
                        .end = end,
                        .count = count,
                        .steps = steps,
                        .out = out};
  std::ranges::copy(matrix, batch.matrix);
  using Launch = int(const IntrinsicsBatch*, int32_t device, void* stream);
  static Launch* const launch = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_intrinsics"));
  check_cuda(launch(&batch, device.index, stream.handle), "intrinsics");
}

}  // namespace robocache
