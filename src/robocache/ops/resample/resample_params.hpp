// What resample.cpp hands to either backend: validated, plain C.
#pragma once

#include <cstdint>

#include "robocache/core/dtype.hpp"
#include "robocache/ops/resample/resample.hpp"
#include "robocache/ops/resample/resample_math.hpp"

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

// The samples of a row that exist, as the caller says: `lengths` holds int32 or int64, or is null for all of them.
ROBOCACHE_HD int64_t length_at(const void* lengths, DType dtype, int64_t at, int64_t samples) {
  if (lengths == nullptr) return samples;
  return dtype == DType::kInt64 ? static_cast<const int64_t*>(lengths)[at] : static_cast<const int32_t*>(lengths)[at];
}

// The options in a clock's type.
template <class Clock>
ROBOCACHE_HD PickRule<Clock> rule_of(const ResampleParams& p) {
  PickRule<Clock> rule{};
  rule.has_max_gap = p.has_max_gap;
  rule.has_tolerance = p.has_tolerance;
  if constexpr (std::is_same_v<Clock, int64_t>) {
    rule.max_gap = p.max_gap_ns;
    rule.tolerance = p.tolerance_ns;
  } else {
    rule.max_gap = static_cast<Clock>(p.max_gap);
    rule.tolerance = static_cast<Clock>(p.tolerance);
  }
  rule.method = p.method;
  rule.extrapolate = p.extrapolate;
  rule.causal = p.causal;
  return rule;
}

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
