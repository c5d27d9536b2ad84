// The frames of one of the batch's keys. The alignment chooses rows by their numbers; here they are decoded, cropped,
// resized and normalised.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/core/dtype.hpp"
#include "robocache/image/transform.hpp"
#include "robocache/source/resident.hpp"

namespace robocache {

// Immutable but for a count; any number of threads may use one.
class Camera {
 public:
  Camera(const Camera&) = delete;
  Camera& operator=(const Camera&) = delete;

  // Of a source, null where it lacks the key.
  struct Frames {
    std::shared_ptr<const Dataset> dataset;
    int64_t stream;
    std::shared_ptr<const ResidentStream> resident;
  };

  // `pad_bad_frames`: one that does not decode is black and padding, and counted; else it throws.
  // Throws ArgumentError that names images['key'], also where the sources' frames do not come out alike.
  Camera(std::string key, std::span<const std::optional<Frames>> sources, const ImageOptions& options,
         bool pad_bad_frames);

  // Of a frame in the batch.
  const std::vector<int64_t>& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  bool has_intrinsics() const { return has_intrinsics_; }

  // All sources' rows have numbers: those of a source begin at first_number(source), and 0 is none.
  int64_t numbers() const { return numbers_; }
  int64_t first_number(size_t source) const { return sources_[source] ? sources_[source]->first_number : 1; }

  // What a batch has of the key, in host memory.
  struct Batch {
    const int64_t* numbers;  // [count, steps] of rows
    ImageDraw first;         // of sample 0; sample i's is `samples`' or the i-th behind it
    std::span<const int64_t> samples;
    int64_t count;
    int64_t steps;
    void* out;          // [count, steps, shape...]
    bool* is_pad;       // [count, steps]; of frames that do not decode
    float* intrinsics;  // [count, 3, 3], of each step with per_frame; null where the camera has none
  };

  // Fills `out` and `intrinsics`. Throws FrameError and FileError, which name stream, episode and row.
  void fill(const Batch& batch) const;

  // How many did not decode so far.
  int64_t bad_frames() const { return bad_frames_; }

 private:
  struct Source {
    Frames frames;
    ImageTransform transform;
    FrameShape shape;
    int64_t first_number;
  };

  const Source* source_of(int64_t number) const;
  static void write_intrinsics(const Source* source, const ImageDraw& draw, int64_t step, float* to);
  bool decode(const Source& source, int64_t row, std::vector<uint8_t>& blob, std::vector<uint8_t>& frame) const;

  std::string key_;
  std::vector<std::optional<Source>> sources_;
  const Source* any_ = nullptr;
  bool per_frame_;
  bool pad_bad_frames_;
  std::vector<int64_t> shape_;
  DType dtype_;
  bool has_intrinsics_ = false;
  int64_t numbers_ = 0;
  int64_t frame_bytes_ = 0;  // the largest of a decoded one
  mutable std::atomic<int64_t> bad_frames_{0};
};

}  // namespace robocache
