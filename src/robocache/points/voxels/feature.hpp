// The types for arithmetic on features, the types of their sums and means, and the value of a cell without points.
#pragma once

#include <cstdint>
#include <type_traits>

#include "robocache/core/dtype.hpp"
#include "robocache/core/half.hpp"
#include "robocache/core/host_device.hpp"
#include "robocache/core/with_type.hpp"
#include "robocache/points/voxels/reduce.hpp"

namespace robocache {

// Converts a feature for arithmetic: 16-bit floats to float, bool and small integers to int32, others unchanged.
ROBOCACHE_HD float to_feature_work(Float16 x) { return to_float(x); }
ROBOCACHE_HD float to_feature_work(BFloat16 x) { return to_float(x); }
template <class T>
ROBOCACHE_HD auto to_feature_work(T x) -> std::conditional_t<(sizeof(T) < 4), int32_t, T> {
  return x;
}
template <class T>
using FeatureWork = decltype(to_feature_work(T{}));

// Converts back, exactly.
template <class T>
ROBOCACHE_HD T from_feature_work(FeatureWork<T> x) {
  if constexpr (std::is_same_v<T, Float16>) {
    return to_float16(x);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bfloat16(x);
  } else {
    return static_cast<T>(x);
  }
}

template <class T>
using FeatureSum = std::conditional_t<std::is_integral_v<T>, int64_t, T>;
template <class T>
using FeatureMean = std::conditional_t<std::is_integral_v<T>, float, T>;

template <class T>
inline constexpr DType kFeatureDType = std::is_same_v<T, Float16>    ? DType::kFloat16
                                       : std::is_same_v<T, BFloat16> ? DType::kBFloat16
                                       : std::is_same_v<T, float>    ? DType::kFloat32
                                       : std::is_same_v<T, double>   ? DType::kFloat64
                                                                     : DType::kInt64;

// Returns the call's fill in the type T of an output.
template <class T>
ROBOCACHE_HD T fill_of(const VoxelReduction& call) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(call.fill_integer);
  } else {
    return from_feature_work<T>(static_cast<FeatureWork<T>>(call.fill));
  }
}

// Calls with_type for the dtypes that features may have: all except uint64.
template <class Body>
auto with_feature_type(DType dtype, const Body& body) {
  return with_type(dtype, [&](auto type) -> decltype(body(uint8_t{})) {
    if constexpr (std::is_same_v<decltype(type), uint64_t>) __builtin_unreachable();
    if constexpr (!std::is_same_v<decltype(type), uint64_t>) return body(type);
  });
}

}  // namespace robocache
