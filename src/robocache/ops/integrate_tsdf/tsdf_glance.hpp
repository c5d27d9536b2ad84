// What float32 is sure of about a depth image and a voxel: that it says nothing of the voxel, or that the voxel lies in
// free space. Every bound here holds for the numbers that rule 32 makes in float64, so that a glance never changes a bit;
// what it is not sure of, rule 32 decides. Both backends share it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "robocache/core/host_device.hpp"
#include "robocache/ops/integrate_tsdf/tsdf_params.hpp"

namespace robocache {

// Of a box of voxels and a sensor.
struct TsdfGlance {
  float at[3];       // the first voxel's centre, in the camera's frame
  float step[3][3];  // what a voxel further along each axis adds to that
  float fx, fy, cx, cy;
  float depth_scale;
  float error;          // of a coordinate in that frame, in the box
  float least_z;        // what is nearer than this is looked at; infinity: nothing is sure
  float pixel_error;    // of a pixel: this over z,
  float pixel_slack;    // and this
  float sure_distance;  // more in front or behind than this and depth * kDepthError is far more than the truncation
};

inline constexpr float kDepthError = 0x1p-21f;

ROBOCACHE_HD double larger(double a, double b) { return a > b ? a : b; }

// `extent` voxels along each axis, the first at `first`.
ROBOCACHE_HD TsdfGlance glance_at(const TsdfParams& p, const TsdfSensor& s, const int64_t first[3],
                                  const int64_t extent[3]) {
  TsdfGlance g;
  const double* const r = s.rotation;
  double d[3];
  double far = 0;
  double most_voxels = 0;  // along an axis
  for (int axis = 0; axis < 3; ++axis) {
    const double corner = std::abs(p.grid.origin[axis]) + static_cast<double>(p.grid.shape[axis]) * p.grid.size[axis];
    d[axis] = p.grid.origin[axis] + (static_cast<double>(first[axis]) + 0.5) * p.grid.size[axis] - s.origin[axis];
    far += corner + std::abs(s.origin[axis]);
    most_voxels = larger(most_voxels, static_cast<double>(extent[axis]));
  }
  double reach = 0;  // of any coordinate
  double errors[3];
  for (int k = 0; k < 3; ++k) {
    const double c = r[k] * d[0] + r[3 + k] * d[1] + r[6 + k] * d[2];
    double low = c;
    double high = c;
    double along = std::abs(c);
    g.at[k] = static_cast<float>(c);
    for (int axis = 0; axis < 3; ++axis) {
      const double step = r[3 * axis + k] * p.grid.size[axis];
      const double whole = step * static_cast<double>(extent[axis]);
      g.step[axis][k] = static_cast<float>(step);
      low -= larger(-whole, 0);
      high += larger(whole, 0);
      along += std::abs(whole);
    }
    const double farthest = larger(std::abs(low), std::abs(high));
    reach = larger(reach, farthest);
    // at and the steps are rounded, and what is added to them up to four times; float64 rounds all that it subtracts.
    errors[k] = 0x1p-24 * (along + 5 * farthest) + 0x1p-46 * far;
  }
  const double error = larger(larger(errors[0], errors[1]), errors[2]);
  // The farthest from the principal point that a pixel within two of the image is.
  const double columns = static_cast<double>(p.columns);
  const double rows = static_cast<double>(p.rows);
  const double aside =
      larger(larger(std::abs(s.cx), std::abs(columns - s.cx)), larger(std::abs(s.cy), std::abs(rows - s.cy))) + 2;
  const double highest = larger(std::abs(s.cx) + columns, std::abs(s.cy) + rows) + 2;
  g.fx = static_cast<float>(s.fx);
  g.fy = static_cast<float>(s.fy);
  g.cx = static_cast<float>(s.cx);
  g.cy = static_cast<float>(s.cy);
  g.depth_scale = static_cast<float>(p.depth_scale);
  g.error = static_cast<float>(1.01 * error);
  // x / z is off by (its error + that of z |x / z|) / z; 1 / z, the product, fx and the sum round.
  g.pixel_error = static_cast<float>(1.03 * (larger(s.fx * errors[0], s.fy * errors[1]) + aside * errors[2]));
  g.pixel_slack = static_cast<float>(2.6 * 0x1p-23 * aside + 0x1p-23 * highest);
  // Within these nothing here under- or overflows, and pixels can be told apart.
  const double farthest_place =
      rows * std::abs(static_cast<double>(p.row_stride)) + columns * std::abs(static_cast<double>(p.column_stride));
  const bool sane = reach > 1e-15 && reach < 1e15 && s.fx < 1e15 && s.fy < 1e15 && highest < 0x1p20 &&
                    p.depth_scale > 1e-30 && p.depth_scale < 1e30 && farthest_place < 0x1p31 && most_voxels <= 0x1p24;
  g.least_z = sane ? 64 * g.error : std::numeric_limits<float>::infinity();
  g.sure_distance = sane ? static_cast<float>(1.002 * p.truncation + 2.02 * error) : g.least_z;
  return g;
}

// What a sensor sees, as five half-spaces of the first voxel of a box: a constant, and what each axis adds to it. Where one
// of the sums is below 0 no voxel of the box is on an image.
struct TsdfFrustum {
  float planes[5][4];
};

// For boxes of `extent` voxels, anywhere within what the glance is of.
ROBOCACHE_HD TsdfFrustum frustum_of(const TsdfParams& p, const TsdfGlance& g, const int extent[3]) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float columns = static_cast<float>(p.columns);
  const float rows = static_cast<float>(p.rows);
  // Of the points with a x + b y + e z >= 0. Pixels reach half a pixel around their centres; a whole one is left.
  const float sides[5][3] = {
      {0, 0, 1}, {g.fx, 0, g.cx + 1}, {-g.fx, 0, columns - g.cx}, {0, g.fy, g.cy + 1}, {0, -g.fy, rows - g.cy}};
  TsdfFrustum made;
  for (int i = 0; i < 5; ++i) {
    const auto [a, b, e] = sides[i];
    float most = a * g.at[0] + b * g.at[1] + e * g.at[2] + 4 * g.error * (std::abs(a) + std::abs(b) + std::abs(e));
    for (int axis = 0; axis < 3; ++axis) {
      const float slope = a * g.step[axis][0] + b * g.step[axis][1] + e * g.step[axis][2];
      if (slope > 0) most += slope * static_cast<float>(extent[axis] - 1);
      made.planes[i][1 + axis] = g.least_z < kInfinity ? slope : 0;
    }
    // Where nothing is sure all is looked at, but by a pose of NaN.
    made.planes[i][0] = g.least_z < kInfinity ? most : g.at[2] == g.at[2] ? kInfinity : -kInfinity;
  }
  return made;
}

