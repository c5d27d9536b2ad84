// The device that memory belongs to.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace robocache {

enum class DeviceType : uint8_t { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int32_t index = 0;

  bool is_cuda() const { return type == DeviceType::kCuda; }
  friend bool operator==(const Device&, const Device&) = default;
};

// "cpu", "cuda:0", ...
std::string device_name(Device device);

// The inverse of device_name(). "cuda" means "cuda:0". Throws ArgumentError.
Device device_from_name(std::string_view name);

// A CUDA stream as its raw handle (cudaStream_t); null is the default stream. Work on the CPU has none.
struct CudaStream {
  void* handle = nullptr;
};

}  // namespace robocache
