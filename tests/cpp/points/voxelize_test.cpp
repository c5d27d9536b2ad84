#include "robocache/points/voxelize/voxelize.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "robocache/core/error.hpp"
#include "robocache/core/thread_pool.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/random_data.hpp"

namespace robocache {
namespace {

using test::DeviceArray;
using test::Random;

class Voxelize : public test::OnDevice {
 protected:
  template <class T>
  static DeviceArray<T> array(const std::vector<T>& values, DType dtype, const std::vector<int64_t>& shape,
                              const std::vector<int64_t>& strides = {}) {
    return {values, dtype, shape, device(), strides};
  }

  static void run(const PointArguments& arguments, const VoxelizeOptions& options, const std::vector<TensorView>& outs,
                  const std::optional<TensorView>& dropped = std::nullopt) {
    const auto bytes = static_cast<size_t>(voxelize_workspace_bytes(arguments, options));
    const DeviceBuffer memory(device(), bytes);
    std::optional<TensorView> workspace;
    if (bytes > 0) {
      workspace = TensorView::contiguous(memory.data(), DType::kUInt8, {static_cast<int64_t>(bytes)}, device());
    }
    voxelize_pointcloud(arguments, options, outs, CudaStream{}, dropped, workspace);
  }
};
ROBOCACHE_ON_EACH_DEVICE(Voxelize);

TEST_P(Voxelize, TheExampleOfTheHeader) {
  const auto points = array<float>({0.1F, 0.2F, 0.3F, 0.4F, 0.1F, 0.2F, -1, 0, 0}, DType::kFloat32, {3, 3});
  const auto counts = array<int32_t>(std::vector<int32_t>(8, 7), DType::kInt32, {2, 2, 2});
  const auto dropped = array<int64_t>({7}, DType::kInt64, {});
  run({.points = points.view()},
      {.grid_min = {0, 0, 0}, .voxel_size = {0.5, 0.5, 0.5}, .grid_size = {2, 2, 2}, .modes = {VoxelMode::kCount}},
      {counts.view()}, dropped.view());
  EXPECT_EQ(counts.read(), (std::vector<int32_t>{2, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(dropped.read(), std::vector<int64_t>{1});
}

// Clouds have gaps between their rows. In every other round their features have gaps too, and then take atomic
// operations. A call has all modes at once, and is compared with one plain loop over the rows. Features are small
// whole numbers, so that sums are exact in any order.
TEST_P(Voxelize, EqualsAPlainLoop) {
  Random random(1);
  const std::vector<VoxelMode> modes = {VoxelMode::kOccupancy, VoxelMode::kCount, VoxelMode::kSum,   VoxelMode::kMean,
                                        VoxelMode::kMin,       VoxelMode::kMax,   VoxelMode::kFirst, VoxelMode::kLast};
  for (int round = 0; round < 20; ++round) {
    const int64_t clouds = random.below(4);
    const int64_t rows = random.below(300);
    const int64_t width = random.below(20);
    const std::array<int64_t, 3> shape = {1 + random.below(4), 1 + random.below(4), 1 + random.below(40)};
    const int64_t cells = shape[0] * shape[1] * shape[2];
    std::vector<double> xyz;
    std::vector<float> features;
    std::vector<int64_t> lengths;
    for (int64_t b = 0; b < clouds; ++b) {
      lengths.push_back(random.below(rows + 1));
      for (int64_t i = 0; i < rows; ++i) {
        for (size_t axis = 0; axis < 3; ++axis) xyz.push_back(static_cast<double>(random.below(shape[axis] + 2)) - 0.5);
        for (int64_t f = 0; f < width; ++f) features.push_back(static_cast<float>(random.below(2001) - 1000));
      }
    }
    const auto cell_count = static_cast<size_t>(clouds * cells);
    const auto entries = cell_count * static_cast<size_t>(width);
    std::vector<uint8_t> occupied(cell_count, 0);
    std::vector<int32_t> count(cell_count, 0);
    std::vector<int64_t> dropped(static_cast<size_t>(clouds), 0);
    std::vector<float> results[6];  // of the modes from kSum on
    for (int r = 0; r < 6; ++r) results[r].assign(entries, r == 0 ? 0.0F : -1.5F);
    for (int64_t b = 0; b < clouds; ++b) {
      for (int64_t i = 0; i < lengths[static_cast<size_t>(b)]; ++i) {
        const auto row = static_cast<size_t>(b * rows + i);
        int64_t cell = 0;
        bool inside = true;
        for (size_t axis = 0; axis < 3; ++axis) {
          const auto coordinate = static_cast<int64_t>(std::floor(xyz[3 * row + axis]));
          inside = inside && coordinate >= 0 && coordinate < shape[axis];
          cell = cell * shape[axis] + coordinate;
        }
        if (!inside) {
          ++dropped[static_cast<size_t>(b)];
          continue;
        }
        const auto entry = static_cast<size_t>(b * cells + cell);
        const bool is_new = count[entry]++ == 0;
        occupied[entry] = 1;
        for (size_t f = 0; f < static_cast<size_t>(width); ++f) {
          const size_t index = entry * static_cast<size_t>(width) + f;
          const float value = features[row * static_cast<size_t>(width) + f];
          results[0][index] += value;
          results[2][index] = is_new ? value : std::min(results[2][index], value);
          results[3][index] = is_new ? value : std::max(results[3][index], value);
          if (is_new) results[4][index] = value;
          results[5][index] = value;
        }
      }
    }
    for (size_t index = 0; index < entries; ++index) {
      const int32_t n = count[index / static_cast<size_t>(width)];
      if (n > 0) results[1][index] = static_cast<float>(static_cast<double>(results[0][index]) / n);
    }

    const auto points_array = array<double>(xyz, DType::kFloat64, {clouds, rows, 3}, {rows * 5 + 1, 5, 1});
    const auto features_array =
        array<float>(features, DType::kFloat32, {clouds, rows, width}, {rows * (width + 2) + round % 2, width + 2, 1});
    const auto lengths_array = array<int64_t>(lengths, DType::kInt64, {clouds});
    const auto dropped_array = array<int64_t>(std::vector<int64_t>(dropped.size(), 9), DType::kInt64, {clouds});
    const auto occupied_array =
        array<uint8_t>(std::vector<uint8_t>(cell_count, 9), DType::kBool, {clouds, shape[0], shape[1], shape[2]});
    const auto count_array =
        array<int32_t>(std::vector<int32_t>(cell_count, 9), DType::kInt32, {clouds, shape[0], shape[1], shape[2]});
    std::vector<DeviceArray<float>> arrays;
    std::vector<TensorView> outs = {occupied_array.view(), count_array.view()};
    for (int r = 0; r < 6; ++r) {
      arrays.push_back(
          array<float>(std::vector<float>(entries, 9), DType::kFloat32, {clouds, shape[0], shape[1], shape[2], width}));
      outs.push_back(arrays.back().view());
    }
    run({.points = points_array.view(), .features = features_array.view(), .lengths = lengths_array.view()},
        {.grid_min = {0, 0, 0}, .voxel_size = {1, 1, 1}, .grid_size = shape, .modes = modes, .fill = -1.5}, outs,
        dropped_array.view());
    ASSERT_EQ(occupied_array.read(), occupied);
    ASSERT_EQ(count_array.read(), count);
    ASSERT_EQ(dropped_array.read(), dropped);
    for (size_t r = 0; r < 6; ++r) ASSERT_EQ(arrays[r].read(), results[r]) << name_of(modes[r + 2]);
  }
}

}  // namespace
}  // namespace robocache
