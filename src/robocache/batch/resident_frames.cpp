#include "robocache/batch/resident_frames.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>
#include <utility>

#include "robocache/core/error.hpp"
#include "robocache/core/thread_pool.hpp"
#include "robocache/image/codec.hpp"
#include "robocache/image/frames.hpp"
#include "robocache/image/jpeg_frames.hpp"
#include "robocache/source/living.hpp"
#include "robocache/source/read_rows.hpp"

namespace robocache {
namespace {

constexpr int64_t kPieceBytes = int64_t{64} << 20;  // of frames that are loaded at once

const Stream& stream_of(const FramesWanted& wanted) { return wanted.dataset->stream(wanted.stream); }

RowRange rows_of(const FramesWanted& wanted) { return wanted.part.value_or(RowRange{0, stream_of(wanted).rows}); }

FrameShape decoded_shape(const FramesWanted& wanted) {
  FrameShape shape = stored_shape(stream_of(wanted));
  if (wanted.resized) {
    shape.height = wanted.resized->size.height;
    shape.width = wanted.resized->size.width;
  }
  return shape;
}

ImageTransform resize_of(const FramesWanted& wanted) {
  return ImageTransform(stored_shape(stream_of(wanted)),
                        {.size = wanted.resized->size,
                         .fit = wanted.resized->fit,
                         .interpolation = wanted.resized->interpolation,
                         .dtype = DType::kUInt8,
                         .layout = ImageLayout::kHwc},
                        stream_of(wanted).name);
}

bool is_lazy(const FramesWanted& wanted) { return wanted.tier == Tier::kDecoded && !wanted.device.is_cuda(); }

// Whether the frames are rows of a ResidentStream: raw frames that stay as they are stored.
bool is_of_stream(const FramesWanted& wanted) {
  return wanted.tier != Tier::kDecoded && stream_of(wanted).frames->codec == Codec::kRaw;
}

// The state of a frame that is decoded when it is first asked for: one byte for each frame, after the pixels of all frames.
enum State : uint8_t { kMissing = 0, kBeingDecoded = 1, kPresent = 2 };

std::string identity_of(const FramesWanted& wanted) {
  if (wanted.part || local_world_size() == 1) return "";
  std::string identity = wanted.dataset->open_values(wanted.stream).identity;
  if (wanted.tier != Tier::kDecoded) return identity + "-segments";
  identity += "-decoded";
  if (const auto& resize = wanted.resized) {
    identity += "-" + std::to_string(resize->size.height) + "x" + std::to_string(resize->size.width) + "-" +
                std::to_string(static_cast<int>(resize->fit)) + "-" +
                std::to_string(static_cast<int>(resize->interpolation));
  }
  return identity;
}

Living<ResidentFrames>& living_frames() {
  static Living<ResidentFrames> frames;
  return frames;
}

std::atomic<int64_t>& promised_bytes() {
  static std::atomic<int64_t> bytes;
  return bytes;
}

// Reads bytes [begin, begin + bytes) of a stream's files.
void read_bytes(const StreamRows& rows, int64_t begin, int64_t bytes, void* to) {
  constexpr int64_t kReadBytes = int64_t{4} << 20;
  parallel_for(bytes, kReadBytes, [&](int64_t first, int64_t end) {
    auto* const piece = static_cast<char*>(to) + first;
    const auto size = static_cast<size_t>(end - first);
    if (rows.values == nullptr) {
      read_rows(rows.file, begin + first, size, piece);
    } else {
      std::memcpy(piece, static_cast<const char*>(rows.values) + begin + first, size);
    }
  });
}

void copy_to(Device device, void* to, const void* from, int64_t bytes) {
  const CudaBackend& backend = cuda_backend();
  check_cuda(backend.copy_from_host(device.index, to, from, static_cast<size_t>(bytes), nullptr), "copying frames");
  check_cuda(backend.synchronize(device.index, nullptr), "copying frames");
}

// Returns the number of frames of `shape` that are loaded at once.
int64_t rows_of_piece(const FrameShape& shape, int64_t rows) {
  return std::clamp<int64_t>(kPieceBytes / shape.bytes(), 1, std::max<int64_t>(rows, 1));
}

// Decodes files into the memory of a CUDA device, a piece at a time: JPEGs by its kernels, others by the host's threads.
class PieceDecoder {
 public:
  PieceDecoder(const FramesWanted& wanted, const ResidentStream& files, int64_t most_frames)
      : wanted_(wanted),
        files_(files),
        shape_(stored_shape(stream_of(wanted))),
        on_device_(stream_of(wanted).frames->codec == Codec::kJpeg &&
                   files.largest_row_bytes() <= most_packed_bytes(shape_)) {
    const int64_t bytes =
        on_device_ ? packed_jpegs_bytes(shape_, most_frames, files.largest_row_bytes()) : most_frames * shape_.bytes();
    staging_ = PinnedBuffer(wanted.device, static_cast<size_t>(bytes));
    if (!on_device_) return;
    packed_ = DeviceBuffer(wanted.device, static_cast<size_t>(bytes));
    workspace_ = DeviceBuffer(wanted.device, static_cast<size_t>(packed_jpegs_workspace_bytes(shape_, most_frames)));
    damage_ = PinnedBuffer(wanted.device, sizeof(JpegDamage));
    std::vector<int64_t> numbers(static_cast<size_t>(most_frames));
    std::iota(numbers.begin(), numbers.end(), int64_t{0});
    numbers_ = DeviceBuffer(wanted.device, numbers.size() * sizeof(int64_t));
    numbers_.fill_from_host(numbers.data(), numbers_.bytes());
  }

