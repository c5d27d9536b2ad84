#include "robocache/batch/camera.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "robocache/core/arguments.hpp"
#include "robocache/core/tensor_view.hpp"
#include "robocache/image/codec.hpp"

namespace robocache {

Camera::Camera(std::string key, std::span<const std::optional<Frames>> sources, const ImageOptions& options,
               bool pad_bad_frames)
    : key_(std::move(key)), pad_bad_frames_(pad_bad_frames) {
  sources_.reserve(sources.size());
  for (const std::optional<Frames>& frames : sources) {
    std::optional<Source>& source = sources_.emplace_back();
    if (!frames) continue;
    const Stream& stream = frames->dataset->stream(frames->stream);
    const FrameShape shape = stored_shape(stream);
    source.emplace(Source{.frames = *frames,
                          .transform = ImageTransform(shape, options, key_, stream.frames->unit_m),
                          .shape = shape,
                          .first_number = numbers_ + 1,
                          .is_repeat = false,
                          .resized = {},
                          .resized_to_batch = {}});
    resize_when_decoded(*source, options);
    for (const std::optional<Source>& earlier : std::span(sources_).first(sources_.size() - 1)) {
      if (!earlier || &earlier->stream() != &stream || earlier->frames.part != frames->part) continue;
      source->first_number = earlier->first_number;
      source->is_repeat = true;
    }
    if (!source->is_repeat) {
      distinct_.push_back(&*source);
      numbers_ += stream.rows;
    }
    has_intrinsics_ = has_intrinsics_ || !stream.frames->intrinsics.empty();
    const std::vector<int64_t> result = source->transform.shape();
    if (shape_.empty()) {
      shape_ = result;
    } else if (result != shape_) {
      refuse("delta_timestamps['", key_,
             "'].images.size: expected a size that gives the frames of all sources one shape, got ",
             shape_string(shape_), " and ", shape_string(result));
    }
  }
}

const Camera::Source* Camera::source_of(int64_t number) const {
  const Source* last = nullptr;
  for (const Source* const source : distinct_) {
    if (source->first_number <= number) last = source;
  }
  return last;
}

// Resizing has no random part and rounds to bytes, so frames that are resized once, when they are decoded, give the same batch.
// This does not hold for depth, whose pixels become metres, nor after a random crop.
void Camera::resize_when_decoded(Source& source, const ImageOptions& options) const {
  const FrameShape& stored = source.shape;
  if (!options.size || options.crop_scale || stored.dtype != DType::kUInt8) return;
  const auto [height, width] = *options.size;
  if (height * width > stored.height * stored.width || (height == stored.height && width == stored.width)) return;
  source.resized = {{height, width}, options.fit, options.interpolation};
  ImageOptions remaining = options;
  remaining.size = {};
  remaining.fit = ImageFit::kStretch;
  source.resized_to_batch.emplace(FrameShape{height, width, stored.channels}, remaining, key_);
}

const uint8_t* Camera::pixels_of(const Source& source, int64_t row, FrameMemory& memory) const {
  try {
    if (source.resident != nullptr) return source.resident->at(row, memory);
    memory.frame.resize(static_cast<size_t>(source.shape.bytes()));
    decode_frame(source.stream().frames->codec, frame_file(*source.frames.files, row, memory.file), source.shape,
                 memory.frame.data());
    return memory.frame.data();
  } catch (const FrameError& error) {
    if (!pad_bad_frames_) throw bad_frame(source, row, error.what());
    return nullptr;
  }
}

FrameError Camera::bad_frame(const Source& source, int64_t row, const std::string& reason) const {
  return FrameError(frame_name(*source.frames.dataset, source.frames.stream, row) + ": " + reason +
                    "; on_bad_frame='pad' makes it black padding");
}

void Camera::write_intrinsics(const Source* source, const ImageDraw& draw, int64_t step, float* output) {
  std::fill_n(output, 9, 0.0F);
  if (source == nullptr) return;
  const std::vector<double>& stored = source->stream().frames->intrinsics;
  if (stored.empty()) return;
  std::array<double, 9> matrix{};
  source->transform.intrinsics(stored.data(), draw, step, matrix.data());
  std::copy(matrix.begin(), matrix.end(), output);
}

std::string Camera::not_for_device() const {
  for (const Source* const source : distinct_) {
    if (source->stream().frames->codec == Codec::kPng) return "PNG is decoded by the host";
  }
  return "";
}

FramesWanted Camera::frames_wanted(const Source& source, Device device, Tier tier) const {
  FramesWanted frames{.dataset = source.frames.dataset,
                      .stream = source.frames.stream,
                      .device = device,
                      .tier = tier,
                      .resized = {},
                      .part = source.frames.part};
  if (tier == Tier::kDecoded) frames.resized = source.resized;
  return frames;
}

std::optional<int64_t> Camera::bytes(Device device, Tier tier) const {
  int64_t bytes = 0;
  bool decodes = tier != Tier::kDecoded;
  for (const std::optional<Source>& source : sources_) {
    if (!source) continue;
    decodes = decodes || source->resized || source->stream().frames->codec != Codec::kRaw;
    if (!source->is_repeat) bytes += ResidentFrames::bytes(frames_wanted(*source, device, tier));
  }
  if (!decodes) return {};
  return bytes;
}

int64_t Camera::bytes_present(Device device, Tier tier) const {
  int64_t bytes = 0;
  for (const Source* const source : distinct_) {
    bytes += ResidentFrames::bytes_present(frames_wanted(*source, device, tier));
  }
  return bytes;
}

void Camera::load(Device device, Tier tier) {
  std::vector<std::shared_ptr<const ResidentFrames>> loaded;
  for (const std::optional<Source>& source : sources_) {
    loaded.push_back(source ? ResidentFrames::get(frames_wanted(*source, device, tier)) : nullptr);
  }
  for (size_t i = 0; i < loaded.size(); ++i) {
    if (!sources_[i]) continue;
    sources_[i]->resident = loaded[i];
    if (const ResidentJpegs* const jpegs = loaded[i]->jpegs(); jpegs != nullptr && tier == Tier::kPinned) {
      fetched_stride_ = std::max(fetched_stride_, jpegs->largest_data_bytes());
    }
  }
}

int64_t Camera::largest_file_bytes() const {
  int64_t largest = 0;
  for (const Source* const source : distinct_) {
    largest = std::max(largest, source->frames.files->largest_row_bytes());
  }
  return largest;
}

std::string Camera::why_not_packed() const {
  if (std::string why = not_for_device(); !why.empty()) return why;
  const Stream& first = any().stream();
  for (const Source* const source : distinct_) {
    const Stream& other = source->stream();
    const bool alike = other.frames->codec == first.frames->codec && source->shape == any().shape &&
                       other.frames->unit_m == first.frames->unit_m;
    if (!alike) return "the sources' frames differ in size or codec";
  }
  return largest_file_bytes() > most_packed_bytes(any().shape) ? "a file is larger than twice its pixels" : "";
}

}  // namespace robocache
