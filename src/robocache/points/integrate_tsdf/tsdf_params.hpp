// The arguments that integrate_tsdf passes to a backend: validated plain C structs. Strides count elements.
#pragma once

#include <cstdint>

#include "robocache/core/dtype.hpp"
#include "robocache/points/voxels/cell.hpp"

namespace robocache {

struct TsdfSensor {
  double rotation[9];  // of T_world_sensor, row-major
  double origin[3];
  double fx, fy, cx, cy;
};

// T_world_sensor or intrinsics: [sensors, rows, columns], float32 or float64. The sensor stride is 0 if all sensors
// share the numbers.
struct TsdfNumbers {
  const void* data;
  DType dtype;
  bool is_matrix;
  int64_t sensor_stride, row_stride, column_stride;
};

// The measurements that a call's rays add to a voxel, in one cache line.
struct alignas(16) TsdfSum {
  int64_t quanta;  // sum of (measurement - truncation), so that free space adds 0
  int32_t count;
};

// The least and the greatest depth of a group of pixels, in the image's unit. If no pixel measured a depth, they are
// infinity and 0.
struct TsdfRange {
  float least, most;
};

struct TsdfParams {
  float* distances;
  float* weights;
  int64_t distance_strides[3];
  int64_t weight_strides[3];
  VoxelGrid grid;

  // points [sensors, rows, 3], or depth [sensors, rows, columns]
  const void* measured;
  DType dtype;
  bool is_depth;
  bool space_carving;
  int64_t sensors, rows, columns;
  int64_t sensor_stride, row_stride, column_stride;

  double depth_scale;
  double truncation;
  double half_diagonal;     // of a voxel
  double quantum;           // in metres, a power of two
  double quanta_per_metre;  // its inverse
  int64_t free_quanta;      // the truncation in quanta, which TsdfSum subtracts from each measurement
  double max_weight;        // infinity: weights are not limited

  // For points: the sums of each voxel, row-major. The kernels clear all sums, or only those of the voxels that rays
  // update, whichever are fewer.
  TsdfSum* sums;
  bool clear_everywhere;

  // For depth images on CUDA: kCellsInBlock ranges for each block of each image, which a kernel finds; or null.
  TsdfRange* ranges;
};

// The most sensors that fit in a kernel's parameters (at most 4 KB).
inline constexpr int64_t kSensorsInParams = 8;

}  // namespace robocache
