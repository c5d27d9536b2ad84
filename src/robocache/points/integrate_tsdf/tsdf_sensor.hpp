// Checks of a pose and a camera, on the host and on the device. The host refuses wrong numbers. On the device, a sensor
// with wrong numbers measures nothing.
#pragma once

#include <cmath>
#include <cstdint>

#include "robocache/core/host_device.hpp"
#include "robocache/points/integrate_tsdf/tsdf_params.hpp"

namespace robocache {

ROBOCACHE_HD double number_at(const TsdfNumbers& numbers, int64_t sensor, int row, int column) {
  const int64_t offset = sensor * numbers.sensor_stride + row * numbers.row_stride + column * numbers.column_stride;
  return numbers.dtype == DType::kFloat32 ? static_cast<double>(static_cast<const float*>(numbers.data)[offset])
                                          : static_cast<const double*>(numbers.data)[offset];
}

enum class SensorFault { kNone, kNotFinite, kLastRow, kColumns, kMirror, kSkew, kFocal, kCentre };

struct SensorCheck {
  SensorFault fault = SensorFault::kNone;
  double got = 0;
  int i = 0, j = 0;  // for kColumns: the columns
};

// Sets the rotation and the origin from a sensor's row-major 4x4 matrix.
ROBOCACHE_HD SensorCheck read_pose(const TsdfNumbers& poses, int64_t index, TsdfSensor& sensor) {
  double t[4][4];
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      t[i][j] = number_at(poses, index, i, j);
      if (!(std::abs(t[i][j]) < HUGE_VAL)) return {SensorFault::kNotFinite, t[i][j]};
    }
  }
  if (t[3][0] != 0 || t[3][1] != 0 || t[3][2] != 0 || t[3][3] != 1) return {SensorFault::kLastRow};
  // Allows for poses with few digits or in float32. A scale or a mirror image differs by more.
  constexpr double kRounding = 1e-3;
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) {
      sensor.rotation[3 * i + j] = t[i][j];
      const double product = t[0][i] * t[0][j] + t[1][i] * t[1][j] + t[2][i] * t[2][j];
      if (!(std::abs(product - (i == j ? 1 : 0)) <= kRounding)) return {SensorFault::kColumns, product, i, j};
    }
    sensor.origin[i] = t[i][3];
  }
  const double* r = sensor.rotation;
  if (r[0] * (r[4] * r[8] - r[5] * r[7]) - r[1] * (r[3] * r[8] - r[5] * r[6]) + r[2] * (r[3] * r[7] - r[4] * r[6]) <
      0) {
    return {SensorFault::kMirror};
  }
  return {};
}

// Sets the camera from a 3x3 matrix, or from fx, fy, cx, cy.
ROBOCACHE_HD SensorCheck read_camera(const TsdfNumbers& cameras, int64_t index, TsdfSensor& sensor) {
  const auto number = [&](int row, int column) { return number_at(cameras, index, row, column); };
  if (cameras.is_matrix) {
    const double zeros[] = {number(0, 1), number(1, 0), number(2, 0), number(2, 1), number(2, 2) - 1};
    for (const double x : zeros) {
      if (x != 0) return {SensorFault::kSkew, x};
    }
  }
  const bool is_matrix = cameras.is_matrix;
  sensor.fx = number(0, 0);
  sensor.fy = is_matrix ? number(1, 1) : number(0, 1);
  sensor.cx = number(0, 2);
  sensor.cy = is_matrix ? number(1, 2) : number(0, 3);
  for (const double focal : {sensor.fx, sensor.fy}) {
    if (!(focal > 0 && focal < HUGE_VAL)) return {SensorFault::kFocal, focal};
  }
  for (const double centre : {sensor.cx, sensor.cy}) {
    if (!(std::abs(centre) < HUGE_VAL)) return {SensorFault::kCentre, centre};
  }
  return {};
}

}  // namespace robocache