  // Decodes the frames [begin, begin + count) to `to`, and waits for them.
  void decode(int64_t begin, int64_t count, uint8_t* to) {
    if (!on_device_) {
      for_each_frame(
          count,
          [&](int64_t i) {
            thread_local std::vector<uint8_t> memory;
            decode_frame(stream_of(wanted_).frames->codec, frame_file(files_, begin + i, memory), shape_,
                         static_cast<uint8_t*>(staging_.data()) + i * shape_.bytes());
          },
          [&](int64_t i) { return name_of(begin + i); });
      return copy_to(wanted_.device, to, staging_.data(), count * shape_.bytes());
    }
    std::vector<int64_t> bytes;
    for (int64_t row = begin; row < begin + count; ++row) {
      const auto [first, end] = files_.bytes_of(row);
      bytes.push_back(std::max<int64_t>(1, end - first));  // 0 means no file, and an empty file is damaged
    }
    const PackedJpegs packed = pack_jpegs(
        shape_, bytes, [&](int64_t i, std::vector<uint8_t>& memory) { return frame_file(files_, begin + i, memory); },
        [&](int64_t i, const FrameError& error) { throw FrameError(name_of(begin + i), ": ", error.what()); },
        staging_.data());
    copy_to(wanted_.device, packed_.data(), staging_.data(), packed.bytes);
    *static_cast<JpegDamage*>(damage_.data()) = {};
    decode_packed_jpegs(packed, packed_.data(), shape_, static_cast<const int64_t*>(numbers_.data()), count, to,
                        workspace_.data(), wanted_.device, {},
                        {.damage_report = static_cast<JpegDamage*>(damage_.on_device())});
    check_cuda(cuda_backend().synchronize(wanted_.device.index, nullptr), "decoding frames");
    const auto* const damage = static_cast<const volatile JpegDamage*>(damage_.data());
    if (damage->frames == 0) return;
    throw FrameError(name_of(begin + damage->row), ": JPEG: its entropy-coded data is damaged");
  }

 private:
  std::string name_of(int64_t row) const { return frame_name(*wanted_.dataset, wanted_.stream, row); }

