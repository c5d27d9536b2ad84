// A camera's frames in memory, where batches read them. All loaders of this process on one dataset share them, and all
// ranks of a host share copies in host memory.
//
//   const auto frames = ResidentFrames::get({.dataset = dataset, .stream = 3, .device = {}, .tier = Tier::kDecoded});
//   const uint8_t* pixels = frames->at(row, memory);
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/image/frame.hpp"
#include "robocache/image/options.hpp"
#include "robocache/image/resident_jpegs.hpp"
#include "robocache/image/transform.hpp"
#include "robocache/source/host_copy.hpp"
#include "robocache/source/resident.hpp"

namespace robocache {

// A resizing that is the same for every frame, so that frames can be kept resized, as uint8 pixels.
struct FrameResize {
  ImageSize size;
  ImageFit fit;
  ImageInterpolation interpolation;

  bool operator==(const FrameResize&) const = default;
};

// The frames that get() loads, and where.
struct FramesWanted {
  std::shared_ptr<const Dataset> dataset;
  int64_t stream;
  Device device;
  Tier tier;                                // kDecoded; for JPEGs and raw frames on a CUDA device also kDevice, kPinned
  std::optional<FrameResize> resized = {};  // for kDecoded
  std::optional<RowRange> part = {};        // only these rows

  bool operator==(const FramesWanted&) const = default;
};

// Returns "CACHE: stream 'top', episode 1, row 3", for a row counted over all episodes.
std::string frame_name(const Dataset& dataset, int64_t stream, int64_t row);

// Returns the file of a row: a view if the host has it in memory, else it is read into `memory`.
std::span<const uint8_t> frame_file(const ResidentStream& files, int64_t row, std::vector<uint8_t>& memory);

// The shape of frames as they are stored.
FrameShape stored_shape(const Stream& stream);

// Scratch memory for one thread that decodes frames.
struct FrameMemory {
  std::vector<uint8_t> file, stored, frame;
};

// Any number of threads may use one object.
class ResidentFrames {
 public:
  // Loads the frames unless they are in memory, and waits for them. On the CPU, kDecoded frames are decoded when at() first asks
  // for them. Throws FrameError for a frame that does not decode, FileError, DeviceError, OutOfMemory.
  static std::shared_ptr<const ResidentFrames> get(const FramesWanted& wanted);

  // Returns the bytes of the frames in their tier, and how many of them are in memory already.
  static int64_t bytes(const FramesWanted& wanted);
  static int64_t bytes_present(const FramesWanted& wanted);

  // The bytes of host memory that frames on the CPU will take once they are decoded. The system counts them as free.
  static int64_t bytes_promised();

  ~ResidentFrames();
  ResidentFrames(const ResidentFrames&) = delete;
  ResidentFrames& operator=(const ResidentFrames&) = delete;

  int64_t first_row() const { return rows_.begin; }
  int64_t rows() const { return rows_.end - rows_.begin; }
  bool is_decoded() const { return wanted_.tier == Tier::kDecoded; }
  FrameShape shape() const { return shape_; }  // of a decoded frame

  // On a CUDA device: the frames that its kernels decode. Null if they are pixels: these are then in pixels(), dense.
  const ResidentJpegs* jpegs() const { return jpegs_ ? &*jpegs_ : nullptr; }
  const void* pixels() const { return pixels_; }

  // On the CPU: returns the pixels of a row. Missing pixels are decoded into the memory of all frames or, while another
  // thread decodes the same row, into memory.frame. Throws FrameError, FileError; the pixels then stay missing.
  const uint8_t* at(int64_t row, FrameMemory& memory) const;

  // Returns a note for people, as ResidentStream::note() does.
  const std::string& note() const { return stream_ != nullptr ? stream_->note() : host_memory_.note(); }

 private:
  explicit ResidentFrames(FramesWanted wanted);
  const Stream& stream() const;
  void load_jpegs(const ResidentStream& files);
  void decode(const ResidentStream& files);
  void reserve_memory();
  void decode_row(int64_t row, uint8_t* to, FrameMemory& memory) const;

  FramesWanted wanted_;
  RowRange rows_;
  FrameShape shape_;
  std::shared_ptr<const ResidentStream> stream_;  // raw frames as they are stored
  std::shared_ptr<const ResidentStream> files_;   // on the CPU
  std::optional<ImageTransform> resize_;          // with wanted_.resized
  std::optional<ResidentJpegs> jpegs_;
  DeviceBuffer device_memory_;
  HostCopy host_memory_;
  const void* pixels_ = nullptr;
  mutable std::atomic<int64_t> bytes_to_come_{0};  // of frames that are not decoded yet
};

}  // namespace robocache
