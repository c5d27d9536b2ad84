// The description of a call that an operation passes to either backend: a validated plain C struct. Members such as
// values_batch are the strides of an array, in elements.
#pragma once

#include <cstdint>

#include "robocache/core/dtype.hpp"
#include "robocache/core/lengths.hpp"
#include "robocache/interpolation/method.hpp"
#include "robocache/interpolation/pick.hpp"

namespace robocache {

// One number for every feature, or a dense array [features] of the work type.
union PerFeature {
  double all;
  const void* array;
};

// The features of one stream that one method computes at the call's targets.
struct Segment {
  const void* values;
  int64_t values_batch, values_sample, values_feature;
  const void* times;
  int64_t times_batch, times_sample;
  const void* lengths;  // number of samples in each row; null: every row is full
  int64_t lengths_batch;
  const void* slopes;  // for cubic only: the slopes from spline.hpp, of the work type
  PerFeature scale;    // if `scaled`: y = fma(x, scale, shift)
  PerFeature shift;
  void* out;
  int64_t out_batch, out_target, out_feature;
  bool* valid;  // may be null
  int64_t valid_batch, valid_target;
  void* age;  // of the targets' type; may be null
  int64_t age_batch, age_target;

  int64_t samples, features;
  double max_gap;  // for a floating clock
  double tolerance;
  double offset;        // the sample stamped t was taken at t - offset
  uint64_t max_gap_ns;  // for an int64 clock
  uint64_t tolerance_ns;
  int64_t offset_ns;
  DType value_dtype;
  DType out_dtype;
  DType clock_dtype;
  DType lengths_dtype;
  InterpolationMethod method;
  Extrapolate extrapolate;
  Boundary boundary;  // for cubic only
  bool causal;
  bool has_max_gap;
  bool has_tolerance;
  bool scaled, scale_per_feature, shift_per_feature;
};

// Any number of segments, all at the same targets.
struct Interpolation {
  const void* targets;
  int64_t targets_batch, targets_target;
  const void* target_lengths;  // number of targets in each row; null: every row is full
  int64_t target_lengths_batch;
  int64_t batch, targets_count;
  const Segment* segments;
  int32_t segment_count;
  DType target_dtype;
  DType target_lengths_dtype;
};

// Returns the number of samples in a row. It is never more than the array has, whatever `lengths` holds.
ROBOCACHE_HD int64_t row_length(const Segment& s, int64_t batch) {
  const int64_t length = length_at(s.lengths, s.lengths_dtype, batch * s.lengths_batch, s.samples);
  return length < 0 ? 0 : (length < s.samples ? length : s.samples);
}

// The work type is float64 for float64 values, and for integers of 32 and 64 bits that become floats. Otherwise it is
// float32, which holds smaller types exactly. Integers that keep their type have no arithmetic.
ROBOCACHE_HD bool works_in_double(const Segment& s) {
  return s.value_dtype == DType::kFloat64 ||
         (!is_floating(s.value_dtype) && is_floating(s.out_dtype) && dtype_size(s.value_dtype) >= 4);
}

// Returns a feature's scale or shift.
template <class Work>
ROBOCACHE_HD Work number_of(const PerFeature& numbers, bool per_feature, int64_t feature) {
  return per_feature ? static_cast<const Work*>(numbers.array)[feature] : static_cast<Work>(numbers.all);
}

// Returns the options in a clock's type.
template <class Clock>
ROBOCACHE_HD PickRule<Clock> rule_of(const Segment& s) {
  PickRule<Clock> rule{};
  rule.has_max_gap = s.has_max_gap;
  rule.has_tolerance = s.has_tolerance;
  if constexpr (std::is_same_v<Clock, int64_t>) {
    rule.max_gap = s.max_gap_ns;
    rule.tolerance = s.tolerance_ns;
  } else {
    rule.max_gap = static_cast<Clock>(s.max_gap);
    rule.tolerance = static_cast<Clock>(s.tolerance);
  }
  rule.method = s.method;
  rule.extrapolate = s.extrapolate;
  rule.causal = s.causal;
  return rule;
}

// A target on a stream's clock.
template <class Clock>
struct StreamTarget {
  Clock time;
  bool exists;  // not NaN and not beyond `target_lengths`
};

// Returns the int64 nearest to x, clamped to the range of int64. x must not be NaN.
ROBOCACHE_HD int64_t nearest_ns(double x) {
  if (x >= 0x1p63) return INT64_MAX;
  if (x < -0x1p63) return INT64_MIN;
  return static_cast<int64_t>(__builtin_rint(x));
}

ROBOCACHE_HD int64_t saturating_add(int64_t x, int64_t y) {
  if (y > 0 && x > INT64_MAX - y) return INT64_MAX;
  if (y < 0 && x < INT64_MIN - y) return INT64_MIN;
  return x + y;
}

// Returns target `index` of a row as a stamp of the stream: in the type of its clock, with its offset added.
template <class Clock>
ROBOCACHE_HD StreamTarget<Clock> target_on(const Interpolation& call, const Segment& s, int64_t batch, int64_t index) {
  const int64_t offset_of_entry = batch * call.targets_batch + index * call.targets_target;
  const bool is_inside = index < length_at(call.target_lengths, call.target_lengths_dtype,
                                           batch * call.target_lengths_batch, call.targets_count);
  if constexpr (std::is_same_v<Clock, int64_t>) {
    if (call.target_dtype == DType::kInt64) {
      return {saturating_add(static_cast<const int64_t*>(call.targets)[offset_of_entry], s.offset_ns), is_inside};
    }
    const double seconds = call.target_dtype == DType::kFloat32
                               ? static_cast<double>(static_cast<const float*>(call.targets)[offset_of_entry])
                               : static_cast<const double*>(call.targets)[offset_of_entry];
    if (seconds != seconds) return {0, false};
    return {saturating_add(nearest_ns(seconds * 1e9), s.offset_ns), is_inside};
  } else {
    Clock time;
    if (call.target_dtype == DType::kInt64) {
      time = static_cast<Clock>(static_cast<double>(static_cast<const int64_t*>(call.targets)[offset_of_entry]) / 1e9);
    } else if (call.target_dtype == DType::kFloat32) {
      time = static_cast<Clock>(static_cast<const float*>(call.targets)[offset_of_entry]);
    } else {
      time = static_cast<Clock>(static_cast<const double*>(call.targets)[offset_of_entry]);
    }
    if (s.offset != 0) time += static_cast<Clock>(s.offset);
    return {time, is_inside && time == time};
  }
}

// Writes the target's time minus the time of the sample used, in the targets' unit.
template <class Clock>
ROBOCACHE_HD void write_age(const Interpolation& call, const Segment& s, int64_t batch, int64_t index, bool exists,
                            Clock target, Clock used) {
  const int64_t offset_of_entry = batch * s.age_batch + index * s.age_target;
  double seconds = 0;
  int64_t ns = 0;
  if constexpr (std::is_same_v<Clock, int64_t>) {
    const bool is_later = target >= used;
    const uint64_t distance = is_later ? ns_between(target, used) : ns_between(used, target);
    ns = static_cast<int64_t>(distance < uint64_t{INT64_MAX} ? distance : uint64_t{INT64_MAX});
    if (!is_later) ns = -ns;
    seconds = static_cast<double>(ns) / 1e9;
  } else {
    const Clock difference = target == used ? Clock(0) : target - used;  // both may be infinity: a hit
    seconds = static_cast<double>(difference);
    exists = exists && seconds == seconds;
    // The smallest int64 means that there is no sample.
    if (exists && call.target_dtype == DType::kInt64) {
      ns = nearest_ns(seconds * 1e9);
      if (ns == INT64_MIN) ns = -INT64_MAX;
    }
  }
  if (call.target_dtype == DType::kInt64) {
    static_cast<int64_t*>(s.age)[offset_of_entry] = exists ? ns : INT64_MIN;
  } else if (call.target_dtype == DType::kFloat32) {
    static_cast<float*>(s.age)[offset_of_entry] = exists ? static_cast<float>(seconds) : __builtin_nanf("");
  } else {
    static_cast<double*>(s.age)[offset_of_entry] = exists ? seconds : __builtin_nan("");
  }
}

}  // namespace robocache
