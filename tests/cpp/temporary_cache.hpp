// Small caches that a test writes for itself.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/cache/writer.hpp"
#include "tests/cpp/device_array.hpp"

namespace robocache::test {

// A new folder, which is removed with its content at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = testing::TempDir() + "robocache_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder like " + name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Writes a cache into a temporary folder. The folder is removed once the dataset is open; its mapped files stay.
class CacheWriter {
 public:
  CacheWriter() : writer_(folder_.path() + "/cache") {}

  // `values` is [n, row_shape...], row-major.
  template <class E>
  void append(const std::string& stream, E /*element*/, const std::vector<int64_t>& times,
              const std::vector<typename E::Type>& values, const std::vector<int64_t>& row_shape = {}) {
    const auto n = static_cast<int64_t>(times.size());
    std::vector<int64_t> shape{n};
    shape.insert(shape.end(), row_shape.begin(), row_shape.end());
    const DeviceArray<int64_t> clock(times, DType::kInt64, {n}, Device{});
    const DeviceArray<typename E::Type> rows(values, E::kDType, shape, Device{});
    writer_.append(stream, clock.view(), rows.view());
  }

  void begin_episode() { writer_.begin_episode(); }
  void end_episode() { writer_.end_episode(); }

  std::shared_ptr<const Dataset> dataset() {
    writer_.close();
    return Dataset::open(folder_.path() + "/cache");
  }

 private:
  TemporaryFolder folder_;
  Writer writer_;
};

}  // namespace robocache::test
