// A stream's rows where a kernel can read them: the mapped files for the CPU, a copy in device memory for CUDA.
#pragma once

#include <cstdint>
#include <memory>

#include "robocache/cache/dataset.hpp"
#include "robocache/core/backend.hpp"

namespace robocache {

// One episode of one stream, 32 bytes: where its rows are and what is needed to guess a row from a time.
struct EpisodeRows {
  int64_t begin;       // first row in the stream
  int64_t rows;        // 0 where the episode has none
  int64_t first_ns;    // time of the first row
  double rows_per_ns;  // (rows - 1) / (last time - first time), 0 where that has no value
};

// Immutable. Loaders on one dataset and device share it.
class ResidentStream {
 public:
  // Copies the stream to the device unless a living ResidentStream of the same dataset, stream and device is there
  // already; waits until it is there. Throws DeviceError, also where the memory does not suffice.
  static std::shared_ptr<const ResidentStream> get(std::shared_ptr<const Dataset> dataset, int64_t stream,
                                                   Device device);

  const int64_t* time_ns() const { return time_ns_; }        // [rows]
  const void* values() const { return values_; }             // [rows, features]
  const EpisodeRows* episodes() const { return episodes_; }  // [episodes]

 private:
  ResidentStream(std::shared_ptr<const Dataset> dataset, int64_t stream, Device device);

  std::shared_ptr<const Dataset> dataset_;  // whose mapped files the CPU reads
  DeviceBuffer time_memory_;
  DeviceBuffer value_memory_;
  DeviceBuffer episode_memory_;
  const int64_t* time_ns_ = nullptr;
  const void* values_ = nullptr;
  const EpisodeRows* episodes_ = nullptr;
};

}  // namespace robocache
