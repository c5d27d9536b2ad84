// What the dtypes of features are worked on as, what their sums and means come out as, and what a cell without points
// holds.
#pragma once

#include <cstdint>
#include <type_traits>

#include "robocache/core/dtype.hpp"
#include "robocache/core/half.hpp"
#include "robocache/core/host_device.hpp"
#include "robocache/voxels/reduce.hpp"

namespace robocache {

// float for the 16-bit floats, int32 for integers of fewer bits and bool, else itself.
ROBOCACHE_HD float to_feature_work(Float16 x) { return to_float(x); }
ROBOCACHE_HD float to_feature_work(BFloat16 x) { return to_float(x); }
template <class T>
ROBOCACHE_HD auto to_feature_work(T x) -> std::conditional_t<(sizeof(T) < 4), int32_t, T> {
  return x;
}
template <class T>
using FeatureWork = decltype(to_feature_work(T{}));

// Back again, exactly.
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

// The call's fill as an output of T.
template <class T>
ROBOCACHE_HD T fill_of(const VoxelReduction& call) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(call.fill_integer);
  } else {
    return from_feature_work<T>(static_cast<FeatureWork<T>>(call.fill));
  }
}

// Calls call(T{}) with the type of that dtype of features; bool goes as uint8, 0 and 1.
template <class Call>
auto with_feature_type(DType dtype, Call call) {
  switch (dtype) {
    case DType::kFloat64:
      return call(double{});
    case DType::kFloat32:
      return call(float{});
    case DType::kFloat16:
      return call(Float16{});
    case DType::kBFloat16:
      return call(BFloat16{});
    case DType::kInt64:
      return call(int64_t{});
    case DType::kInt32:
      return call(int32_t{});
    case DType::kUInt32:
      return call(uint32_t{});
    case DType::kInt16:
      return call(int16_t{});
    case DType::kUInt16:
      return call(uint16_t{});
    case DType::kInt8:
      return call(int8_t{});
    default:
      return call(uint8_t{});
  }
}

}  // namespace robocache
