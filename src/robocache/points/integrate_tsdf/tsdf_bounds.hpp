// Quick float32 tests of a depth image and a voxel: the image does not measure the voxel, or the voxel lies in free
// space. Every bound includes the difference from the float64 numbers of rule 32, so a test never changes a bit of the
// result. If a test cannot decide, rule 32 does. Both backends share this file.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "robocache/core/host_device.hpp"
#include "robocache/points/integrate_tsdf/tsdf_math.hpp"
#include "robocache/points/integrate_tsdf/tsdf_params.hpp"

namespace robocache {

// A box of voxels as a sensor sees it, with bounds on the errors of float32.
struct TsdfBounds {
  float at[3];       // the first voxel's centre, in the camera's frame
  float step[3][3];  // the difference to the next voxel along each axis
  float fx, fy, cx, cy;
  float depth_scale;
  float error;        // of a coordinate in the camera's frame, inside the box
  float least_z;      // voxels nearer than this are always examined; infinity: the tests decide nothing
  float pixel_error;  // the error of a pixel is at most pixel_error / z + pixel_slack
  float pixel_slack;
  // a voxel at this distance plus depth * kDepthError from the surface is certainly beyond the truncation
  float sure_distance;
};

inline constexpr float kDepthError = 0x1p-21f;

ROBOCACHE_HD double larger(double a, double b) { return a > b ? a : b; }

// The box has `extent` voxels along each axis; `first` is its first voxel.
ROBOCACHE_HD TsdfBounds bounds_of(const TsdfParams& p, const TsdfSensor& s, const int64_t first[3],
                                  const int64_t extent[3]) {
  TsdfBounds g;
  const double* const r = s.rotation;
  double d[3];
  double coordinate_sum = 0;
  double most_voxels = 0;  // along one axis
  for (int axis = 0; axis < 3; ++axis) {
    const double corner = std::abs(p.grid.origin[axis]) + static_cast<double>(p.grid.shape[axis]) * p.grid.size[axis];
    d[axis] = p.grid.origin[axis] + (static_cast<double>(first[axis]) + 0.5) * p.grid.size[axis] - s.origin[axis];
    coordinate_sum += corner + std::abs(s.origin[axis]);
    most_voxels = larger(most_voxels, static_cast<double>(extent[axis]));
  }
  double reach = 0;  // the largest coordinate
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
    // The errors come from rounding `at`, the steps, and up to four sums of them, and from every difference in float64.
    errors[k] = 0x1p-24 * (along + 5 * farthest) + 0x1p-46 * coordinate_sum;
  }
  const double error = larger(larger(errors[0], errors[1]), errors[2]);
  // The greatest distance from the principal point to a pixel at most two pixels outside the image.
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
  // The error of x / z is at most (the error of x + the error of z * |x / z|) / z. 1 / z, the product, fx and the sum
  // also are rounded.
  g.pixel_error = static_cast<float>(1.03 * (larger(s.fx * errors[0], s.fy * errors[1]) + aside * errors[2]));
  g.pixel_slack = static_cast<float>(2.6 * 0x1p-23 * aside + 0x1p-23 * highest);
  // Within these bounds nothing overflows or underflows, and neighbouring pixels differ.
  const double farthest_pixel_offset =
      rows * std::abs(static_cast<double>(p.row_stride)) + columns * std::abs(static_cast<double>(p.column_stride));
  const bool is_bounded = reach > 1e-15 && reach < 1e15 && s.fx < 1e15 && s.fy < 1e15 && highest < 0x1p20 &&
                          p.depth_scale > 1e-30 && p.depth_scale < 1e30 && farthest_pixel_offset < 0x1p31 &&
                          most_voxels <= 0x1p24;
  g.least_z = is_bounded ? 64 * g.error : std::numeric_limits<float>::infinity();
  g.sure_distance = is_bounded ? static_cast<float>(1.002 * p.truncation + 2.02 * error) : g.least_z;
  return g;
}

// The numbers of a sensor that a kernel reads for each box of voxels.
struct alignas(16) TsdfView {
  TsdfBounds bounds;
  float middle[3];  // middle of the first box, in the camera's frame
  float half[3];    // half the size of a box along each axis of that frame, plus more than all errors
};

