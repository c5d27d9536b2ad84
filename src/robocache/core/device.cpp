#include "robocache/core/device.hpp"

#include <charconv>

#include "robocache/core/error.hpp"

namespace robocache {

std::string device_name(Device device) { return device.is_cuda() ? "cuda:" + std::to_string(device.index) : "cpu"; }

Device device_from_name(std::string_view name) {
  if (name == "cpu") return {};
  if (name == "cuda") return {DeviceType::kCuda, 0};
  if (name.starts_with("cuda:")) {
    const std::string_view digits = name.substr(5);
    int32_t index = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (error == std::errc() && end == digits.data() + digits.size() && index >= 0) return {DeviceType::kCuda, index};
  }
  throw ArgumentError("device: expected 'cpu', 'cuda' or 'cuda:N', got '", name, "'");
}

}  // namespace robocache
