// What resample.cpp hands to either backend: validated, plain C.
#pragma once

#include <cstdint>

#include "robocache/core/dtype.hpp"
#include "robocache/ops/resample/resample.hpp"

namespace robocache {

// Strides count elements.
struct ResampleParams {
  const void* values;
  int64_t values_batch, values_sample, values_feature;
  const void* times;
  int64_t times_batch, times_sample;
  const void* targets;
  int64_t targets_batch, targets_target;
  const void* lengths;  // or null
  int64_t lengths_batch;
  void* out;
  int64_t out_batch, out_target, out_feature;
  bool* valid;  // or null
  int64_t valid_batch, valid_target;

  int64_t batch, samples, targets_count, features;
  DType value_dtype;
  DType clock_dtype;
  DType lengths_dtype;
  ResampleMethod method;
  Extrapolate extrapolate;
  bool causal;
  bool has_max_gap;
  bool has_tolerance;
  double max_gap;  // for a floating clock
  double tolerance;
  uint64_t max_gap_ns;  // for int64
  uint64_t tolerance_ns;
};

struct CheckTimesParams {
  const void* times;
  int64_t times_batch, times_sample;
  const void* lengths;  // or null
  int64_t lengths_batch;
  int64_t batch, samples;
  DType clock_dtype;
  DType lengths_dtype;
};

}  // namespace robocache
