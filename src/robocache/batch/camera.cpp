#include "robocache/batch/camera.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include "robocache/core/arguments.hpp"
#include "robocache/core/host_memory.hpp"
#include "robocache/core/thread_pool.hpp"
#include "robocache/image/codec.hpp"
#include "robocache/image/jpeg_frames.hpp"
#include "robocache/source/read_rows.hpp"

namespace robocache {
namespace {

const Stream& stream_of(const Camera::Frames& frames) {
  return frames.dataset->streams()[static_cast<size_t>(frames.stream)];
}

FrameShape frame_shape_of(const Stream& stream) {
  return {stream.shape[0], stream.shape[1], stream.shape[2], stream.dtype};
}

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Bytes [begin, begin + bytes) of a stream that stays in its file.
void read_bytes(const StreamRows& rows, int64_t begin, int64_t bytes, void* to) {
  constexpr int64_t kPiece = int64_t{4} << 20;
  parallel_for(bytes, kPiece, [&](int64_t first, int64_t end) {
    auto* const at = static_cast<char*>(to) + first;
    const auto size = static_cast<size_t>(end - first);
    if (rows.values == nullptr) {
      read_rows(rows.file, begin + first, size, at);
    } else {
      std::memcpy(at, static_cast<const char*>(rows.values) + begin + first, size);
    }
  });
}

// A row's bytes: those in memory, or read to `memory`.
std::span<const uint8_t> file_of(const ResidentStream& resident, int64_t row, std::vector<uint8_t>& memory) {
  const StreamRows rows = resident.rows();
  const auto [begin, end] = resident.bytes_of(row);
  const auto bytes = static_cast<size_t>(end - begin);
  if (rows.values != nullptr) return {static_cast<const uint8_t*>(rows.values) + begin, bytes};
  if (memory.size() < bytes) memory.resize(bytes);
  read_rows(rows.file, begin, bytes, memory.data());
  return {memory.data(), bytes};
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
    source.emplace(
        Source{*frames, ImageTransform(shape, options, key_, stream.frames->unit_m), shape, numbers_ + 1, false});
    for (const std::optional<Source>& earlier : std::span(sources_).first(sources_.size() - 1)) {
      if (!earlier || &stream_of(earlier->frames) != &stream) continue;
      source->first_number = earlier->first_number;
      source->again = true;
    }
    if (any_ == nullptr) any_ = &*source;
    if (!source->again) numbers_ += stream.rows;
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
    if (source && !source->again && source->first_number <= number) found = &*source;
  }
  return found;
}

// The frame of a row, or false where it does not decode and may be padding.
bool Camera::decode(const Source& source, int64_t row, std::vector<uint8_t>& blob, std::vector<uint8_t>& frame) const {
  const Stream& stream = stream_of(source.frames);
  const auto bytes = file_of(*source.frames.resident, row, blob);
  try {
    decode_frame(stream.frames->codec, bytes, source.shape, frame.data());
    return true;
  } catch (const FrameError& error) {
    if (pad_bad_frames_) {
      ++bad_frames_;
      return false;
    }
    throw bad_frame(source, row, error.what());
  }
}

FrameError Camera::bad_frame(const Source& source, int64_t row, const std::string& what) {
  return FrameError(place_of(source, row) + ": " + what + "; on_bad_frame='pad' passes over it");
}

// The cache, stream, episode and row of a frame.
std::string Camera::place_of(const Source& source, int64_t row) {
  const Stream& stream = stream_of(source.frames);
  const auto offsets = stream.row_offsets;
  const auto episode = std::upper_bound(offsets.begin(), offsets.end(), row) - offsets.begin() - 1;
  return source.frames.dataset->path() + ": stream '" + stream.name + "', episode " + std::to_string(episode) +
         ", row " + std::to_string(row - offsets[static_cast<size_t>(episode)]);
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
  parallel_for(
      frames, std::clamp<int64_t>(frames / (int64_t{4} * num_threads()), 1, 16), [&](int64_t begin, int64_t end) {
        std::vector<uint8_t> blob;
        std::vector<uint8_t> frame(static_cast<size_t>(frame_bytes_));
        for (int64_t i = begin; i < end; ++i) {
          const int64_t sample = i / batch.steps;
          const int64_t step = i % batch.steps;
          const ImageDraw draw = batch.draw_of(sample);
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

// ---- on a CUDA device --------------------------------------------------------------------------------------------------

std::string Camera::not_for_device() const {
  const Stream& first = stream_of(any_->frames);
  if (first.frames->codec == Codec::kPng) return "PNG is decoded by the host";
  for (const std::optional<Source>& source : sources_) {
    if (!source) continue;
    const Stream& other = stream_of(source->frames);
    const bool alike = other.frames->codec == first.frames->codec && source->shape == any_->shape &&
                       other.frames->unit_m == first.frames->unit_m;
    if (!alike) return "the sources' frames differ in size or codec";
  }
  return "";
}

bool Camera::is_jpeg() const { return stream_of(any_->frames).frames->codec == Codec::kJpeg; }

void Camera::bring_to(Device device, Tier tier) {
  device_ = device;
  bring_matrices(device);
  if (is_jpeg()) {
    bring_jpegs(device, tier);
  } else {
    bring_pixels(device, tier);
  }
}

void Camera::bring_matrices(Device device) {
  if (!has_intrinsics_) return;
  std::vector<CameraMatrix> matrices;
  for (const std::optional<Source>& source : sources_) {
    if (!source || source->again) continue;
    CameraMatrix& of_source = matrices.emplace_back(CameraMatrix{source->first_number, {}});
    std::ranges::copy(stream_of(source->frames).frames->intrinsics, of_source.matrix);
  }
  matrices_ = DeviceBuffer(device, matrices.size() * sizeof(CameraMatrix));
  matrices_.fill_from_host(matrices.data(), matrices_.bytes());
}

std::string Camera::bring_by_batch(Device device, int64_t frames) {
  std::string why = not_for_device();
  if (!why.empty()) return why;
  int64_t largest = 0;
  for (const std::optional<Source>& source : sources_) {
    if (!source || source->again) continue;
    largest = std::max(largest, source->frames.resident->largest_row_bytes());
  }
  constexpr int64_t kHeader = 65536;
  if (largest > 2 * frame_bytes_ + kHeader) return "a file is larger than twice its pixels";
  device_ = device;
  if (is_jpeg()) {
    bring_damage(device);
    packed_bytes_ = packed_jpegs_bytes(any_->shape, frames, largest);
  } else {
    packed_bytes_ = frames * frame_bytes_;
  }
  return "";
}

PackedJpegs Camera::pack(const Batch& batch, void* memory) const {
  const int64_t frames = batch.count * batch.steps;
  std::vector<std::pair<const Source*, int64_t>> wanted(static_cast<size_t>(frames));  // a source's row
  std::vector<int64_t> bytes(static_cast<size_t>(frames));
  for (int64_t i = 0; i < frames; ++i) {
    const int64_t number = batch.numbers[i];
    const int64_t sample = i / batch.steps;
    const int64_t step = i % batch.steps;
    const Source* const source = source_of(number);
    if (batch.intrinsics != nullptr && (per_frame_ || step == 0)) {
      write_intrinsics(source, batch.draw_of(sample), step, batch.intrinsics + 9 * (per_frame_ ? i : sample));
    }
    if (source == nullptr) continue;
    const int64_t row = number - source->first_number;
    const auto [begin, end] = source->frames.resident->bytes_of(row);
    wanted[static_cast<size_t>(i)] = {source, row};
    bytes[static_cast<size_t>(i)] = std::max<int64_t>(1, end - begin);  // an empty file is a damaged one
  }
  const auto read = [&](int64_t i, std::vector<uint8_t>& to) {
    const auto& [source, row] = wanted[static_cast<size_t>(i)];
    return file_of(*source->frames.resident, row, to);
  };
  if (is_jpeg()) {
    const auto refuse = [&](int64_t i, const FrameError& error) {
      const auto& [source, row] = wanted[static_cast<size_t>(i)];
      if (!pad_bad_frames_) throw bad_frame(*source, row, error.what());
      ++bad_frames_;
      batch.numbers[i] = 0;
      batch.is_pad[i] = true;
    };
    return pack_jpegs(any_->shape, bytes, read, refuse, memory);
  }
  parallel_for(frames, 1, [&](int64_t first, int64_t end) {
    std::vector<uint8_t> pixels;
    for (int64_t i = first; i < end; ++i) {
      const bool there = bytes[static_cast<size_t>(i)] > 0;
      batch.numbers[i] = there ? i : -1;
      if (there) std::ranges::copy(read(i, pixels), static_cast<uint8_t*>(memory) + i * frame_bytes_);
    }
  });
  PackedJpegs packed{};
  packed.bytes = frames * frame_bytes_;
  return packed;
}

void Camera::bring_jpegs(Device device, Tier tier) {
  std::vector<uint8_t> blobs;
  std::vector<int64_t> offsets{0};
  check_host_memory(2, device, tier);
  for (const std::optional<Source>& source : sources_) {
    if (!source || source->again) continue;
    const ResidentStream& resident = *source->frames.resident;
    const int64_t rows = stream_of(source->frames).rows;
    const auto before = static_cast<int64_t>(blobs.size());
    for (int64_t row = 0; row < rows; ++row) offsets.push_back(before + resident.bytes_of(row).end);
    blobs.resize(static_cast<size_t>(offsets.back()));
    read_bytes(resident.rows(), 0, offsets.back() - before, blobs.data() + before);
  }
  std::vector<int64_t> rows(offsets.size() - 1);
  std::iota(rows.begin(), rows.end(), int64_t{0});
  const JpegFrames frames = prepare_jpeg_frames(blobs, offsets, rows, [&](int64_t i) {
    const Source& source = *source_of(i + 1);
    return place_of(source, i + 1 - source.first_number);
  });
  blobs = {};
  ResidentJpegs resident(frames, device, tier);
  bring_damage(device);
  jpegs_.emplace(std::move(resident));
}

void Camera::bring_damage(Device device) {
  damage_ = PinnedBuffer(device, sizeof(JpegDamage));
  *static_cast<JpegDamage*>(damage_.data()) = {};
}

// So many copies of the frames are in host memory at once, and one more where they stay there. Where a control group is full
// nothing refuses: the process ends.
void Camera::check_host_memory(int64_t copies, Device device, Tier tier) const {
  int64_t bytes = 0;
  for (const std::optional<Source>& source : sources_) {
    if (source && !source->again) bytes += ResidentStream::bytes(*source->frames.dataset, source->frames.stream);
  }
  bytes *= (copies + (tier == Tier::kPinned ? 1 : 0)) * local_world_size();
  const int64_t free = host_memory().free_bytes;
  if (bytes > free) {
    throw OutOfMemory("stream '" + key_ + "': bringing it to " + device_name(device) + " needs " +
                      std::to_string(bytes) + " bytes of host memory, free are " + std::to_string(free));
  }
}

void Camera::bring_pixels(Device device, Tier tier) {
  check_host_memory(0, device, tier);
  const auto bytes = static_cast<size_t>((numbers_ + 1) * frame_bytes_);
  PinnedBuffer pinned(device, tier == Tier::kPinned ? bytes : 0);
  DeviceBuffer on_device(device, tier == Tier::kPinned ? 0 : bytes);
  constexpr int64_t kPiece = int64_t{32} << 20;
  PinnedBuffer piece(device, tier == Tier::kPinned ? 0 : static_cast<size_t>(std::max(kPiece, frame_bytes_)));
  int64_t at = 0;
  // `fill` writes the next bytes to host memory.
  const auto append = [&](int64_t size, const auto& fill) {
    if (tier == Tier::kPinned) {
      fill(static_cast<char*>(pinned.data()) + at);
    } else {
      fill(piece.data());
      const CudaBackend& backend = cuda_backend();
      check_cuda(backend.copy_from_host(device.index, static_cast<char*>(on_device.data()) + at, piece.data(),
                                        static_cast<size_t>(size), nullptr),
                 "copying frames to the device");
      check_cuda(backend.synchronize(device.index, nullptr), "copying frames to the device");
    }
    at += size;
  };
  append(frame_bytes_, [&](void* to) { std::memset(to, 0, static_cast<size_t>(frame_bytes_)); });
  for (const std::optional<Source>& source : sources_) {
    if (!source || source->again) continue;
    const int64_t all = stream_of(source->frames).rows * frame_bytes_;
    for (int64_t begin = 0; begin < all; begin += kPiece) {
      const int64_t size = std::min(kPiece, all - begin);
      append(size, [&](void* to) { read_bytes(source->frames.resident->rows(), begin, size, to); });
    }
  }
  pixels_ = tier == Tier::kPinned ? pinned.on_device() : on_device.data();
  pinned_pixels_ = std::move(pinned);
  device_pixels_ = std::move(on_device);
}

int64_t Camera::scratch_bytes(int64_t frames) const {
  if (!is_jpeg()) return 0;
  return aligned(frames * frame_bytes_) +
         (jpegs_ ? jpegs_->workspace_bytes(frames) : packed_jpegs_workspace_bytes(any_->shape, frames));
}

void Camera::fill_on_device(const Batch& batch, const PackedJpegs& packed, const void* memory, void* scratch,
                            CudaStream stream) const {
  const int64_t frames = batch.count * batch.steps;
  const void* pixels = pixels_;
  int64_t of_pixels = numbers_ + 1;
  const int64_t* rows = batch.numbers;
  if (is_jpeg()) {
    auto* const decoded = static_cast<uint8_t*>(scratch);
    uint8_t* const workspace = decoded + aligned(frames * frame_bytes_);
    const JpegMarks marks{.first_row = 1,
                          .is_pad = pad_bad_frames_ ? batch.is_pad : nullptr,
                          .found = static_cast<JpegDamage*>(damage_.on_device())};
    if (jpegs_) {
      jpegs_->decode(batch.numbers, frames, decoded, nullptr, workspace, stream, marks);
    } else {
      decode_packed_jpegs(packed, memory, any_->shape, batch.numbers, frames, decoded, workspace, device_, stream,
                          marks);
    }
    pixels = decoded;
    of_pixels = frames;
    rows = nullptr;
  } else if (comes_by_batch()) {
    pixels = memory;
    of_pixels = frames;
  }
  const auto transform = [&](int64_t sample, int64_t count) {
    const int64_t first = sample * batch.steps;
    const ImageDraw draw = batch.draw_of(sample);
    const char* const from = static_cast<const char*>(pixels) + (rows == nullptr ? first * frame_bytes_ : 0);
    any_->transform.run_on_device(from, rows == nullptr ? of_pixels - first : of_pixels,
                                  rows == nullptr ? nullptr : rows + first, draw, count, batch.steps,
                                  static_cast<char*>(batch.out) + first * any_->transform.bytes(), device_, stream);
    if (matrices_.bytes() == 0) return;
    any_->transform.intrinsics_on_device(static_cast<const CameraMatrix*>(matrices_.data()),
                                         static_cast<int32_t>(matrices_.bytes() / sizeof(CameraMatrix)),
                                         batch.numbers + first, draw, count, batch.steps,
                                         batch.intrinsics + 9 * (per_frame_ ? first : sample), device_, stream);
  };
  if (batch.samples.empty()) return transform(0, batch.count);
  for (int64_t sample = 0; sample < batch.count; ++sample) transform(sample, 1);
}

void Camera::check_damage() const {
  if (damage_.data() == nullptr || pad_bad_frames_) return;
  const auto* const found = static_cast<const volatile JpegDamage*>(damage_.data());
  const int64_t frames = found->frames;
  if (damage_told_.exchange(frames) == frames) return;
  const int64_t number = found->row;
  const Source* const source = source_of(number);
  throw bad_frame(*source, number - source->first_number, "JPEG: its entropy-coded data is damaged");
}

int64_t Camera::bad_frames() const {
  const auto* const found = static_cast<const volatile JpegDamage*>(damage_.data());
  return bad_frames_ + (found == nullptr ? 0 : int64_t{found->frames});
}

}  // namespace robocache