// What of a sensor a kernel reads for each box.
struct alignas(16) TsdfView {
  TsdfGlance glance;
  TsdfFrustum frustum;
};

ROBOCACHE_HD bool may_see(const TsdfFrustum& frustum, float x, float y, float z) {
  bool seen = true;
  for (const auto& plane : frustum.planes) {
    seen = seen & (std::fma(z, plane[3], std::fma(y, plane[2], std::fma(x, plane[1], plane[0]))) >= 0);
  }
  return seen;
}

// A sum of float32 that the bounds above allow to be rounded once or twice: fused where that is fast.
ROBOCACHE_HD float plus_product(float a, float b, float sum) {
#if defined(__CUDA_ARCH__) || defined(__FMA__)
  return std::fma(a, b, sum);
#else
  return a * b + sum;
#endif
}

// The pixel that a voxel falls on, where that is sure; it may be none of the image.
struct Glimpse {
  int32_t column, row;
  int32_t sure;  // 0 or 1; vector code knows no members of one byte
};

// Of a point in the camera's frame, to g.error; `inverse` is 1 / z to 2^-23 of it.
ROBOCACHE_HD Glimpse glimpse(const TsdfGlance& g, float x, float y, float z, float inverse) {
  constexpr float kMagic = 0x1.8p23f;  // added, it leaves the nearest whole number in the last bits
  const float u = plus_product(g.fx, x * inverse, g.cx);
  const float v = plus_product(g.fy, y * inverse, g.cy);
  const float column = u + kMagic;
  const float row = v + kMagic;
  // So far from a whole number it is still sure which one is nearest. NaN never is, nor is what magic does not reach:
  // doubt is more than half a pixel there.
  const float certain = plus_product(-g.pixel_error, inverse, 0.5f - g.pixel_slack);
  const int32_t sure = int32_t{z >= g.least_z} & int32_t{std::abs(u - (column - kMagic)) <= certain} &
                       int32_t{std::abs(v - (row - kMagic)) <= certain};  // without branches, for vectors
  return {std::bit_cast<int32_t>(column) - std::bit_cast<int32_t>(kMagic),
          std::bit_cast<int32_t>(row) - std::bit_cast<int32_t>(kMagic), sure};
}

// What an image says of a voxel, if anything: 0 or 1.
struct Verdict {
  int32_t free, doubtful;
};

// What `depth`, as the image holds it, says of a voxel at z.
ROBOCACHE_HD Verdict verdict(const TsdfGlance& g, bool space_carving, float z, float depth) {
  const float metres = depth * g.depth_scale;
  const float ahead = metres - z;
  const float far = plus_product(metres, kDepthError, g.sure_distance);
  const int32_t measured = int32_t{depth > 0} & int32_t{depth < std::numeric_limits<float>::infinity()};
  return {measured & int32_t{space_carving} & int32_t{ahead > far}, measured & int32_t{!(std::abs(ahead) > far)}};
}

}  // namespace robocache
