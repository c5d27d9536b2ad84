// Built once per instruction set, into namespace robocache::ROBOCACHE_ISA.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "robocache/points/integrate_tsdf/tsdf_bounds.hpp"
#include "robocache/points/integrate_tsdf/tsdf_cpu.hpp"
#include "robocache/points/integrate_tsdf/tsdf_math.hpp"

namespace robocache::ROBOCACHE_ISA {
namespace {

constexpr int64_t kVoxelsAtOnce = 256;  // voxels of a row that are handled at once

struct Range {
  int64_t begin, end;
};

// Returns the part of a row that an image may see: voxels outside it do not have their centre on the image. dx and dy
// are the row's offset from the sensor.
Range range_in_view(const TsdfParams& p, const TsdfSensor& s, double dx, double dy) {
  const VoxelGrid& grid = p.grid;
  const double first_dz = voxel_centre(grid, 2, 0) - s.origin[2];
  const double* r = s.rotation;
  const double c[3] = {r[0] * dx + r[3] * dy + r[6] * first_dz, r[1] * dx + r[4] * dy + r[7] * first_dz,
                       r[2] * dx + r[5] * dy + r[8] * first_dz};
  const double step[3] = {r[6] * grid.size[2], r[7] * grid.size[2], r[8] * grid.size[2]};
  const auto count = static_cast<double>(grid.shape[2]);
  // The slack is far more than the sum of all rounding errors here.
  const double slack = 1e-12 * (std::abs(dx) + std::abs(dy) + std::abs(first_dz) + count * grid.size[2] +
                                std::abs(grid.origin[2]) + std::abs(s.origin[2]));
  double first = 0;
  double last = count - 1;
  // Clips the range to the points c with a c.x + b c.y + e c.z >= 0.
  const auto keep = [&](double a, double b, double e) {
    const double value = a * c[0] + b * c[1] + e * c[2] + slack * (std::abs(a) + std::abs(b) + std::abs(e));
    const double slope = a * step[0] + b * step[1] + e * step[2];
    if (slope == 0) {
      if (value < 0) last = -1;
    } else if (slope > 0) {
      first = std::max(first, -value / slope - 1);
    } else {
      last = std::min(last, -value / slope + 1);
    }
  };
  // The image reaches half a pixel beyond the centres of its outer pixels; the margin is a whole pixel.
  keep(0, 0, 1);
  keep(s.fx, 0, s.cx + 1);
  keep(-s.fx, 0, static_cast<double>(p.columns) - s.cx);
  keep(0, s.fy, s.cy + 1);
  keep(0, -s.fy, static_cast<double>(p.rows) - s.cy);
  if (!(first <= last)) return {0, 0};
  return {static_cast<int64_t>(first), static_cast<int64_t>(last) + 1};
}

// The sums of the images' measurements, for some voxels of a row.
struct RowSums {
  int64_t quanta[kVoxelsAtOnce] = {};  // as in TsdfSum
  int32_t counts[kVoxelsAtOnce] = {};
};

// Applies rule 32 of docs/rules.md to voxels that float32 could not decide. `doubtful_voxels` holds their indices in the row,
// counted from `begin`.
void add_doubtful(const TsdfParams& p, const TsdfSensor& s, int64_t sensor, double dx, double dy, int64_t begin,
                  const int32_t* doubtful_voxels, int count, RowSums& sums, int64_t first_voxel) {
  double x[kVoxelsAtOnce];
  double y[kVoxelsAtOnce];
  double z[kVoxelsAtOnce];
  double column[kVoxelsAtOnce];
  double row[kVoxelsAtOnce];
  double quanta[kVoxelsAtOnce];  // holds the measured depths first
  const VoxelGrid grid = p.grid;
  for (int i = 0; i < count; ++i) {  // vector code
    const double index = static_cast<double>(begin) + static_cast<double>(doubtful_voxels[i]);
    const double centre = grid.origin[2] + (index + 0.5) * grid.size[2];
    const Projected c = project(s, dx, dy, centre - s.origin[2]);
    x[i] = c.x;
    y[i] = c.y;
    z[i] = c.z;
    column[i] = c.column;
    row[i] = c.row;
  }
  for (int i = 0; i < count; ++i) quanta[i] = measured_depth(p, sensor, {x[i], y[i], z[i], column[i], row[i]});
  const auto free_space = static_cast<double>(p.free_quanta);
  for (int i = 0; i < count; ++i) {  // vector code
    const double sdf = depth_distance(p, {x[i], y[i], z[i], 0, 0}, quanta[i]);
    quanta[i] = nearest_even(sdf * p.quanta_per_metre) - free_space;
  }
  for (int i = 0; i < count; ++i) {
    if (std::isnan(quanta[i])) continue;
    sums.quanta[first_voxel + doubtful_voxels[i]] += static_cast<int64_t>(quanta[i]);
    ++sums.counts[first_voxel + doubtful_voxels[i]];
  }
}

template <class Depth>
void add_image(const TsdfParams& p, const TsdfSensor& s, int64_t sensor, const int64_t first[3], int count,
               RowSums& sums, int64_t first_voxel) {
  const int64_t extent[3] = {1, 1, count};
  const TsdfBounds g = bounds_of(p, s, first, extent);
  int32_t pixel[kVoxelsAtOnce];
  int32_t on_image[kVoxelsAtOnce];
  int32_t doubt[kVoxelsAtOnce];
  float z[kVoxelsAtOnce];
  float depth[kVoxelsAtOnce];
  const auto columns = static_cast<int32_t>(p.columns);
  const auto rows = static_cast<int32_t>(p.rows);
  const auto column_stride = static_cast<int32_t>(p.column_stride);
  const auto row_stride = static_cast<int32_t>(p.row_stride);
  for (int i = 0; i < count; ++i) {  // vector code, like the next two loops
    const auto offset = static_cast<float>(i);
    z[i] = plus_product(offset, g.step[2][2], g.at[2]);
    const PixelGuess guess = guess_pixel(g, plus_product(offset, g.step[2][0], g.at[0]),
                                         plus_product(offset, g.step[2][1], g.at[1]), z[i], 1 / z[i]);
    const int32_t is_on_image =
        guess.sure & (guess.column >= 0) & (guess.column < columns) & (guess.row >= 0) & (guess.row < rows);
    on_image[i] = is_on_image;
    pixel[i] = is_on_image != 0 ? guess.row * row_stride + guess.column * column_stride : 0;
    doubt[i] = (guess.sure ^ 1) & (z[i] >= -g.error);
  }
  const auto* const image = static_cast<const Depth*>(p.measured) + sensor * p.sensor_stride;
  for (int i = 0; i < count; ++i) depth[i] = static_cast<float>(image[pixel[i]]);
  int32_t* const counts = sums.counts + first_voxel;
  for (int i = 0; i < count; ++i) {
    const Verdict tested = verdict(g, p.space_carving, z[i], depth[i]);
    counts[i] += on_image[i] & tested.free;
    doubt[i] |= on_image[i] & tested.doubtful;
  }
  int32_t doubtful_voxels[kVoxelsAtOnce];
  int doubtful = 0;
  for (int i = 0; i < count; ++i) {
    doubtful_voxels[doubtful] = i;
    doubtful += doubt[i];
  }
  const double dx = voxel_centre(p.grid, 0, first[0]) - s.origin[0];
  const double dy = voxel_centre(p.grid, 1, first[1]) - s.origin[1];
  if (doubtful > 0) add_doubtful(p, s, sensor, dx, dy, first[2], doubtful_voxels, doubtful, sums, first_voxel);
}

void update_row(const TsdfParams& p, int64_t x, int64_t y, int64_t z, const RowSums& sums, Range in_view) {
  float* const distances =
      p.distances + x * p.distance_strides[0] + y * p.distance_strides[1] + z * p.distance_strides[2];
  float* const weights = p.weights + x * p.weight_strides[0] + y * p.weight_strides[1] + z * p.weight_strides[2];
  const auto sum = [&](int64_t i) { return TsdfSum{sums.quanta[i], sums.counts[i]}; };
  if (p.distance_strides[2] != 1 || p.weight_strides[2] != 1) {
    for (int64_t i = in_view.begin; i < in_view.end; ++i) {
      if (sums.counts[i] > 0)
        update_voxel(p, distances[i * p.distance_strides[2]], weights[i * p.weight_strides[2]], sum(i));
    }
    return;
  }
  constexpr int64_t kAtOnce = 16;
  for (int64_t begin = in_view.begin; begin < in_view.end; begin += kAtOnce) {
    const int64_t end = std::min(begin + kAtOnce, in_view.end);
    int32_t counted = 0;
    for (int64_t i = begin; i < end; ++i) counted |= sums.counts[i];
    if (counted == 0) continue;
    for (int64_t i = begin; i < end; ++i) {  // vector code
      float distance = distances[i];
      float weight = weights[i];
      update_voxel(p, distance, weight, sum(i));
      distances[i] = sums.counts[i] > 0 ? distance : distances[i];
      weights[i] = sums.counts[i] > 0 ? weight : weights[i];
    }
  }
}

}  // namespace

void integrate_rows(const TsdfParams& p, const TsdfSensor* sensors, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t x = row / p.grid.shape[1];
    const int64_t y = row - x * p.grid.shape[1];
    const double centre[2] = {voxel_centre(p.grid, 0, x), voxel_centre(p.grid, 1, y)};
    for (int64_t first_z = 0; first_z < p.grid.shape[2]; first_z += kVoxelsAtOnce) {
      RowSums sums;
      Range in_view{kVoxelsAtOnce, 0};
      for (int64_t i = 0; i < p.sensors; ++i) {
        const double dx = centre[0] - sensors[i].origin[0];
        const double dy = centre[1] - sensors[i].origin[1];
        Range range = range_in_view(p, sensors[i], dx, dy);
        range = {std::max(range.begin, first_z), std::min(range.end, first_z + kVoxelsAtOnce)};
        if (range.begin >= range.end) continue;
        const int64_t first_voxel[3] = {x, y, range.begin};
        const auto add = p.dtype == DType::kFloat32 ? add_image<float> : add_image<uint16_t>;
        add(p, sensors[i], i, first_voxel, static_cast<int>(range.end - range.begin), sums, range.begin - first_z);
        in_view = {std::min(in_view.begin, range.begin - first_z), std::max(in_view.end, range.end - first_z)};
      }
      update_row(p, x, y, first_z, sums, in_view);
    }
  }
}

}  // namespace robocache::ROBOCACHE_ISA
