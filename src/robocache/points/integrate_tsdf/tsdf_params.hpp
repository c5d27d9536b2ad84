// The arguments that integrate_tsdf passes to a backend: validated, plain C. Strides count elements.
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

// T_world_sensor or intrinsics: [sensors, rows, columns] of float32 or float64, a stride of 0 where one serves all.
struct TsdfNumbers {
  const void* data;
  DType dtype;
  bool is_matrix;
  int64_t sensor_stride, row_stride, column_stride;
};

// The measurements that a call's rays add to a voxel, on one line of the cache.
struct alignas(16) TsdfSum {
  int64_t quanta;  // the sum of the measurements, each less the truncation, so that free space adds nothing
  int32_t count;
};

// The least and the greatest depth of some pixels, in the image's unit; infinity and 0 if none measured.
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
  double quantum;           // metres, a power of two
  double quanta_per_metre;  // its inverse
  int64_t free_quanta;      // of the truncation
  double max_weight;        // infinity: none

  // For points: the sums of each voxel, row-major. The kernels clear them everywhere, or only in the voxels that rays
  // update, whichever are fewer.
  TsdfSum* sums;
  bool clear_everywhere;

  // For depth images on CUDA: kCellsInBlock ranges for each block of each image, which a kernel finds; null: none.
  TsdfRange* ranges;
};

// The most sensors in a kernel's parameters, which have at most 4 KB.
inline constexpr int64_t kSensorsInParams = 8;

}  // namespace robocache
