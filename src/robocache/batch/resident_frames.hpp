// A camera's frames in memory, as batches take them from there: shared by all loaders of this process on one dataset, and
// copies in host memory by all ranks of the host.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
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

// What a batch does to every frame alike before it draws anything; the pixels are bytes again.
struct FrameResize {
  ImageSize size;
  ImageFit fit;

  bool operator==(const FrameResize&) const = default;
};

struct FramesWanted {
  std::shared_ptr<const Dataset> dataset;
  int64_t stream;
  Device device;
  Tier tier;                                // kDecoded; on a CUDA device also kDevice, kPinned of JPEGs and raw frames
  std::optional<FrameResize> resized = {};  // of kDecoded
  std::optional<RowSpan> part = {};         // these rows alone

  bool operator==(const FramesWanted&) const = default;
};

// "CACHE: stream 'top', episode 1, row 3", of a row of all episodes.
std::string frame_place(const Dataset& dataset, int64_t stream, int64_t row);

// A row's file, where the host has it, or read to `memory`.
std::span<const uint8_t> frame_file(const ResidentStream& files, int64_t row, std::vector<uint8_t>& memory);

// Of frames as they are stored.
FrameShape stored_shape(const Stream& stream);

// Any number of threads may use one.
class ResidentFrames {
 public:
  // Brings the frames unless they are there already, and waits until they are; but decoded frames on the CPU are made when
  // they are first asked for. Throws FrameError for a frame that does not decode, FileError, DeviceError, OutOfMemory.
  static std::shared_ptr<const ResidentFrames> get(const FramesWanted& wanted);

  // What they take of the tier's memory, and what of that is in memory already.
  static int64_t bytes(const FramesWanted& wanted);
  static int64_t bytes_present(const FramesWanted& wanted);

  // Of the host's memory, what decoded frames on the CPU are yet to take: it counts as free and is not.
  static int64_t bytes_promised();

  ~ResidentFrames();
  ResidentFrames(const ResidentFrames&) = delete;
  ResidentFrames& operator=(const ResidentFrames&) = delete;

  int64_t first_row() const { return rows_.begin; }
  int64_t rows() const { return rows_.end - rows_.begin; }
  bool is_decoded() const { return wanted_.tier == Tier::kDecoded; }
  FrameShape shape() const { return shape_; }  // of a frame as it lies here, decoded

  // On a CUDA device: frames that are to be decoded, or null; else the pixels of rows(), dense, there.
  const ResidentJpegs* jpegs() const { return jpegs_ ? &*jpegs_ : nullptr; }
  const void* pixels() const { return pixels_; }

  // On the CPU: a row's pixels. Where they are not there yet, make(row, to) writes them, to where they stay, or to `meanwhile`
  // while another thread is at them; what it throws is thrown, and they are not there.
  const uint8_t* at(int64_t row, const std::function<void(int64_t row, uint8_t* to)>& make,
                    std::vector<uint8_t>& meanwhile) const;

  // For people, as ResidentStream's.
  const std::string& note() const { return stream_ != nullptr ? stream_->note() : host_memory_.note(); }

 private:
  explicit ResidentFrames(FramesWanted wanted);
  const Stream& stream() const;
  void bring_jpegs(const ResidentStream& files);
  void decode(const ResidentStream& files);
  void make_room();

  FramesWanted wanted_;
  RowSpan rows_;
  FrameShape shape_;
  std::shared_ptr<const ResidentStream> stream_;  // raw frames as they are stored
  std::optional<ResidentJpegs> jpegs_;
  DeviceBuffer device_memory_;
  HostCopy host_memory_;
  const void* pixels_ = nullptr;
  mutable std::atomic<int64_t> bytes_to_come_{0};
};

}  // namespace robocache
