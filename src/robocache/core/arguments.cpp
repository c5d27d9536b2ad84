#include "robocache/core/arguments.hpp"

#include <array>
#include <charconv>
#include <cmath>

#include "robocache/core/lengths.hpp"

namespace robocache {

std::string number_text(double number) {
  if (std::isnan(number)) return "nan";  // for either sign
  const double magnitude = std::fabs(number);
  const bool is_fixed = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number,
                                 is_fixed ? std::chars_format::fixed : std::chars_format::scientific);
  return {text.data(), end.ptr};
}

std::string ArgumentNamer::operator()(std::string_view argument) const {
  if (index < 0) return std::string(argument);
  std::string text = "streams[";
  if (stream.empty()) {
    text += std::to_string(index);
  } else {
    text.append("'").append(stream).append("'");
  }
  return text.append("].").append(argument);
}

void check_device(const TensorView& tensor, std::string_view argument, Device device, const ArgumentNamer& full_name,
                  std::string_view like) {
  if (tensor.device != device) {
    refuse(full_name(argument), ": expected on ", device_name(device), " like ", like, ", got on ",
           device_name(tensor.device));
  }
}

void check_shape(const TensorView& tensor, std::string_view argument, const TensorView& expected,
                 const ArgumentNamer& full_name) {
  if (tensor.ndim != expected.ndim || tensor.shape != expected.shape) {
    refuse(full_name(argument), ": expected ", shape_string(expected), ", got ", shape_string(tensor));
  }
}

void check_expected(const TensorView& tensor, std::string_view argument, const TensorView& expected,
                    const ArgumentNamer& full_name, std::string_view like) {
  if (tensor.dtype != expected.dtype) {
    refuse_type(full_name(argument), ": expected ", dtype_name(expected.dtype), ", got ", dtype_name(tensor.dtype));
  }
  check_device(tensor, argument, expected.device, full_name, like);
  check_shape(tensor, argument, expected, full_name);
}

void check_dense(const TensorView& tensor, std::string_view argument, const ArgumentNamer& full_name) {
  if (!tensor.is_contiguous()) {
    refuse(full_name(argument), ": expected a dense array, got ", tensor.describe(), " with gaps or in another order");
  }
}

void check_lengths(const TensorView& lengths, std::string_view argument, int64_t batch, int64_t most,
                   const ArgumentNamer& full_name) {
  if (lengths.dtype != DType::kInt32 && lengths.dtype != DType::kInt64) {
    refuse_type(full_name(argument), ": expected int32 or int64, got ", dtype_name(lengths.dtype));
  }
  if (lengths.ndim != 1 || lengths.shape[0] != batch) {
    refuse(full_name(argument), ": expected [", batch, "], got ", shape_string(lengths));
  }
  if (lengths.device.is_cuda()) return;  // the kernel clamps them, because reading them here would wait for the device
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length = length_at(lengths.data, lengths.dtype, b * lengths.strides[0], most);
    if (length < 0 || length > most) {
      refuse(full_name(argument), ": expected values in [0, ", most, "], got ", length, " at ", b);
    }
  }
}

bool overlaps(const TensorView& a, const TensorView& b) {
  const auto [a_low, a_high] = a.extent();
  const auto [b_low, b_high] = b.extent();
  return a_low < b_high && b_low < a_high && a_low != a_high && b_low != b_high;
}

void* checked_workspace(const std::optional<TensorView>& workspace, int64_t bytes, int64_t alignment, Device device) {
  if (bytes == 0) return nullptr;
  const bool is_enough = workspace && workspace->device == device && workspace->is_contiguous() &&
                         workspace->numel() * dtype_size(workspace->dtype) >= bytes &&
                         reinterpret_cast<uintptr_t>(workspace->data) % static_cast<uintptr_t>(alignment) == 0;
  if (!is_enough) {
    refuse("workspace: expected ", bytes, " bytes on ", device_name(device), ", dense and aligned to ", alignment,
           ", got ", workspace ? workspace->describe() : "none");
  }
  return workspace->data;
}

void check_elements_apart(const TensorView& out, std::string_view argument, const ArgumentNamer& full_name) {
  for (int d = 0; d < out.ndim; ++d) {
    if (out.shape[d] > 1 && out.strides[d] == 0) {
      refuse(full_name(argument), ": expected memory of its own for each element, got stride 0");
    }
  }
}

}  // namespace robocache
