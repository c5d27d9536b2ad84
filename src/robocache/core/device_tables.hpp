// Copies tables of the host to a device, for kernels.
#pragma once

#include <span>
#include <vector>

#include "robocache/core/backend.hpp"

namespace robocache {

// Keeps the copies alive; put() returns the address that a kernel on the device reads.
class DeviceTables {
 public:
  explicit DeviceTables(Device device) : device_(device) {}

  template <class T>
  const T* put(std::span<const T> entries) {
    memories_.emplace_back(device_, entries.size_bytes());
    memories_.back().fill_from_host(entries.data(), entries.size_bytes());
    return static_cast<const T*>(memories_.back().data());
  }
  template <class T>
  const T* put(const std::vector<T>& entries) {
    return put(std::span<const T>(entries));
  }

 private:
  Device device_;
  std::vector<DeviceBuffer> memories_;
};

}  // namespace robocache