// Returns the view for boxes of `extent` voxels anywhere in the outer box, which has the bounds `g`.
ROBOCACHE_HD TsdfView view_of(const TsdfBounds& g, const int extent[3]) {
  TsdfView view{g, {}, {}};
  for (int k = 0; k < 3; ++k) {
    view.middle[k] = g.at[k];
    for (int axis = 0; axis < 3; ++axis) {
      const float half = 0.5f * static_cast<float>(extent[axis] - 1) * g.step[axis][k];
      view.middle[k] += half;
      view.half[k] += std::abs(half);
    }
    view.half[k] = view.half[k] * (1 + 0x1p-18f) + 2 * g.error;
  }
  return view;
}

// The ranges of a depth image are found for square cells of three sizes: kLeastCell pixels a side, twice that and four
// times that. A block of kBlockCell pixels a side has 16, 4 and 1 of them.
inline constexpr int32_t kLeastCellLog2 = 4;
inline constexpr int32_t kCellSizes = 3;
inline constexpr int32_t kBlockCellLog2 = kLeastCellLog2 + kCellSizes - 1;
inline constexpr int32_t kBlockCell = 1 << kBlockCellLog2;
inline constexpr int64_t kCellsInBlock = 16 + 4 + 1;

ROBOCACHE_HD int64_t cell_blocks(int64_t pixels) { return (pixels + kBlockCell - 1) >> kBlockCellLog2; }

// Returns the index of a cell's range. The cells of one size, in all blocks, are row-major.
ROBOCACHE_HD int64_t range_index(int64_t blocks_across, int64_t blocks_down, int32_t size, int64_t row,
                                 int64_t column) {
  const int64_t smaller_cells = size == 0 ? 0 : size == 1 ? 16 : 20;
  return smaller_cells * blocks_across * blocks_down + row * (blocks_across << (kCellSizes - 1 - size)) + column;
}

// Returns a range that covers the measurements of all pixels between two corners on the image.
ROBOCACHE_HD TsdfRange range_between(const TsdfParams& p, const TsdfRange* cells, int32_t top, int32_t left,
                                     int32_t bottom, int32_t right) {
  int32_t size = 0;
  while (size < kCellSizes && (((bottom >> (kLeastCellLog2 + size)) - (top >> (kLeastCellLog2 + size)) > 1) |
                               ((right >> (kLeastCellLog2 + size)) - (left >> (kLeastCellLog2 + size)) > 1))) {
    ++size;
  }
  if (size == kCellSizes) return {0, std::numeric_limits<float>::infinity()};
  TsdfRange range{std::numeric_limits<float>::infinity(), 0};
  for (const int32_t row : {top, bottom}) {
    for (const int32_t column : {left, right}) {
      const TsdfRange cell_range =
          cells[range_index(cell_blocks(p.columns), cell_blocks(p.rows), size, row >> (kLeastCellLog2 + size),
                            column >> (kLeastCellLog2 + size))];
      range.least = cell_range.least < range.least ? cell_range.least : range.least;
      range.most = cell_range.most > range.most ? cell_range.most : range.most;
    }
  }
  return range;
}

// The result of testing a box: the image measured none of its voxels, the measured voxels all lie in free space, or
// unknown.
enum class BoxVerdict { kNone, kFree, kUnknown };

