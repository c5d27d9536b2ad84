// The checks that the operations on points share, beyond those of core/arguments.hpp: rules 25 and 26 of docs/rules.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "robocache/core/arguments.hpp"
#include "robocache/core/tensor_view.hpp"
#include "robocache/points/voxels/clouds.hpp"

namespace robocache {

// The arguments of a call for its points:
//
//   points         [N, 3 + C] or [B, N, 3 + C]   float32 or float64: x, y, z, and C columns that are the features where
//                                                `features` is none
//   features       [N, F] or [B, N, F], or none  float64/32/16, bfloat16, bool, integers of 8 to 32 bits, int64
//   lengths        [B] or none                   int32/int64: the points of each cloud, in [0, N]; with [B, N, 3 + C] alone
//   batch_offsets  [B + 1] or none               int32/int64: from 0 up to N; cloud b has the rows from its b-th entry up to
//                                                the next; with [N, 3 + C] alone
//
// The columns of a row lie side by side, other strides are free, 0 included; lengths and offsets are dense. All on one
// device. On CUDA lengths and offsets are not checked: that would wait for the device.
struct PointArguments {
  TensorView points;
  std::optional<TensorView> features = {};
  std::optional<TensorView> lengths = {};
  std::optional<TensorView> batch_offsets = {};
};

struct PointClouds {
  bool batched;  // whether results have a batch in front
  Clouds clouds;
  Features features;  // where none are given the columns of points, of which there may be 0
};

// Refuses more than 2^31 - 1 rows a cloud: how many points a voxel has is an int32.
PointClouds check_points(const PointArguments& arguments);

// Refuses outputs that overlap inputs.
void check_apart(const TensorView& out, std::string_view argument, const PointArguments& arguments);

// Refuses sizes that are not positive and finite in the points' type, which the cell rule uses.
void check_voxel_size(const double (&size)[3], DType points);

// Refuses numbers that are not finite in the points' type, which the cell rule uses.
void check_origin(const double (&origin)[3], std::string_view argument, DType points);

}  // namespace robocache
