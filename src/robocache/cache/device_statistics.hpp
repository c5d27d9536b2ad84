// Statistics of rows on a CUDA device. They have the same bits as made_statistics() of the same rows on the CPU.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "robocache/core/device.hpp"
#include "robocache/core/dtype.hpp"

namespace robocache::cache {

struct DeviceRows {
  const void* values;  // float or double [rows, width] on the device
  const bool* is_pad;  // [rows, width / features]: values to leave out
  int64_t rows;        // a multiple of 8, except in the last part
};

// make(take) calls take(part) for one part of the rows after another, in the same order each time. Work on the CUDA
// stream sees a part's values until the next call of take. A part has at most `most_rows` rows.
struct MadeOnDevice {
  std::function<void(const std::function<void(const DeviceRows&)>& take)> make;
  int64_t rows;  // of all parts
  int64_t most_rows;
  int64_t width;
  int64_t features;
  DType dtype;  // float32 or float64
};

// Whether device_statistics can take this many rows and columns.
bool fits_device(int64_t rows, int64_t width);

// Returns the table of made_statistics(). `rows.make` runs once a pass: 3 passes for float32, 6 for float64. Throws
// DeviceError, OutOfMemory.
std::vector<double> device_statistics(const MadeOnDevice& rows, std::span<const double> quantiles, Device device,
                                      CudaStream stream);

}  // namespace robocache::cache