  const FramesWanted& wanted_;
  const ResidentStream& files_;
  FrameShape shape_;
  bool on_device_;
  PinnedBuffer staging_, damage_;
  DeviceBuffer packed_, workspace_, numbers_;
};

}  // namespace

std::string frame_name(const Dataset& dataset, int64_t stream, int64_t row) {
  const Stream& camera = dataset.stream(stream);
  const int64_t episode = camera.episode_of(row);
  return dataset.path() + ": stream '" + camera.name + "', episode " + std::to_string(episode) + ", row " +
         std::to_string(row - camera.first_row(episode));
}

std::span<const uint8_t> frame_file(const ResidentStream& files, int64_t row, std::vector<uint8_t>& memory) {
  const StreamRows rows = files.rows();
  const auto [begin, end] = files.bytes_of(row);
  const auto bytes = static_cast<size_t>(end - begin);
  if (rows.values != nullptr) return {static_cast<const uint8_t*>(rows.values) + begin, bytes};
  if (memory.size() < bytes) memory.resize(bytes);
  read_rows(rows.file, begin, bytes, memory.data());
  return {memory.data(), bytes};
}

FrameShape stored_shape(const Stream& stream) {
  return {stream.shape[0], stream.shape[1], stream.shape[2], stream.dtype};
}

std::shared_ptr<const ResidentFrames> ResidentFrames::get(const FramesWanted& wanted) {
  const auto matches = [&](const ResidentFrames& frames) { return frames.wanted_ == wanted; };
  return living_frames().get(matches, [&] {
    try {
      return std::shared_ptr<const ResidentFrames>(new ResidentFrames(wanted));
    } catch (const OutOfMemory& error) {
      throw OutOfMemory("stream '", stream_of(wanted).name, "': needs ", bytes(wanted), " bytes as '",
                        name_of(wanted.tier), "': ", error.what());
    }
  });
}

int64_t ResidentFrames::bytes(const FramesWanted& wanted) {
  if (wanted.tier != Tier::kDecoded) return ResidentStream::bytes(*wanted.dataset, wanted.stream, wanted.part);
  const RowRange rows = rows_of(wanted);
  const int64_t frame_bytes = decoded_shape(wanted).bytes() + (is_lazy(wanted) ? int64_t{sizeof(State)} : 0);
  return (rows.end - rows.begin) * frame_bytes;
}

int64_t ResidentFrames::bytes_present(const FramesWanted& wanted) {
  if (is_of_stream(wanted)) {
    return ResidentStream::bytes_present(*wanted.dataset, wanted.stream, wanted.device, wanted.tier, wanted.part);
  }
  if (living_frames().contains([&](const ResidentFrames& frames) { return frames.wanted_ == wanted; })) {
    return bytes(wanted);
  }
  const bool on_host = is_lazy(wanted) || wanted.tier == Tier::kPinned;
  return on_host ? HostCopy::bytes_present(identity_of(wanted), bytes(wanted)) : 0;
}

int64_t ResidentFrames::bytes_promised() { return promised_bytes(); }

ResidentFrames::ResidentFrames(FramesWanted wanted)
    : wanted_(std::move(wanted)), rows_(rows_of(wanted_)), shape_(decoded_shape(wanted_)) {
  const auto get_stream = [&](Device device, Tier tier, std::optional<RowRange> part) {
    return ResidentStream::get(wanted_.dataset, wanted_.stream, device, tier, part);
  };
  if (wanted_.resized) resize_ = resize_of(wanted_);
  if (is_lazy(wanted_)) {
    files_ = get_stream({}, Tier::kMapped, wanted_.part);
    reserve_memory();
  } else if (is_of_stream(wanted_)) {
    stream_ = get_stream(wanted_.device, wanted_.tier, wanted_.part);
    pixels_ = static_cast<const char*>(stream_->rows().values) + stream_->bytes_of(rows_.begin).begin;
  } else if (const auto files = get_stream({}, Tier::kMapped, {}); wanted_.tier == Tier::kDecoded) {
    decode(*files);
  } else {
    load_jpegs(*files);
  }
}

ResidentFrames::~ResidentFrames() { promised_bytes() -= bytes_to_come_; }

const Stream& ResidentFrames::stream() const { return stream_of(wanted_); }

// Prepares the JPEGs, a piece at a time, and writes their words into the tier's memory. If another rank has written the words of
// a shared copy, this only makes the tables.
void ResidentFrames::load_jpegs(const ResidentStream& files) {
  const int64_t size = bytes(wanted_);
  JpegFrames frames;
  int64_t words = 0;
  const auto prepare = [&](const std::function<void(const std::vector<uint32_t>& piece)>& write_words) {
    frames = {};
    words = 0;
    std::vector<uint8_t> blobs;
    for (int64_t begin = rows_.begin, end = begin; begin < rows_.end; begin = end) {
      const int64_t first = files.bytes_of(begin).begin;
      std::vector<int64_t> offsets{0};
      while (end < rows_.end && (end == begin || files.bytes_of(end).end - first <= kPieceBytes)) {
        offsets.push_back(files.bytes_of(end++).end - first);
      }
      blobs.resize(static_cast<size_t>(offsets.back()));
      read_bytes(files.rows(), first, offsets.back(), blobs.data());
      std::vector<int64_t> indices(offsets.size() - 1);
      std::iota(indices.begin(), indices.end(), int64_t{0});
      const auto name_of = [&](int64_t i) { return frame_name(*wanted_.dataset, wanted_.stream, begin + i); };
      JpegFrames piece = prepare_jpeg_frames(blobs, offsets, indices, name_of);
      if (const FrameShape got{piece.height, piece.width, piece.channels}; got != shape_) {
        throw FrameError(name_of(0), ": JPEG: expected ", shape_.describe(), ", got ", got.describe());
      }
      write_words(piece.words);
      const auto count = static_cast<int64_t>(piece.words.size());
      append_frames(frames, std::move(piece), words);
      words += count;
    }
  };
  const auto end_of_words = [&](void* memory) { return static_cast<uint32_t*>(memory) + words; };
  const void* device_words = nullptr;
  if (wanted_.tier == Tier::kPinned) {
    bool is_written = false;
    host_memory_ = HostCopy(wanted_.device, identity_of(wanted_), size, [&](void* memory) {
      prepare([&](const std::vector<uint32_t>& piece) { std::ranges::copy(piece, end_of_words(memory)); });
      is_written = true;
    });
    if (!is_written) prepare([](const std::vector<uint32_t>&) {});
    device_words = host_memory_.on_device();
  } else {
    device_memory_ = DeviceBuffer(wanted_.device, static_cast<size_t>(size));
    prepare([&](const std::vector<uint32_t>& piece) {
      copy_to(wanted_.device, end_of_words(device_memory_.data()), piece.data(), std::ssize(piece) * 4);
    });
    device_words = device_memory_.data();
  }
  jpegs_.emplace(frames, static_cast<const uint32_t*>(device_words), wanted_.device);
}

// Decodes all frames into the memory of a CUDA device.
void ResidentFrames::decode(const ResidentStream& files) {
  const FrameShape stored = stored_shape(stream());
  const int64_t piece = rows_of_piece(stored, rows());
  device_memory_ = DeviceBuffer(wanted_.device, static_cast<size_t>(bytes(wanted_)));
  pixels_ = device_memory_.data();
  PieceDecoder decoder(wanted_, files, piece);
  const DeviceBuffer input(wanted_.device, static_cast<size_t>(wanted_.resized ? piece * stored.bytes() : 0));
  for (int64_t begin = rows_.begin; begin < rows_.end; begin += piece) {
    const int64_t count = std::min(piece, rows_.end - begin);
    auto* const pixels = static_cast<uint8_t*>(device_memory_.data()) + (begin - rows_.begin) * shape_.bytes();
    if (!wanted_.resized) {
      decoder.decode(begin, count, pixels);
      continue;
    }
    decoder.decode(begin, count, static_cast<uint8_t*>(input.data()));
    resize_->run_on_device({.pixels = input.data(), .frames = count}, {}, count, 1, pixels, nullptr, wanted_.device,
                           {});
    check_cuda(cuda_backend().synchronize(wanted_.device.index, nullptr), "resizing frames");
  }
}

// Reserves host memory for all frames, and writes only their states.
void ResidentFrames::reserve_memory() {
  const int64_t size = bytes(wanted_);
  const int64_t pixel_bytes = rows() * shape_.bytes();
  host_memory_ = HostCopy({}, identity_of(wanted_), size, [&](void* memory) {
    std::memset(static_cast<uint8_t*>(memory) + pixel_bytes, kMissing, static_cast<size_t>(rows()));
  });
  if (host_memory_.is_shared()) return;  // the system counts it as used already
  bytes_to_come_ = pixel_bytes;
  promised_bytes() += pixel_bytes;
}

void ResidentFrames::decode_row(int64_t row, uint8_t* to, FrameMemory& memory) const {
  const Codec codec = stream().frames->codec;
  const FrameShape stored = stored_shape(stream());
  const std::span<const uint8_t> file = frame_file(*files_, row, memory.file);
  if (!resize_) return decode_frame(codec, file, stored, to);
  memory.stored.resize(static_cast<size_t>(stored.bytes()));
  decode_frame(codec, file, stored, memory.stored.data());
  resize_->run(memory.stored.data(), {}, 0, to);
}

const uint8_t* ResidentFrames::at(int64_t row, FrameMemory& memory) const {
  const int64_t frame_bytes = shape_.bytes();
  auto* const pixels = static_cast<uint8_t*>(host_memory_.data());
  uint8_t* const frame = pixels + (row - rows_.begin) * frame_bytes;
  const std::atomic_ref<uint8_t> state(pixels[rows() * frame_bytes + row - rows_.begin]);
  uint8_t old_state = state.load(std::memory_order_acquire);
  if (old_state == kMissing && state.compare_exchange_strong(old_state, kBeingDecoded)) {
    try {
      decode_row(row, frame, memory);
    } catch (...) {
      state.store(kMissing);
      throw;
    }
    state.store(kPresent, std::memory_order_release);
    if (!host_memory_.is_shared()) {
      bytes_to_come_ -= frame_bytes;
      promised_bytes() -= frame_bytes;
    }
    return frame;
  }
  if (old_state == kPresent) return frame;
  memory.frame.resize(static_cast<size_t>(frame_bytes));
  decode_row(row, memory.frame.data(), memory);
  return memory.frame.data();
}

}  // namespace robocache
