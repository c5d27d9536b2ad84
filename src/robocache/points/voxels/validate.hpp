// The checks that operations on points share, beyond those of core/arguments.hpp: rules 25 and 26 of docs/rules.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>

#include "robocache/core/arguments.hpp"
#include "robocache/core/fields.hpp"
#include "robocache/core/tensor_view.hpp"
#include "robocache/points/voxels/clouds.hpp"
#include "robocache/points/voxels/reduce.hpp"

namespace robocache {

template <>
inline constexpr std::string_view kNames<VoxelMode>[] = {"occupancy", "occupancy_bits", "count", "sum", "mean", "min",
                                                         "max",       "first",          "last"};

// The point arguments of a call:
//
//   points         [N, 3 + C] or [B, N, 3 + C]   float32 or float64: x, y, z, then C columns, which are the features
//                                                if `features` is none
//   features       [N, F] or [B, N, F], or none  float64/32/16, bfloat16, bool, integers of 8 to 32 bits, int64
//   lengths        [B] or none                   int32/int64: points of each cloud, 0 to N; only with [B, N, 3 + C]
//   batch_offsets  [B + 1] or none               int32/int64, ascending from 0 to N: cloud b has the rows
//                                                [batch_offsets[b], batch_offsets[b + 1]); only with [N, 3 + C]
//
// The columns of a row are adjacent; other strides are free and may be 0. lengths and batch_offsets are dense. All
// arrays are on one device. On CUDA the values of lengths and batch_offsets are not checked, because that would wait
// for the device.
struct PointArguments {
  TensorView points;
  std::optional<TensorView> features = {};
  std::optional<TensorView> lengths = {};
  std::optional<TensorView> batch_offsets = {};

  static constexpr auto fields() {
    using P = PointArguments;
    return std::tuple(Field{"points", &P::points}, Field{"features", &P::features}, Field{"lengths", &P::lengths},
                      Field{"batch_offsets", &P::batch_offsets});
  }
};

struct PointClouds {
  bool batched;  // whether results have a leading batch dimension
  Clouds clouds;
  Features features;  // by default the columns of points from 3 on; possibly none
};

// Checks all point arguments. Refuses more than 2^31 - 1 rows per cloud, because a voxel counts its points in int32.
PointClouds check_points(const PointArguments& arguments);

// Refuses an output that overlaps an input.
void check_apart(const TensorView& out, std::string_view argument, const PointArguments& arguments);

// Refuses a size that is not positive and finite when rounded to the points' dtype. Cells are computed in that dtype.
void check_voxel_size(const double (&size)[3], DType points);

// Refuses an origin that is not finite after rounding to the points' dtype.
void check_origin(const double (&origin)[3], std::string_view argument, DType points);

}  // namespace robocache
