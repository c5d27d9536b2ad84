// NumPy's .npy: a header with dtype and shape, then the elements, row-major and little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "robocache/core/dtype.hpp"

namespace robocache::cache {

inline constexpr int64_t kNpyAlignment = 64;

// Returns NumPy's type string, such as "<f4". NumPy has no bfloat16; its type string here is "<V2".
std::string_view npy_descr(DType dtype);

// Returns a version 1.0 header for [rows, shape...]. Its length is a multiple of 64 bytes and does not depend on
// `rows`, so it can be overwritten in place once `rows` is known.
std::string npy_header(DType dtype, int64_t rows, std::span<const int64_t> shape);

// Checks the header of `file` (format version 1, 2 or 3): it must have this dtype and shape, and the elements must
// begin at a multiple of 64 bytes and end where `file` ends. If the file `grows`, the header may give another number of
// rows. Returns the offset of the first element. Throws FileError.
int64_t check_npy(const std::string& path, std::span<const std::byte> file, DType dtype, std::span<const int64_t> shape,
                  bool grows = false);

// Returns the product of factors. Throws FileError "PATH: ..." if a factor is negative or the product exceeds int64.
int64_t checked_product(const std::string& path, std::span<const int64_t> factors);

}  // namespace robocache::cache
