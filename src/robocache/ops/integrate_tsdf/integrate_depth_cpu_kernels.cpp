// Built once per instruction set, into namespace robocache::ROBOCACHE_ISA.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "robocache/ops/integrate_tsdf/tsdf_cpu.hpp"
#include "robocache/ops/integrate_tsdf/tsdf_math.hpp"

namespace robocache::ROBOCACHE_ISA {
namespace {

constexpr int64_t kTogether = 256;  // voxels of a row

struct Range {
  int64_t begin, end;
};

// The part of a row that an image may see: no voxel outside has its centre on it. dx and dy say where the row is from the
// sensor.
Range range_in_view(const TsdfParams& p, const TsdfSensor& s, double dx, double dy) {
  const VoxelGrid& grid = p.grid;
  const double first_dz = voxel_centre(grid, 2, 0) - s.origin[2];
  const double* r = s.rotation;
  const double c[3] = {r[0] * dx + r[3] * dy + r[6] * first_dz, r[1] * dx + r[4] * dy + r[7] * first_dz,
                       r[2] * dx + r[5] * dy + r[8] * first_dz};
  const double step[3] = {r[6] * grid.size[2], r[7] * grid.size[2], r[8] * grid.size[2]};
  const auto count = static_cast<double>(grid.shape[2]);
  // Far more than the rounding of everything here.
  const double slack = 1e-12 * (std::abs(dx) + std::abs(dy) + std::abs(first_dz) + count * grid.size[2] +
                                std::abs(grid.origin[2]) + std::abs(s.origin[2]));
  double first = 0;
  double last = count - 1;
  // Of the points with a c.x + b c.y + e c.z >= 0.
  const auto keep = [&](double a, double b, double e) {
    const double here = a * c[0] + b * c[1] + e * c[2] + slack * (std::abs(a) + std::abs(b) + std::abs(e));
    const double slope = a * step[0] + b * step[1] + e * step[2];
    if (slope == 0) {
      if (here < 0) last = -1;
    } else if (slope > 0) {
      first = std::max(first, -here / slope - 1);
    } else {
      last = std::min(last, -here / slope + 1);
    }
  };
  // Pixels reach half a pixel around their centres; a whole one is left.
  keep(0, 0, 1);
  keep(s.fx, 0, s.cx + 1);
  keep(-s.fx, 0, static_cast<double>(p.columns) - s.cx);
  keep(0, s.fy, s.cy + 1);
  keep(0, -s.fy, static_cast<double>(p.rows) - s.cy);
  if (!(first <= last)) return {0, 0};
  return {static_cast<int64_t>(first), static_cast<int64_t>(last) + 1};
}

// Voxels [begin, end) of a row, at most kTogether.
void add_image(const TsdfParams& p, const TsdfSensor* sensors, int64_t sensor, double dx, double dy, int64_t begin,
               int64_t end, TsdfSum* sums) {
  const TsdfSensor s = sensors[sensor];
  const VoxelGrid grid = p.grid;
  double x[kTogether];
  double y[kTogether];
  double z[kTogether];
  double column[kTogether];
  double row[kTogether];
  const auto count = static_cast<int>(end - begin);
  for (int i = 0; i < count; ++i) {  // vector code
    // The index as a double: int64 has no vector conversion before AVX-512.
    const double index = static_cast<double>(begin) + static_cast<double>(i);
    const double centre = grid.origin[2] + (index + 0.5) * grid.size[2];
    const Projected c = project(s, dx, dy, centre - s.origin[2]);
    x[i] = c.x;
    y[i] = c.y;
    z[i] = c.z;
    column[i] = c.column;
    row[i] = c.row;
  }
  for (int i = 0; i < count; ++i) {
    const Projected c{x[i], y[i], z[i], column[i], row[i]};
    double sdf = 0;
    if (is_on_image(p, c) && depth_distance(p, sensor, c, sdf)) add_measurement(p, sdf, sums[i]);
  }
}

}  // namespace

void integrate_rows(const TsdfParams& p, const TsdfSensor* sensors, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t x = row / p.grid.shape[1];
    const int64_t y = row - x * p.grid.shape[1];
    const double v[2] = {voxel_centre(p.grid, 0, x), voxel_centre(p.grid, 1, y)};
    for (int64_t first = 0; first < p.grid.shape[2]; first += kTogether) {
      TsdfSum sums[kTogether] = {};
      Range seen{kTogether, 0};
      for (int64_t i = 0; i < p.sensors; ++i) {
        const double dx = v[0] - sensors[i].origin[0];
        const double dy = v[1] - sensors[i].origin[1];
        Range range = range_in_view(p, sensors[i], dx, dy);
        range = {std::max(range.begin, first), std::min(range.end, first + kTogether)};
        if (range.begin >= range.end) continue;
        add_image(p, sensors, i, dx, dy, range.begin, range.end, sums + (range.begin - first));
        seen = {std::min(seen.begin, range.begin - first), std::max(seen.end, range.end - first)};
      }
      for (int64_t i = seen.begin; i < seen.end; ++i) {
        if (sums[i].count > 0) update_voxel(p, x, y, first + i, sums[i]);
      }
    }
  }
}

}  // namespace robocache::ROBOCACHE_ISA
