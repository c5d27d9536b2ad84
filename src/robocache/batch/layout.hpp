// The offsets of a batch's arrays in its one piece of memory.
//
//   BatchLayout layout(batch_size);
//   const int64_t offset = layout.add("action", DType::kFloat32, {16, 7}, "stream 'action'");
//   TensorView action = BatchLayout::view(layout.arrays()[0], samples, memory, device);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "robocache/core/dtype.hpp"
#include "robocache/core/tensor_view.hpp"

namespace robocache {

// One array of a batch: "<key>" [B, T, ...], "<key>_is_pad" and "<key>_age" [B, T], "<key>_feature_is_pad" [B, D], and
// for each sample "time_ns", "episode_index", "anchor_index" and "dataset_index" [B].
struct BatchArray {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;  // the axes of one sample
  int64_t offset;              // bytes from the batch's start; 256-byte aligned
};

// A range of a batch's bytes that the host has filled.
struct StagedCopy {
  int64_t offset = 0;  // from the batch's start
  int64_t bytes = 0;
};

// Arrays lie in the order in which they were added, and begin at multiples of 256 bytes.
class BatchLayout {
 public:
  explicit BatchLayout(int64_t batch_size) : batch_size_(batch_size) {}

  // Adds an array and returns its offset. Throws ArgumentError with the description if another array has the name.
  int64_t add(std::string name, DType dtype, std::vector<int64_t> shape, const std::string& description);

  // Reserve memory that is no array, for each sample or for the whole batch. Return its offset.
  int64_t add_scratch(int64_t sample_bytes);
  int64_t add_room(int64_t bytes);

  const std::vector<BatchArray>& arrays() const { return arrays_; }
  int64_t bytes() const { return bytes_; }

  // Returns an array of a batch of `samples` samples in `memory`.
  static TensorView view(const BatchArray& array, int64_t samples, void* memory, Device device);

 private:
  int64_t batch_size_;
  int64_t bytes_ = 0;
  std::vector<BatchArray> arrays_;
  std::vector<std::string> descriptions_;  // of the arrays, for errors
};

}  // namespace robocache
