// Arguments that several adapters decode, and the memory they allocate.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "robocache/ffi/ffi.hpp"

namespace robocache::ffi {

inline std::optional<TensorView> optional_tensor(const Args& args, int i, const char* name) {
  return args.is_none(i) ? std::nullopt : std::optional(args.tensor(i, name));
}

inline std::optional<double> optional_real(const Args& args, int i, const char* name) {
  return args.is_none(i) ? std::nullopt : std::optional(args.real(i, name));
}

// Memory for the time of a call, from the caller's allocator; none if no bytes are needed.
struct Workspace {
  Workspace(int64_t bytes, Device device) {
    if (bytes == 0) return;
    memory.emplace(OwnedTensor::allocate(DType::kUInt8, device, {bytes}));
    view = memory->view();
  }

  std::optional<OwnedTensor> memory;
  std::optional<TensorView> view;
};

// The results of a call, if there are several or may be none. Python takes them one by one (array_of).
struct Arrays {
  static constexpr const char* kTypeKey = "robocache.Arrays";
  std::vector<std::optional<OwnedTensor>> arrays;
};

}  // namespace robocache::ffi
