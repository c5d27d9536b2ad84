// A cache and its loader, small enough to be made again for every call that may fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "robocache/batch/feed.hpp"
#include "robocache/batch/loader.hpp"
#include "robocache/cache/dataset.hpp"
#include "robocache/cache/writer.hpp"
#include "tests/cpp/device_array.hpp"

namespace robocache::test {

// Writes one episode of 200 rows of stream "x", 10 ms apart.
inline void write_small_cache(const std::string& path, WriteMode mode) {
  static const DeviceArray<int64_t> clock(
      [] {
        std::vector<int64_t> stamps(200);
        for (size_t i = 0; i < stamps.size(); ++i) stamps[i] = static_cast<int64_t>(i) * 10'000'000;
        return stamps;
      }(),
      DType::kInt64, {200}, Device{});
  static const DeviceArray<float> rows(std::vector<float>(400, 1.5F), DType::kFloat32, {200, 2}, Device{});
  Writer writer(path, mode);
  writer.begin_episode();
  writer.append("x", clock.view(), rows.view());
  writer.end_episode();
  writer.close();
}

// Returns the first three batches of a feed, whose thread makes them ahead.
inline std::vector<std::byte> batches_of(const std::shared_ptr<const Dataset>& dataset) {
  LoaderOptions options;
  options.batch_size = 16;
  options.streams = {{.stream = "x", .delta_timestamps = std::vector<double>{-0.05, 0.0}}};
  const auto loader = std::make_shared<const Loader>(dataset, options);
  Feed feed(loader, {.prefetch = 2});
  std::vector<std::byte> bytes;
  int64_t count = 0;
  for (const Batch& batch : feed.epoch()) {
    const auto* const first = static_cast<const std::byte*>(batch["x"].data);
    bytes.insert(bytes.end(), first, first + 16 * 2 * 2 * sizeof(float));
    if (++count == 3) break;
  }
  return bytes;
}

}  // namespace robocache::test
