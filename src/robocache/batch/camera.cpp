#include "robocache/batch/camera.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "robocache/core/arguments.hpp"
#include "robocache/core/thread_pool.hpp"
#include "robocache/image/codec.hpp"
#include "robocache/source/read_rows.hpp"

namespace robocache {
namespace {

const Stream& stream_of(const Camera::Frames& frames) {
  return frames.dataset->streams()[static_cast<size_t>(frames.stream)];
}

FrameShape frame_shape_of(const Stream& stream) {
  return {stream.shape[0], stream.shape[1], stream.shape[2], stream.dtype};
}

// "[3, 224, 224]".
std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
  return "[" + text + "]";
}

}  // namespace

Camera::Camera(std::string key, std::span<const std::optional<Frames>> sources, const ImageOptions& options,
               bool pad_bad_frames)
    : key_(std::move(key)), per_frame_(options.per_frame), pad_bad_frames_(pad_bad_frames) {
  sources_.reserve(sources.size());
  for (const std::optional<Frames>& frames : sources) {
    std::optional<Source>& source = sources_.emplace_back();
    if (!frames) continue;
    const Stream& stream = stream_of(*frames);
    const FrameShape shape = frame_shape_of(stream);
    source.emplace(Source{*frames, ImageTransform(shape, options, key_, stream.frames->unit_m), shape, numbers_ + 1});
    if (any_ == nullptr) any_ = &*source;
    numbers_ += stream.rows;
    frame_bytes_ = std::max(frame_bytes_, shape.bytes());
    has_intrinsics_ = has_intrinsics_ || !stream.frames->intrinsics.empty();
    const std::vector<int64_t> made = source->transform.shape();
    if (shape_.empty()) {
      shape_ = made;
      dtype_ = source->transform.dtype();
    } else if (made != shape_) {
      refuse("images['", key_, "'].size: expected one that brings all sources' frames to one shape, got ",
             shape_text(shape_), " and ", shape_text(made));
    }
  }
}

const Camera::Source* Camera::source_of(int64_t number) const {
  if (number == 0) return nullptr;
  const Source* found = nullptr;
  for (const std::optional<Source>& source : sources_) {
    if (source && source->first_number <= number) found = &*source;
  }
  return found;
}

// The frame of a row, or false where it does not decode and may be padding.
bool Camera::decode(const Source& source, int64_t row, std::vector<uint8_t>& blob, std::vector<uint8_t>& frame) const {
  const Stream& stream = stream_of(source.frames);
  const StreamRows rows = source.frames.resident->rows();
  const auto [begin, end] = source.frames.resident->bytes_of(row);
  const auto* bytes = static_cast<const uint8_t*>(rows.values) + begin;
  if (rows.values == nullptr) {
    blob.resize(static_cast<size_t>(end - begin));
    read_rows(rows.file, begin, blob.size(), blob.data());
    bytes = blob.data();
  }
  try {
    decode_frame(stream.frames->codec, {bytes, static_cast<size_t>(end - begin)}, source.shape, frame.data());
    return true;
  } catch (const FrameError& error) {
    if (pad_bad_frames_) {
      ++bad_frames_;
      return false;
    }
    const auto offsets = stream.row_offsets;
    const auto episode = std::upper_bound(offsets.begin(), offsets.end(), row) - offsets.begin() - 1;
    throw FrameError(source.frames.dataset->path() + ": stream '" + stream.name + "', episode " +
                     std::to_string(episode) + ", row " + std::to_string(row - offsets[static_cast<size_t>(episode)]) +
                     ": " + error.what() + "; on_bad_frame='pad' passes over it");
  }
}

// 0 where the source's camera has no matrix.
void Camera::write_intrinsics(const Source* source, const ImageDraw& draw, int64_t step, float* to) {
  std::fill_n(to, 9, 0.0F);
  if (source == nullptr) return;
  const std::vector<double>& stored = stream_of(source->frames).frames->intrinsics;
  if (stored.empty()) return;
  std::array<double, 9> matrix{};
  source->transform.intrinsics(stored.data(), draw, step, matrix.data());
  std::copy(matrix.begin(), matrix.end(), to);
}

void Camera::fill(const Batch& batch) const {
  const int64_t out_bytes = any_->transform.bytes();
  const int64_t frames = batch.count * batch.steps;
  parallel_for(frames, std::clamp<int64_t>(frames / (4 * num_threads()), 1, 16), [&](int64_t begin, int64_t end) {
    std::vector<uint8_t> blob;
    std::vector<uint8_t> frame(static_cast<size_t>(frame_bytes_));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sample = i / batch.steps;
      const int64_t step = i % batch.steps;
      ImageDraw draw = batch.first;
      draw.sample = batch.samples.empty() ? draw.sample + sample : batch.samples[static_cast<size_t>(sample)];
      const int64_t number = batch.numbers[i];
      const Source* const source = source_of(number);
      bool there = source != nullptr;
      if (there && !decode(*source, number - source->first_number, blob, frame)) {
        there = false;
        batch.is_pad[i] = true;
      }
      const ImageTransform& transform = (source != nullptr ? source : any_)->transform;
      transform.run(there ? frame.data() : nullptr, draw, step, static_cast<char*>(batch.out) + i * out_bytes);
      if (batch.intrinsics != nullptr && (per_frame_ || step == 0)) {
        write_intrinsics(source, draw, step, batch.intrinsics + 9 * (per_frame_ ? i : sample));
      }
    }
  });
}

}  // namespace robocache
