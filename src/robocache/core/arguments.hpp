// The checks of arguments that all operations share. Each refusal is an ArgumentError or ArgumentTypeError that names the
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
  std::string text;
  (text.append(parts), ...);
  throw ArgumentError(text);
}

template <class... Parts>
[[noreturn]] void refuse_type(const Parts&... parts) {
  std::string text;
  (text.append(parts), ...);
  throw ArgumentTypeError(text);
}

// A number in a refusal: the fewest digits that read back as it, as Python prints them; "0.1", "1e-50", "100000", "-inf".
std::string number_text(double number);

// Whose arguments they are, spelled out only in a refusal: "times" of a call with one stream; of several
// "streams['imu'].times" or, without a name, "streams[2].times".
struct ArgumentsOf {
  std::string_view stream = {};
  int64_t place = -1;

  std::string operator()(std::string_view argument) const;
};

// `like` is the argument whose device it is.
void check_device(const TensorView& tensor, std::string_view argument, Device device, const ArgumentsOf& of = {},
                  std::string_view like = "values");

// Refuses another shape than that of `expected`, which needs no memory.
void check_shape(const TensorView& tensor, std::string_view argument, const TensorView& expected,
                 const ArgumentsOf& of = {});

// Refuses another dtype, device or shape.
void check_expected(const TensorView& tensor, std::string_view argument, const TensorView& expected,
                    const ArgumentsOf& of = {}, std::string_view like = "values");

// Refuses gaps and every order but the C-contiguous one.
void check_dense(const TensorView& tensor, std::string_view argument, const ArgumentsOf& of = {});

// [B] int32/int64 in [0, most]; on CUDA the values are not looked at: that would wait for the device.
void check_lengths(const TensorView& lengths, std::string_view argument, int64_t batch, int64_t most,
                   const ArgumentsOf& of = {});

// Whether two tensors reach into one another's range of addresses; never where one of them is empty.
bool overlaps(const TensorView& a, const TensorView& b);

// The memory of a workspace, refused where it is less than so many bytes, not dense, not aligned to so many, or lies
// elsewhere; null where no bytes are needed.
void* checked_workspace(const std::optional<TensorView>& workspace, int64_t bytes, int64_t alignment, Device device);

// Refuses a tensor to write to whose elements share memory.
void check_elements_apart(const TensorView& out, std::string_view argument, const ArgumentsOf& of = {});

}  // namespace robocache
