// Rule 32 for one ray and for one voxel. Both backends share it and give the same bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "robocache/core/host_device.hpp"
#include "robocache/points/integrate_tsdf/tsdf_params.hpp"

namespace robocache {

// Returns the nearest whole number, ties to even, without a call of the C library. Beyond 2^51 the result is some
// number beyond 2^51.
ROBOCACHE_HD double nearest_even(double x) { return (x + 0x1.8p52) - 0x1.8p52; }

ROBOCACHE_HD double voxel_centre(const VoxelGrid& grid, int axis, int64_t n) {
  return grid.origin[axis] + (static_cast<double>(n) + 0.5) * grid.size[axis];
}

// ---- Points: the voxels that a ray passes through ----

struct TsdfRay {
  double origin[3];
  double direction[3];
  double range;
};

// Returns false if the point is not a measurement.
ROBOCACHE_HD bool tsdf_ray(const TsdfSensor& sensor, const double p[3], TsdfRay& ray) {
  const double* r = sensor.rotation;
  for (int axis = 0; axis < 3; ++axis) {
    ray.origin[axis] = sensor.origin[axis];
    const double* const row = r + int64_t{3} * axis;
    ray.direction[axis] = (row[0] * p[0] + row[1] * p[1]) + row[2] * p[2];
  }
  const double* d = ray.direction;
  ray.range = std::sqrt((d[0] * d[0] + d[1] * d[1]) + d[2] * d[2]);
  if (!(ray.range > 0 && ray.range <= 0x1p500)) return false;  // also for NaN
  for (int axis = 0; axis < 3; ++axis) ray.direction[axis] /= ray.range;
  return true;
}

// Returns the distance at which the ray crosses plane n of an axis, which lies between voxels n - 1 and n. A ray
// parallel to the planes has passed those at or below it, and never reaches the others. In the order of travel the
// distances never decrease.
ROBOCACHE_HD double plane_crossing(const TsdfRay& ray, const VoxelGrid& grid, int axis, int64_t n) {
  const double plane = grid.origin[axis] + static_cast<double>(n) * grid.size[axis];
  const double d = ray.direction[axis];
  if (d == 0) return plane <= ray.origin[axis] ? -HUGE_VAL : HUGE_VAL;
  return (plane - ray.origin[axis]) / d;
}

// Returns the part of (v - o).d along an axis.
ROBOCACHE_HD double centre_along(const TsdfRay& ray, const VoxelGrid& grid, int axis, int64_t n) {
  return (voxel_centre(grid, axis, n) - ray.origin[axis]) * ray.direction[axis];
}

// The state of the walk along a ray on one axis.
struct AxisWalk {
  int64_t cell;
  int64_t step;   // 1 or -1
  double leaves;  // distance at which the ray leaves `cell`
  double centre;  // the part of (v - o).d along the axis
};

ROBOCACHE_HD void stand_at(const TsdfRay& ray, const VoxelGrid& grid, int axis, int64_t cell, AxisWalk& walk) {
  walk.cell = cell;
  walk.leaves = plane_crossing(ray, grid, axis, walk.step > 0 ? cell + 1 : cell);
}

// Starts the walk in the cell that contains the ray's point at `distance`, which must lie inside the grid.
ROBOCACHE_HD void start_walk(const TsdfRay& ray, const VoxelGrid& grid, int axis, double distance, AxisWalk& walk) {
  const double last = static_cast<double>(grid.shape[axis] - 1);
  const double guess =
      std::floor((ray.origin[axis] + distance * ray.direction[axis] - grid.origin[axis]) / grid.size[axis]);
  const double at_most_last = guess < last ? guess : last;
  stand_at(ray, grid, axis, static_cast<int64_t>(at_most_last > 0 ? at_most_last : 0), walk);
  // The division has a rounding error; the crossings correct it.
  while (plane_crossing(ray, grid, axis, walk.step > 0 ? walk.cell : walk.cell + 1) > distance) {
    stand_at(ray, grid, axis, walk.cell - walk.step, walk);
  }
  while (walk.leaves <= distance) stand_at(ray, grid, axis, walk.cell + walk.step, walk);
  walk.centre = centre_along(ray, grid, axis, walk.cell);
}

// Calls visit(cell, sdf) for every voxel that the ray updates, in order from the sensor. `cell` is the voxel's x, y, z,
// and the sdf at most the truncation.
template <class Visit>
ROBOCACHE_HD void for_each_measured(const TsdfRay& ray, const TsdfParams& p, const Visit& visit) {
  // Inside a voxel, a point of the ray is always less than half a diagonal from the voxel's centre, measured along the
  // ray. A quarter more covers the rounding, so rounding does not change which voxels are tested.
  const double reach = p.truncation + 1.25 * p.half_diagonal;
  double begin = p.space_carving || ray.range < reach ? 0 : ray.range - reach;
  double end = ray.range + reach;
  AxisWalk walk[3];
  for (int axis = 0; axis < 3; ++axis) {
    const bool forward = ray.direction[axis] >= 0;
    walk[axis].step = forward ? 1 : -1;
    const double enters = plane_crossing(ray, p.grid, axis, forward ? 0 : p.grid.shape[axis]);
    const double leaves = plane_crossing(ray, p.grid, axis, forward ? p.grid.shape[axis] : 0);
    begin = enters > begin ? enters : begin;
    end = leaves < end ? leaves : end;
  }
  if (!(begin < end)) return;
  for (int axis = 0; axis < 3; ++axis) start_walk(ray, p.grid, axis, begin, walk[axis]);
  for (;;) {
    const double sdf = ray.range - ((walk[0].centre + walk[1].centre) + walk[2].centre);
    if (sdf >= -p.truncation && (sdf <= p.truncation || p.space_carving)) {
      const int64_t cell[3] = {walk[0].cell, walk[1].cell, walk[2].cell};
      visit(cell, sdf < p.truncation ? sdf : p.truncation);
    }
    double next = walk[0].leaves < walk[1].leaves ? walk[0].leaves : walk[1].leaves;
    next = walk[2].leaves < next ? walk[2].leaves : next;
    if (!(next < end)) return;
    // A ray through an edge or a corner steps along several axes at once: it has no length in the voxels beside the
    // edge.
    for (int axis = 0; axis < 3; ++axis) {
      if (walk[axis].leaves > next) continue;
      do {
        stand_at(ray, p.grid, axis, walk[axis].cell + walk[axis].step, walk[axis]);
      } while (walk[axis].leaves <= next);
      walk[axis].centre = centre_along(ray, p.grid, axis, walk[axis].cell);
    }
  }
}

ROBOCACHE_HD double coordinate_at(const TsdfParams& p, int64_t offset) {
  return p.dtype == DType::kFloat32 ? static_cast<double>(static_cast<const float*>(p.measured)[offset])
                                    : static_cast<const double*>(p.measured)[offset];
}

// Does the same for point `row` of a sensor.
template <class Visit>
ROBOCACHE_HD void for_each_measured(const TsdfParams& p, const TsdfSensor* sensors, int64_t sensor, int64_t row,
                                    const Visit& visit) {
  const int64_t offset = sensor * p.sensor_stride + row * p.row_stride;
  const double point[3] = {coordinate_at(p, offset), coordinate_at(p, offset + p.column_stride),
                           coordinate_at(p, offset + 2 * p.column_stride)};
  TsdfRay ray;
  if (tsdf_ray(sensors[sensor], point, ray)) for_each_measured(ray, p, visit);
}

// ---- Depth images: the pixel that shows a voxel ----

// A point in the camera's frame, and its pixel, which may lie outside the image.
struct Projected {
  double x, y, z;
  double column, row;
};

// Returns a voxel's centre in the camera's frame, from its offset to the sensor along each axis. The pixel is not set.
ROBOCACHE_HD Projected seen_from(const TsdfSensor& s, double dx, double dy, double dz) {
  const double* r = s.rotation;
  Projected c;
  c.x = (r[0] * dx + r[3] * dy) + r[6] * dz;
  c.y = (r[1] * dx + r[4] * dy) + r[7] * dz;
  c.z = (r[2] * dx + r[5] * dy) + r[8] * dz;
  return c;
}

ROBOCACHE_HD void find_pixel(const TsdfSensor& s, Projected& c) {
  c.column = nearest_even(s.fx * c.x / c.z + s.cx);
  c.row = nearest_even(s.fy * c.y / c.z + s.cy);
}

ROBOCACHE_HD Projected project(const TsdfSensor& s, double dx, double dy, double dz) {
  Projected c = seen_from(s, dx, dy, dz);
  find_pixel(s, c);
  return c;
}

ROBOCACHE_HD bool is_on_image(const TsdfParams& p, const Projected& c) {
  return c.z > 0 && c.column >= 0 && c.column < static_cast<double>(p.columns) && c.row >= 0 &&
         c.row < static_cast<double>(p.rows);
}

ROBOCACHE_HD float depth_at(const TsdfParams& p, int64_t offset) {
  return p.dtype == DType::kFloat32 ? static_cast<const float*>(p.measured)[offset]
                                    : static_cast<float>(static_cast<const uint16_t*>(p.measured)[offset]);
}

// Returns the depth in metres; 0 for no measurement.
ROBOCACHE_HD double depth_in_metres(const TsdfParams& p, float depth) {
  const double metres = p.depth_scale * static_cast<double>(depth);
  return metres > 0 && metres < HUGE_VAL ? metres : 0;
}

// Returns the depth in metres that a voxel's pixel measured; 0 for no measurement.
ROBOCACHE_HD double measured_depth(const TsdfParams& p, int64_t sensor, const Projected& c) {
  if (!is_on_image(p, c)) return 0;
  const int64_t offset = sensor * p.sensor_stride + static_cast<int64_t>(c.row) * p.row_stride +
                         static_cast<int64_t>(c.column) * p.column_stride;
  return depth_in_metres(p, depth_at(p, offset));
}

// Returns the distance from the voxel to the surface at that depth, at most the truncation; NaN for no measurement.
ROBOCACHE_HD double depth_distance(const TsdfParams& p, const Projected& c, double depth) {
  const double sdf = (depth - c.z) * std::sqrt((c.x * c.x + c.y * c.y) + c.z * c.z) / c.z;
  const bool is_measurement = (depth > 0) & (sdf >= -p.truncation) & ((sdf <= p.truncation) | p.space_carving);
  return is_measurement ? (sdf < p.truncation ? sdf : p.truncation) : NAN;
}

// ---- The update ----

ROBOCACHE_HD int64_t in_quanta(const TsdfParams& p, double metres) {
  return static_cast<int64_t>(nearest_even(metres * p.quanta_per_metre));
}

// Returns the double nearest to n. Unlike a cast, the compiler can vectorise this without AVX-512.
ROBOCACHE_HD double as_double(int64_t n) {
  const auto bits = static_cast<uint64_t>(n);
  const auto high = std::bit_cast<double>((bits >> 32) ^ 0x4530000080000000u);         // 2^84 + 2^63 plus the high half
  const auto low = std::bit_cast<double>((bits & 0xffffffffu) | 0x4330000000000000u);  // 2^52 plus the low half
  return (high - (0x1p84 + 0x1p63 + 0x1p52)) + low;
}

// A voxel's new mean as a fraction. `total` is the voxel's new weight.
struct TsdfMean {
  double sum, total;
};

// `sum` must hold a measurement.
ROBOCACHE_HD TsdfMean mean_with(const TsdfParams& p, float distance, float weight, const TsdfSum& sum) {
  const bool is_seen = weight > 0;  // false for NaN
  const double old_weight = is_seen ? static_cast<double>(weight) : 0;
  const double measured = as_double(sum.quanta + sum.count * p.free_quanta) * p.quantum;
  return {is_seen ? static_cast<double>(distance) * old_weight + measured : measured, old_weight + sum.count};
}

ROBOCACHE_HD float weight_of(const TsdfParams& p, const TsdfMean& mean) {
  return static_cast<float>(mean.total < p.max_weight ? mean.total : p.max_weight);
}

ROBOCACHE_HD void update_voxel(const TsdfParams& p, float& distance, float& weight, const TsdfSum& sum) {
  const TsdfMean mean = mean_with(p, distance, weight, sum);
  distance = static_cast<float>(mean.sum / mean.total);
  weight = weight_of(p, mean);
}

ROBOCACHE_HD void update_voxel(const TsdfParams& p, int64_t x, int64_t y, int64_t z, const TsdfSum& sum) {
  update_voxel(p, p.distances[x * p.distance_strides[0] + y * p.distance_strides[1] + z * p.distance_strides[2]],
               p.weights[x * p.weight_strides[0] + y * p.weight_strides[1] + z * p.weight_strides[2]], sum);
}

ROBOCACHE_HD int64_t cell_index(const TsdfParams& p, const int64_t cell[3]) {
  return (cell[0] * p.grid.shape[1] + cell[1]) * p.grid.shape[2] + cell[2];
}

ROBOCACHE_HD void update_voxel_at(const TsdfParams& p, int64_t index, const TsdfSum& sum) {
  const int64_t row = index / p.grid.shape[2];
  const int64_t x = row / p.grid.shape[1];
  update_voxel(p, x, row - x * p.grid.shape[1], index - row * p.grid.shape[2], sum);
}

}  // namespace robocache
