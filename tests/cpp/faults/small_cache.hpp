// A cache and its loader, small enough to be made again for every call that may fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "robocache/batch/feed.hpp"
#include "robocache/batch/loader.hpp"
#include "robocache/cache/dataset.hpp"
#include "robocache/cache/writer.hpp"
#include "robocache/source/tier.hpp"
#include "tests/cpp/device_array.hpp"

namespace robocache::test {

// Writes one episode of 200 rows of stream "x", 10 ms apart. The values count from `first`, so no two rows are alike.
inline void write_small_cache(const std::string& path, WriteMode mode, float first = 0) {
  static const DeviceArray<int64_t> clock(
      [] {
        std::vector<int64_t> stamps(200);
        for (size_t i = 0; i < stamps.size(); ++i) stamps[i] = static_cast<int64_t>(i) * 10'000'000;
        return stamps;
      }(),
      DType::kInt64, {200}, Device{});
  std::vector<float> values(400);
  std::iota(values.begin(), values.end(), first);
  const DeviceArray<float> rows(values, DType::kFloat32, {200, 2}, Device{});
  Writer writer(path, mode);
  writer.begin_episode();
  writer.append("x", clock.view(), rows.view());
  writer.end_episode();
  writer.close();
}

// Returns the bytes of each file.
inline std::map<std::string, std::string> contents(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    files[std::filesystem::relative(entry.path(), folder)] = {std::istreambuf_iterator<char>(file), {}};
  }
  return files;
}

// Returns the first three batches of two feeds: of rows in memory, and of rows in files, whose thread makes them ahead.
inline std::vector<std::byte> batches_of(const std::shared_ptr<const Dataset>& dataset) {
  std::vector<std::byte> bytes;
  for (const Tier tier : {Tier::kDevice, Tier::kMapped}) {
    LoaderOptions options;
    options.batch_size = 16;
    options.streams = {{.stream = "x", .delta_timestamps = std::vector<double>{-0.05, 0.0}, .residency = tier}};
    const auto loader = std::make_shared<const Loader>(dataset, options);
    Feed feed(loader, {.prefetch = 2});
    int64_t count = 0;
    for (const Batch& batch : feed.epoch()) {
      const auto* const first = static_cast<const std::byte*>(batch["x"].data);
      bytes.insert(bytes.end(), first, first + 16 * 2 * 2 * sizeof(float));
      if (++count == 3) break;
    }
  }
  return bytes;
}

}  // namespace robocache::test