// Tests the box whose first voxel is at x, y, z. `cells` holds the image's ranges; null: unknown.
ROBOCACHE_HD BoxVerdict box_verdict(const TsdfParams& p, const TsdfView& view, const TsdfRange* cells, float x, float y,
                                    float z) {
  const TsdfBounds& g = view.bounds;
  // If the tests decide nothing, every voxel is examined; but a pose with NaN measures nothing.
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (!(g.least_z < kInfinity)) return g.at[2] == g.at[2] ? BoxVerdict::kUnknown : BoxVerdict::kNone;
  float low[3];
  float high[3];
  for (int k = 0; k < 3; ++k) {
    const float middle =
        std::fma(x, g.step[0][k], std::fma(y, g.step[1][k], std::fma(z, g.step[2][k], view.middle[k])));
    low[k] = middle - view.half[k];
    high[k] = middle + view.half[k];
  }
  if (!(low[2] >= g.least_z)) return high[2] >= 0 ? BoxVerdict::kUnknown : BoxVerdict::kNone;
  const float most_inverse = 1 / low[2];
  const float least_inverse = 1 / high[2];
  const float left = std::fma(g.fx, low[0] * (low[0] < 0 ? most_inverse : least_inverse), g.cx);
  const float right = std::fma(g.fx, high[0] * (high[0] < 0 ? least_inverse : most_inverse), g.cx);
  const float top = std::fma(g.fy, low[1] * (low[1] < 0 ? most_inverse : least_inverse), g.cy);
  const float bottom = std::fma(g.fy, high[1] * (high[1] < 0 ? least_inverse : most_inverse), g.cy);
  // A pixel reaches half a pixel around its centre; the margin is a whole pixel.
  const auto columns = static_cast<float>(p.columns);
  const auto rows = static_cast<float>(p.rows);
  if ((right < -1) | (left > columns) | (bottom < -1) | (top > rows)) return BoxVerdict::kNone;
  if (cells == nullptr) return BoxVerdict::kUnknown;
  const TsdfRange range = range_between(p, cells, static_cast<int32_t>(top < 1 ? 0 : top - 1),
                                        static_cast<int32_t>(left < 1 ? 0 : left - 1),
                                        static_cast<int32_t>(bottom + 1 < rows ? bottom + 1 : rows - 1),
                                        static_cast<int32_t>(right + 1 < columns ? right + 1 : columns - 1));
  const float nearest = range.least * g.depth_scale;
  const float farthest = range.most * g.depth_scale;
  const bool behind = low[2] - farthest > std::fma(farthest, kDepthError, g.sure_distance);
  const bool ahead = nearest - high[2] > std::fma(nearest, kDepthError, g.sure_distance);
  if (!(range.most > 0) | behind) return BoxVerdict::kNone;
  return !ahead ? BoxVerdict::kUnknown : p.space_carving ? BoxVerdict::kFree : BoxVerdict::kNone;
}

// Returns a * b + sum in float32. The bounds above allow one rounding or two, so the operations are fused if that is
// fast.
ROBOCACHE_HD float plus_product(float a, float b, float sum) {
#if defined(__CUDA_ARCH__) || defined(__FMA__)
  return std::fma(a, b, sum);
#else
  return a * b + sum;
#endif
}

// The pixel of a voxel, if float32 can determine it. It may lie outside the image.
struct PixelGuess {
  int32_t column, row;
  int32_t sure;  // 0 or 1; vector code needs 4-byte members
};

// Finds the pixel of a point in the camera's frame. The point is exact to within g.error, `inverse` is 1 / z to a
// relative error of 2^-23.
ROBOCACHE_HD PixelGuess guess_pixel(const TsdfBounds& g, float x, float y, float z, float inverse) {
  constexpr float kMagic = 0x1.8p23f;  // adding it leaves the nearest whole number in the last bits
  const float u = plus_product(g.fx, x * inverse, g.cx);
  const float v = plus_product(g.fy, y * inverse, g.cy);
  const float column = u + kMagic;
  const float row = v + kMagic;
  // The nearest whole number is certain if u or v is at most this far from it. NaN is never certain. A number beyond
  // the range of kMagic is not certain either: its error is more than half a pixel.
  const float certain = plus_product(-g.pixel_error, inverse, 0.5f - g.pixel_slack);
  const int32_t sure = int32_t{z >= g.least_z} & int32_t{std::abs(u - (column - kMagic)) <= certain} &
                       int32_t{std::abs(v - (row - kMagic)) <= certain};  // without branches, for vector code
  return {std::bit_cast<int32_t>(column) - std::bit_cast<int32_t>(kMagic),
          std::bit_cast<int32_t>(row) - std::bit_cast<int32_t>(kMagic), sure};
}

// The result of testing a voxel: it is in free space; it may be close to the surface. Each member is 0 or 1.
struct Verdict {
  int32_t free, doubtful;
};

// Tests a voxel at z against `depth`, which is in the image's unit.
ROBOCACHE_HD Verdict verdict(const TsdfBounds& g, bool space_carving, float z, float depth) {
  const float metres = depth * g.depth_scale;
  const float ahead = metres - z;
  const float far = plus_product(metres, kDepthError, g.sure_distance);
  const int32_t measured = int32_t{depth > 0} & int32_t{depth < std::numeric_limits<float>::infinity()};
  return {measured & int32_t{space_carving} & int32_t{ahead > far}, measured & int32_t{!(std::abs(ahead) > far)}};
}

