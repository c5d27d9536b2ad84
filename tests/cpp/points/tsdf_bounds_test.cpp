// Tests that a verdict on a box of voxels agrees with rule 32 for each voxel.
#include "robocache/points/integrate_tsdf/tsdf_bounds.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "robocache/points/integrate_tsdf/tsdf_math.hpp"
#include "tests/cpp/random_data.hpp"

namespace robocache {
namespace {

using test::Random;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<TsdfRange> ranges_of(const TsdfParams& p) {
  const int64_t across = cell_blocks(p.columns);
  const int64_t down = cell_blocks(p.rows);
  std::vector<TsdfRange> ranges(static_cast<size_t>(across * down * kCellsInBlock), {kInfinity, 0});
  for (int64_t row = 0; row < p.rows; ++row) {
    for (int64_t column = 0; column < p.columns; ++column) {
      const float depth = depth_at(p, row * p.row_stride + column * p.column_stride);
      if (!(depth > 0 && depth < kInfinity)) continue;
      for (int32_t size = 0; size < kCellSizes; ++size) {
        const int shift = kLeastCellLog2 + size;
        TsdfRange& cell = ranges[static_cast<size_t>(range_index(across, down, size, row >> shift, column >> shift))];
        cell = {std::min(cell.least, depth), std::max(cell.most, depth)};
      }
    }
  }
  return ranges;
}

// Fills `r` with a random matrix, made orthonormal by the Gram-Schmidt process.
void make_orthonormal(Random& random, double r[9]) {
  for (int i = 0; i < 9; ++i) r[i] = random.one_in(3) ? (i % 4 == 0 ? 1 : 0) : random.between(-1, 1);
  for (int i = 0; i < 9; i += 4) r[i] += 1.5;
  for (int i = 0; i < 3; ++i) {
    double* const row = r + 3 * i;
    for (int j = 0; j < i; ++j) {
      const double* const other = r + 3 * j;
      const double along = row[0] * other[0] + row[1] * other[1] + row[2] * other[2];
      for (int k = 0; k < 3; ++k) row[k] -= along * other[k];
    }
    const double length = std::hypot(row[0], row[1], row[2]);
    for (int k = 0; k < 3; ++k) row[k] /= length;
  }
}

TEST(TsdfBounds, ABoxJudgedEmptyHasNoMeasurement) {
  Random random(77);
  int64_t empty = 0;
  int64_t free = 0;
  int64_t boxes = 0;
  for (int round = 0; round < 300; ++round) {
    TsdfParams p{};
    const double scale = std::ldexp(1.0, static_cast<int>(random.below(40)) - 20);
    double size = 0;
    for (int axis = 0; axis < 3; ++axis) {
      p.grid.shape[axis] = 1 + random.below(40);
      p.grid.size[axis] = scale * random.between(0.02, 0.1);
      p.grid.origin[axis] = scale * (random.between(-2, 0) + (random.one_in(8) ? 1e4 : 0));
      size = std::max(size, p.grid.size[axis]);
    }
    p.rows = 1 + random.below(200);
    p.columns = 1 + random.below(300);
    p.row_stride = p.columns;
    p.column_stride = 1;
    p.sensors = 1;
    p.dtype = DType::kFloat32;
    p.is_depth = true;
    p.depth_scale = random.one_in(2) ? 1 : 0.001;
    p.truncation = size * random.between(0.5, 8);
    p.space_carving = random.one_in(2);
    TsdfSensor sensor{};
    make_orthonormal(random, sensor.rotation);
    for (int axis = 0; axis < 3; ++axis) {
      const double extent = static_cast<double>(p.grid.shape[axis]) * p.grid.size[axis];
      sensor.origin[axis] = p.grid.origin[axis] + extent * random.between(-0.5, 1.5);
    }
    sensor.fx = random.between(0.2, 3) * static_cast<double>(p.columns);
    sensor.fy = random.between(0.2, 3) * static_cast<double>(p.rows);
    sensor.cx = static_cast<double>(p.columns) * random.between(-0.2, 1.2);
    sensor.cy = static_cast<double>(p.rows) * random.between(-0.2, 1.2);
    std::vector<float> image(static_cast<size_t>(p.rows * p.columns));
    const double typical_depth = scale * random.between(0.1, 3);
    double depth_factors[10][15];  // one for each square of 20 x 20 pixels
    for (auto& row : depth_factors) {
      for (double& factor : row) factor = random.one_in(4) ? random.between(0.5, 2) : 1;
    }
    for (int64_t i = 0; i < p.rows * p.columns; ++i) {
      const double depth_factor = depth_factors[i / p.columns / 20][i % p.columns / 20];
      image[static_cast<size_t>(i)] =
          static_cast<float>(depth_factor * typical_depth * random.between(0.8, 1.1) / p.depth_scale);
    }
    for (float& depth : image) {
      const float missing[] = {0, -1, std::nanf(""), kInfinity};
      if (random.one_in(10)) depth = missing[random.below(4)];
    }
    p.measured = image.data();
    const int64_t first[3] = {0, 0, 0};
    const int extent[3] = {4, 4, 8};
    const TsdfView view = view_of(bounds_of(p, sensor, first, p.grid.shape), extent);
    const std::vector<TsdfRange> ranges = ranges_of(p);
    for (int64_t x = 0; x < p.grid.shape[0]; x += extent[0]) {
      for (int64_t y = 0; y < p.grid.shape[1]; y += extent[1]) {
        for (int64_t z = 0; z < p.grid.shape[2]; z += extent[2]) {
          ++boxes;
          const BoxVerdict verdict = box_verdict(p, view, random.one_in(10) ? nullptr : ranges.data(),
                                                 static_cast<float>(x), static_cast<float>(y), static_cast<float>(z));
          if (verdict == BoxVerdict::kUnknown) continue;
          ++(verdict == BoxVerdict::kFree ? free : empty);
          for (int64_t i = x; i < std::min(x + extent[0], p.grid.shape[0]); ++i) {
            for (int64_t j = y; j < std::min(y + extent[1], p.grid.shape[1]); ++j) {
              for (int64_t k = z; k < std::min(z + extent[2], p.grid.shape[2]); ++k) {
                const Projected projected = project(sensor, voxel_centre(p.grid, 0, i) - sensor.origin[0],
                                                    voxel_centre(p.grid, 1, j) - sensor.origin[1],
                                                    voxel_centre(p.grid, 2, k) - sensor.origin[2]);
                const double depth = measured_depth(p, 0, projected);
                const double sdf = depth_distance(p, projected, depth);
                ASSERT_TRUE(verdict == BoxVerdict::kFree && depth > 0 ? sdf == p.truncation : std::isnan(sdf))
                    << "round " << round << ", voxel " << i << ", " << j << ", " << k;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(empty, boxes / 2);
  EXPECT_GT(free, boxes / 200);
  EXPECT_LT(empty + free, boxes);
}

// Returns a first approximation of 1 / sqrt(x) or 1 / x as a device may give it, now and then a wrong one.
float guess_near(Random& random, double value) {
  if (random.one_in(50)) return random.one_in(2) ? 0 : kInfinity;
  const float error = static_cast<float>(random.between(-0x1p-21, 0x1p-21));
  return static_cast<float>(value) * (1 + (random.one_in(20) ? 64 * error : error));
}

TEST(TsdfBounds, Float64WithoutDivisionsEqualsRule32) {
  Random random(78);
  const int64_t calls = 400'000;
  int64_t sure_pixels = 0;
  int64_t sure_addends = 0;
  int64_t sure_means = 0;
  for (int64_t i = 0; i < calls; ++i) {
    TsdfParams p{};
    const double scale = std::ldexp(1.0, static_cast<int>(random.below(40)) - 20);
    p.truncation = scale * (random.one_in(4) ? 0.25 : random.between(0.01, 1));
    int exponent = 0;
    const bool is_power_of_two = std::frexp(p.truncation, &exponent) == 0.5;
    p.quantum = std::ldexp(1, exponent - (is_power_of_two ? 1 : 0) - 31);
    p.quanta_per_metre = 1 / p.quantum;
    p.free_quanta = in_quanta(p, p.truncation);
    p.space_carving = random.one_in(2);
    p.max_weight = random.one_in(2) ? HUGE_VAL : random.between(1, 5);

    TsdfSensor sensor{};
    sensor.fx = random.between(10, 2000);
    sensor.fy = random.between(10, 2000);
    sensor.cx = random.between(-100, 1000);
    sensor.cy = random.between(-100, 1000);
    Projected point{scale * random.between(-3, 3), scale * random.between(-3, 3), scale * random.between(0.01, 3), 0,
                    0};
    if (random.one_in(4)) {  // midway between two pixels, or close to it
      sensor.fx = 64;
      sensor.cx = static_cast<double>(random.below(300));
      point.x = point.z * (static_cast<double>(random.below(200)) + 0.5) / 64;
    }
    Projected sure_pixel = point;
    Projected exact_pixel = point;
    find_pixel(sensor, exact_pixel);
    if (find_pixel_if_sure(sensor, sure_pixel, [&](float z) { return guess_near(random, 1.0 / z); })) {
      ++sure_pixels;
      ASSERT_EQ(sure_pixel.column, exact_pixel.column);
      ASSERT_EQ(sure_pixel.row, exact_pixel.row);
    }

    // Distances anywhere around the band, at its ends, and midway between quanta.
    const double length = std::sqrt((point.x * point.x + point.y * point.y) + point.z * point.z);
    const double wanted_distance = random.one_in(4)   ? p.truncation * (random.one_in(2) ? 1 : -1)
                                   : random.one_in(4) ? (std::floor(random.between(-1, 1) * 0x1p31) + 0.5) * p.quantum
                                                      : 1.3 * p.truncation * random.between(-1, 1);
    const double depth = point.z + wanted_distance * point.z / length;
    if (!(depth > 0)) continue;
    const double sdf = depth_distance(p, point, depth);
    const Addend addend =
        addend_of(p, point, depth, [&](float x) { return guess_near(random, 1 / std::sqrt(double{x})); });
    if (addend.sure) {
      ++sure_addends;
      ASSERT_EQ(addend.count, std::isnan(sdf) ? 0 : 1) << sdf / p.truncation;
      ASSERT_EQ(addend.quanta, std::isnan(sdf) ? 0 : in_quanta(p, sdf) - p.free_quanta) << sdf / p.truncation;
    }

    const auto count = static_cast<int32_t>(1 + random.below(random.one_in(2) ? 3 : 100));
    // Now and then the mean lies midway between two numbers of float32.
    const int64_t mean = random.one_in(4) ? (int64_t{1} << 31) + (2 * random.below(1 << 23) + 1) * 128
                                          : static_cast<int64_t>(random.between(-1, 1) * 0x1p32);
    const TsdfSum sum{count * (mean - p.free_quanta), count};
    const float weights[] = {0, std::nanf(""), 1, 3, static_cast<float>(random.between(0, 20)), 3e38f};
    float distance = static_cast<float>(p.truncation * random.between(-1, 1));
    float weight = weights[random.below(6)];
    float sure_distance = distance;
    float sure_weight = weight;
    update_voxel(p, distance, weight, sum);
    if (update_if_sure(p, sure_distance, sure_weight, sum, [&](float x) { return guess_near(random, 1.0 / x); })) {
      ++sure_means;
      ASSERT_EQ(sure_distance, distance);
      ASSERT_EQ(sure_weight, weight);
    }
  }
  EXPECT_GT(sure_pixels, calls * 6 / 10);
  EXPECT_GT(sure_addends, calls * 4 / 10);
  EXPECT_GT(sure_means, calls * 7 / 10);
}

}  // namespace
}  // namespace robocache
