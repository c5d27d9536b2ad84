// Checks of arguments that all operations share. Each throws an ArgumentError or ArgumentTypeError that names the
// argument, what was expected and what came.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "robocache/core/error.hpp"
#include "robocache/core/tensor_view.hpp"

namespace robocache {

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw ArgumentError(parts...);
}

template <class... Parts>
[[noreturn]] void refuse_type(const Parts&... parts) {
  throw ArgumentTypeError(parts...);
}

// Returns the full name of an argument, for errors: "times" in a call with one stream; with several streams
// "streams['imu'].times" or, without a name, "streams[2].times".
struct ArgumentNamer {
  std::string_view stream = {};
  int64_t index = -1;

  std::string operator()(std::string_view argument) const;
};

// Refuses a tensor on another device. `like` names the argument whose device is expected.
void check_device(const TensorView& tensor, std::string_view argument, Device device,
                  const ArgumentNamer& full_name = {}, std::string_view like = "values");

// Refuses another shape than that of `expected`, which needs no memory.
void check_shape(const TensorView& tensor, std::string_view argument, const TensorView& expected,
                 const ArgumentNamer& full_name = {});

// Refuses another dtype, device or shape than `expected` has.
void check_expected(const TensorView& tensor, std::string_view argument, const TensorView& expected,
                    const ArgumentNamer& full_name = {}, std::string_view like = "values");

// Refuses a tensor that is not C-contiguous.
void check_dense(const TensorView& tensor, std::string_view argument, const ArgumentNamer& full_name = {});

// Checks lengths: [B] int32 or int64 in [0, most]. On CUDA it does not read the values, because that would wait for the
// device.
void check_lengths(const TensorView& lengths, std::string_view argument, int64_t batch, int64_t most,
                   const ArgumentNamer& full_name = {});

// Whether the address ranges of two tensors overlap; false if one of them is empty.
bool overlaps(const TensorView& a, const TensorView& b);

// Returns the memory of a workspace, or null if no bytes are needed. Refuses a workspace that is too small, not
// contiguous, not aligned, or on another device.
void* checked_workspace(const std::optional<TensorView>& workspace, int64_t bytes, int64_t alignment, Device device);

// Refuses an output whose elements share memory.
void check_elements_apart(const TensorView& out, std::string_view argument, const ArgumentNamer& full_name = {});

}  // namespace robocache