// ---- Float64 without divisions and roots ----
//
// Rule 32 rounds divisions and roots correctly, which takes a long chain of slow instructions. The functions below are
// faster and off by less than 2^-48 of the result. Usually the remaining bits do not matter.

struct Refined {
  double value;
  bool sure;  // whether the relative error of the value is at most 2^-51
};

// Returns 1 / sqrt(x). `guess` is a first approximation.
ROBOCACHE_HD Refined inverse_root(double x, float guess) {
  const auto y = static_cast<double>(guess);
  const double residual = std::fma(-x * y, y, 1.0);
  return {std::fma(y * residual, std::fma(0.375, residual, 0.5), y), std::abs(residual) < 0x1p-18};
}

// Returns 1 / x. `guess` is a first approximation.
ROBOCACHE_HD Refined inverse_of(double x, float guess) {
  const auto y = static_cast<double>(guess);
  const double residual = std::fma(-x, y, 1.0);
  return {std::fma(y, std::fma(residual, residual, residual), y), std::abs(residual) < 0x1p-18};
}

// Finds the pixel as find_pixel does, and returns true, if the result is certain. guess(x) approximates 1 / x.
template <class Guess>
ROBOCACHE_HD bool find_pixel_if_sure(const TsdfSensor& s, Projected& c, const Guess& guess) {
  const Refined inverse = inverse_of(c.z, guess(static_cast<float>(c.z)));
  const double u = s.fx * c.x * inverse.value + s.cx;
  const double v = s.fy * c.y * inverse.value + s.cy;
  c.column = nearest_even(u);
  c.row = nearest_even(v);
  constexpr double kCertain = 0.5 - 0x1p-22;  // NaN is never certain
  return inverse.sure & (std::abs(u - c.column) <= kCertain) & (std::abs(v - c.row) <= kCertain) &
         (std::abs(u) + std::abs(s.cx) < 0x1p24) & (std::abs(v) + std::abs(s.cy) < 0x1p24);
}

// The quanta that a measurement adds to TsdfSum, if they can be computed with certainty.
struct Addend {
  int64_t quanta;
  int32_t count;
  bool sure;
};

// Returns the quanta for a voxel in front of the camera and a depth above 0 in metres. guess(x) approximates 1 /
// sqrt(x).
template <class Guess>
ROBOCACHE_HD Addend addend_of(const TsdfParams& p, const Projected& c, double depth, const Guess& guess) {
  // The ray's length over z is square / sqrt(square z^2), which needs one root and no division.
  const double square = std::fma(c.z, c.z, std::fma(c.y, c.y, c.x * c.x));
  const double radicand = square * c.z * c.z;
  const Refined inverse = inverse_root(radicand, guess(static_cast<float>(radicand)));
  const double quanta = (depth - c.z) * p.quanta_per_metre * (square * inverse.value);
  const double most = p.truncation * p.quanta_per_metre;  // at most 2^32; quanta near it have an error below 2^-16
  const double whole = nearest_even(quanta);
  const bool sure = inverse.sure & (std::abs(quanta - whole) <= 0.5 - 0x1p-15) &
                    (std::abs(std::abs(quanta) - most) >= 0x1p-15);  // NaN is never certain
  const bool is_within = (quanta >= -most) & (quanta <= most);
  const bool is_counted = is_within | ((quanta > most) & p.space_carving);
  return {is_within ? static_cast<int64_t>(whole) - p.free_quanta : 0, is_counted ? 1 : 0, sure};
}

// Updates a voxel as update_voxel does, and returns true, if the mean in float32 is certain. guess(x) approximates 1 /
// x.
template <class Guess>
ROBOCACHE_HD bool update_if_sure(const TsdfParams& p, float& distance, float& weight, const TsdfSum& sum,
                                 const Guess& guess) {
  const TsdfMean mean = mean_with(p, distance, weight, sum);
  const Refined inverse = inverse_of(mean.total, guess(static_cast<float>(mean.total)));
  const double approximation = mean.sum * inverse.value;
  if (!(inverse.sure & (static_cast<float>(std::fma(approximation, -0x1p-48, approximation)) ==
                        static_cast<float>(std::fma(approximation, 0x1p-48, approximation))))) {
    return false;
  }
  distance = static_cast<float>(approximation);
  weight = weight_of(p, mean);
  return true;
}

}  // namespace robocache
