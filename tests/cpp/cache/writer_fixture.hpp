// Shared by tests of the writer: a fixture that writes a cache, and the rows of that cache.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include "robocache/cache/writer.hpp"
#include "tests/cpp/temporary_cache.hpp"

namespace robocache::test {

inline void append(Writer& writer, const std::string& stream, std::vector<int64_t> times, std::vector<float> values) {
  const auto n = static_cast<int64_t>(times.size());
  writer.append(stream, TensorView::contiguous(times.data(), DType::kInt64, {n}),
                TensorView::contiguous(values.data(), DType::kFloat32, {n, n > 0 ? std::ssize(values) / n : 1}));
}

inline std::vector<float> values_of(const Stream& stream, int64_t episode) {
  const auto* values = static_cast<const float*>(stream.values);
  const auto e = static_cast<size_t>(episode);
  return {values + stream.row_offsets[e] * stream.features, values + stream.row_offsets[e + 1] * stream.features};
}

// Appends frames of codec png: `size` bytes each, all equal to the frame's entry in `values`.
inline void append_png(Writer& writer, const std::string& stream, std::vector<int64_t> times,
                       std::vector<uint8_t> values, size_t size = 3) {
  std::vector<uint8_t> bytes;
  std::vector<int64_t> offsets{0};
  for (const uint8_t value : values) {
    bytes.insert(bytes.end(), size, value);
    offsets.push_back(static_cast<int64_t>(bytes.size()));
  }
  writer.append_frames(stream, TensorView::contiguous(times.data(), DType::kInt64, {std::ssize(times)}), Codec::kPng,
                       ColorSpace::kRgb, DType::kUInt8, std::vector<int64_t>{2, 5, 3}, bytes, offsets);
}

inline std::string blobs_of(const Stream& stream) {
  return {static_cast<const char*>(stream.values), static_cast<size_t>(stream.blob_offsets[stream.rows])};
}

// Appends rows of `lengths` elements of int32 [2], numbered across all rows.
inline void append_cloud(Writer& writer, std::vector<int64_t> times, const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets{0};
  for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
  std::vector<int32_t> values(static_cast<size_t>(2 * offsets.back()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i);
  writer.append_ragged("cloud", TensorView::contiguous(times.data(), DType::kInt64, {std::ssize(times)}),
                       TensorView::contiguous(values.data(), DType::kInt32, {offsets.back(), 2}),
                       TensorView::contiguous(offsets.data(), DType::kInt64, {std::ssize(offsets)}), Ragged::kArray);
}

class WriterFixture : public testing::Test {
 protected:
  std::string path() const { return folder_.path() + "/cache"; }
  std::string partial() const { return path() + ".partial"; }

  // Writes a finished cache. `value` tells it apart from other caches.
  void write(float value, WriteMode mode = WriteMode::kNew) const {
    Writer writer(path(), mode);
    writer.begin_episode();
    append(writer, "x", {0}, {value});
    writer.end_episode();
    writer.close();
  }
  float written() const { return values_of(Dataset::open(path(), true)->stream("x"), 0).at(0); }

  // Writes in a child process that is then killed: nothing is flushed, no destructor runs.
  void write_and_die() const {
    const pid_t child = fork();
    if (child == 0) {
      auto* writer = new Writer(path(), WriteMode::kOverwrite);
      writer->begin_episode();
      append(*writer, "x", {0}, {1});
      kill(getpid(), SIGKILL);
    }
    waitpid(child, nullptr, 0);
  }

  TemporaryFolder folder_;
};

}  // namespace robocache::test
