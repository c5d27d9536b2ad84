// A camera of the batch: its frames in every source, and the host's decoding. Frames are numbered over all sources, so that
// alignment chooses among numbers. FramesKey (frames_key.cpp) fills batches with the frames.
//
//   Camera camera("top", sources, options, false);
//   camera.load(device, Tier::kDecoded);
//   const Camera::Source* source = camera.source_of(number);  // a number that the plan chose
//   const uint8_t* pixels = camera.pixels_of(*source, number - source->first_number, memory);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "robocache/batch/resident_frames.hpp"
#include "robocache/cache/dataset.hpp"
#include "robocache/core/device.hpp"
#include "robocache/core/dtype.hpp"
#include "robocache/core/error.hpp"
#include "robocache/image/transform.hpp"
#include "robocache/source/resident.hpp"

namespace robocache {

// Immutable after set_files() and load(): then any number of threads may use a camera. All cameras of this process that
// load the same frames share that memory.
class Camera {
 public:
  Camera(const Camera&) = delete;
  Camera& operator=(const Camera&) = delete;

  // A source's stream of frames.
  struct Frames {
    std::shared_ptr<const Dataset> dataset;
    int64_t stream;
    std::shared_ptr<const ResidentStream> files;  // null: the host does not read them
    std::optional<RowRange> part = {};            // only these rows are drawn
  };

  struct Source {
    Frames frames;
    ImageTransform transform;  // from stored frames to the batch
    FrameShape shape;          // of stored frames
    int64_t first_number;      // the number of the stream's first row
    bool is_repeat;            // an earlier source has the same rows: this one uses the numbers of the earlier one
    // If frames are resized when they are decoded: how, and the transform from resized frames to the batch.
    std::optional<FrameResize> resized;
    std::optional<ImageTransform> resized_to_batch;
    std::shared_ptr<const ResidentFrames> resident = nullptr;  // loaded by load(); null before

    const Stream& stream() const { return frames.dataset->stream(frames.stream); }
    const ImageTransform& to_batch() const {
      return resized && resident != nullptr && resident->is_decoded() ? *resized_to_batch : transform;
    }
  };

  // With `pad_bad_frames` a frame that does not decode is black and padding; else it is an error. Throws ArgumentError
  // that names delta_timestamps['key'].images, also if the sources' frames get different shapes in the batch.
  Camera(std::string key, std::span<const std::optional<Frames>> sources, const ImageOptions& options,
         bool pad_bad_frames);

  void set_files(size_t source, std::shared_ptr<const ResidentStream> files) {
    sources_[source]->frames.files = std::move(files);
  }

  // The shape of a frame in the batch.
  const std::vector<int64_t>& shape() const { return shape_; }
  bool has_intrinsics() const { return has_intrinsics_; }

  // The rows of all sources are numbered from 1 to numbers(). The number 0 means no row.
  int64_t numbers() const { return numbers_; }
  int64_t first_number(size_t source) const { return sources_[source] ? sources_[source]->first_number : 1; }
  const Source* source_of(int64_t number) const;  // null for 0

  // The sources without repeats, at least one; any() is the first.
  const std::vector<const Source*>& distinct() const { return distinct_; }
  const Source& any() const { return *distinct_.front(); }

  // Returns the pixels of a row, in `memory` or in a decoded copy; null if they do not decode and may be padding.
  // Throws FrameError and FileError that name stream, episode and row.
  const uint8_t* pixels_of(const Source& source, int64_t row, FrameMemory& memory) const;
  FrameError bad_frame(const Source& source, int64_t row, const std::string& reason) const;

  // Writes the matrix [3, 3] of a frame: zeros without a source, or if its camera has no matrix.
  static void write_intrinsics(const Source* source, const ImageDraw& draw, int64_t step, float* output);

  // Returns why a CUDA device cannot decode the sources' frames, or "".
  std::string not_for_device() const;
  // Returns why the host cannot pack the mapped files of a batch into one block for a CUDA device to decode, or "".
  std::string why_not_packed() const;
  int64_t largest_file_bytes() const;

  // Returns the bytes of all sources' frames in a tier, or none for kDecoded if they are stored as pixels.
  std::optional<int64_t> bytes(Device device, Tier tier) const;
  // Returns how many bytes of these frames are in memory already.
  int64_t bytes_present(Device device, Tier tier) const;

  // Loads all frames into a tier of memory: kDecoded, or, if a CUDA device decodes them, kDevice or kPinned. Throws
  // FrameError for frames that are damaged or that the device cannot decode, FileError, DeviceError, OutOfMemory; nothing is
  // loaded then.
  void load(Device device, Tier tier);

  // A note for people about the loaded frames, like ResidentStream::note().
  std::string note() const { return any().resident != nullptr ? any().resident->note() : ""; }

  // For JPEGs in pinned memory, which are copied to device memory a batch ahead: the bytes there from one frame to the next,
  // enough for the largest entropy-coded data. Else 0.
  int64_t fetched_stride() const { return fetched_stride_; }

 private:
  void resize_when_decoded(Source& source, const ImageOptions& options) const;
  FramesWanted frames_wanted(const Source& source, Device device, Tier tier) const;

  std::string key_;
  std::vector<std::optional<Source>> sources_;
  std::vector<const Source*> distinct_;
  bool pad_bad_frames_;
  std::vector<int64_t> shape_;
  bool has_intrinsics_ = false;
  int64_t numbers_ = 0;
  int64_t fetched_stride_ = 0;
};

}  // namespace robocache
