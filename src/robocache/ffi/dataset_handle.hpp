// A dataset as Python holds it.
#pragma once

#include <memory>

#include "robocache/cache/dataset.hpp"

namespace robocache::ffi {

struct DatasetHandle {
  static constexpr const char* kTypeKey = "robocache.Dataset";

  std::shared_ptr<const Dataset> dataset;
};

}  // namespace robocache::ffi
