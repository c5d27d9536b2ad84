// The arguments of check_times on CUDA: a validated plain C struct. Strides count elements.
#pragma once

#include <cstdint>

#include "robocache/core/dtype.hpp"

namespace robocache {

struct CheckTimesParams {
  const void* times;
  int64_t times_batch, times_sample;
  const void* lengths;  // may be null
  int64_t lengths_batch;
  int64_t batch, samples;
  DType clock_dtype;
  DType lengths_dtype;
};

}  // namespace robocache
