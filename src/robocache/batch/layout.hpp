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

  // Adds an array and returns its offset. Throws ArgumentError if another array has the name; `of` describes the array
  // in that message.
  int64_t add(std::string name, DType dtype, std::vector<int64_t> shape, const std::string& of);

  // Reserves `sample_bytes` of memory for each sample, which is no array, and returns its offset.
  int64_t add_scratch(int64_t sample_bytes);

  // The same, with `bytes` for the whole batch.
  int64_t add_room(int64_t bytes);

  const std::vector<BatchArray>& arrays() const { return arrays_; }
  int64_t bytes() const { return bytes_; }

  // Returns an array of a batch of `samples` samples in `memory`.
  static TensorView view(const BatchArray& array, int64_t samples, void* memory, Device device);

 private:
  int64_t batch_size_;
  int64_t bytes_ = 0;
  std::vector<BatchArray> arrays_;
  std::vector<std::string> owners_;  // a description of each array
};

}  // namespace robocache
