#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "robocache/core/error.hpp"
#include "robocache/points/voxelize/voxelize.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/expect_refused.hpp"
#include "tests/cpp/random_data.hpp"

namespace robocache {
namespace {

using test::DeviceArray;
using test::Random;

class VoxelizeBackward : public test::OnDevice {};
ROBOCACHE_ON_EACH_DEVICE(VoxelizeBackward);

DeviceBuffer workspace_of(int64_t bytes, Device device, std::optional<TensorView>& workspace) {
  DeviceBuffer memory(device, static_cast<size_t>(bytes));
  if (bytes > 0) workspace = TensorView::contiguous(memory.data(), DType::kUInt8, {bytes}, device);
  return memory;
}

// Whole numbers with many ties, in clouds with gaps between their rows. The oracle compares each point with each point
// of its voxel.
TEST_P(VoxelizeBackward, GoesToThePointsOfTheResult) {
  Random random(1);
  const std::array<int64_t, 3> shape = {2, 3, 5};
  const int64_t cells = 30;
  const int64_t clouds = 2;
  const int64_t rows = 200;
  const int64_t width = 3;
  std::vector<float> xyz;
  std::vector<double> features;
  std::vector<int64_t> cell_of;
  for (int64_t row = 0; row < clouds * rows; ++row) {
    int64_t cell = 0;
    bool inside = true;
    for (size_t axis = 0; axis < 3; ++axis) {
      const int64_t index = random.below(shape[axis] + 1);
      xyz.push_back(static_cast<float>(index) + 0.5F);
      inside = inside && index < shape[axis];
      cell = cell * shape[axis] + index;
    }
    cell_of.push_back(inside ? row / rows * cells + cell : -1);
    for (int64_t f = 0; f < width; ++f) features.push_back(static_cast<double>(random.below(4)));
  }
  std::vector<double> out_gradients;
  for (int64_t i = 0; i < clouds * cells * width; ++i)
    out_gradients.push_back(static_cast<double>(random.below(200) - 100));
  const std::vector<int64_t> lengths = {rows, 150};
  const auto is_point = [&](int64_t row) { return row % rows < lengths[static_cast<size_t>(row / rows)]; };

  const DeviceArray<float> points(xyz, DType::kFloat32, {clouds, rows, 3}, device(), {rows * 4 + 3, 4, 1});
  const DeviceArray<double> values(features, DType::kFloat64, {clouds, rows, width}, device(), {rows * 5, 5, 1});
  const DeviceArray<int64_t> lengths_array(lengths, DType::kInt64, {clouds}, device());
  const PointArguments arguments = {
      .points = points.view(), .features = values.view(), .lengths = lengths_array.view()};
  const DeviceArray<double> gradient(out_gradients, DType::kFloat64, {clouds, 2, 3, 5, width}, device());
  for (const VoxelMode mode :
       {VoxelMode::kSum, VoxelMode::kMean, VoxelMode::kMin, VoxelMode::kMax, VoxelMode::kFirst, VoxelMode::kLast}) {
    VoxelizeOptions options = {
        .grid_min = {0, 0, 0}, .voxel_size = {1, 1, 1}, .grid_size = shape, .modes = {mode, VoxelMode::kCount}};
    const DeviceArray<double> out(std::vector<double>(out_gradients.size(), 9), DType::kFloat64,
                                  {clouds, 2, 3, 5, width}, device());
    const DeviceArray<int32_t> counts(std::vector<int32_t>(static_cast<size_t>(clouds * cells), 9), DType::kInt32,
                                      {clouds, 2, 3, 5}, device());
    std::optional<TensorView> forward_workspace;
    const DeviceBuffer forward_memory =
        workspace_of(voxelize_workspace_bytes(arguments, options), device(), forward_workspace);
    voxelize_pointcloud(arguments, options, {out.view(), counts.view()}, CudaStream{}, std::nullopt, forward_workspace);

    options.modes = {mode};
    const DeviceArray<double> features_gradient(std::vector<double>(features.size(), 0.25), DType::kFloat64,
                                                {clouds, rows, width}, device());
    std::optional<TensorView> backward_workspace;
    const DeviceBuffer backward_memory =
        workspace_of(voxelize_gradient_workspace_bytes(arguments, options), device(), backward_workspace);
    voxelize_pointcloud_backward(arguments, options, gradient.view(),
                                 mode == VoxelMode::kMean ? counts.view() : out.view(), features_gradient.view(),
                                 CudaStream{}, backward_workspace);

    std::vector<double> expected(features.size(), 0.25);  // the old content stays
    for (int64_t row = 0; row < clouds * rows; ++row) {
      const int64_t cell = cell_of[static_cast<size_t>(row)];
      if (cell < 0 || !is_point(row)) continue;
      for (int64_t f = 0; f < width; ++f) {
        const double feature = features[static_cast<size_t>(row * width + f)];
        bool gets_gradient = true;
        int64_t points_in_cell = 0;
        for (int64_t other = 0; other < clouds * rows; ++other) {
          if (cell_of[static_cast<size_t>(other)] != cell || !is_point(other)) continue;
          ++points_in_cell;
          const double other_feature = features[static_cast<size_t>(other * width + f)];
          const bool tied_before = other_feature == feature && other < row;
          if (mode == VoxelMode::kMin && (other_feature < feature || tied_before)) gets_gradient = false;
          if (mode == VoxelMode::kMax && (other_feature > feature || tied_before)) gets_gradient = false;
          if (mode == VoxelMode::kFirst && other < row) gets_gradient = false;
          if (mode == VoxelMode::kLast && other > row) gets_gradient = false;
        }
        const double cell_gradient = out_gradients[static_cast<size_t>(cell * width + f)];
        if (!gets_gradient) continue;
        expected[static_cast<size_t>(row * width + f)] +=
            mode == VoxelMode::kMean ? cell_gradient / static_cast<double>(points_in_cell) : cell_gradient;
      }
    }
    ASSERT_EQ(features_gradient.read(), expected) << name_of(mode);
  }
}

TEST_P(VoxelizeBackward, RefusalsNameTheArgument) {
  const DeviceArray<float> points({0, 0, 0}, DType::kFloat32, {1, 3}, device());
  const DeviceArray<float> values({1}, DType::kFloat32, {1, 1}, device());
  const DeviceArray<float> grid({1}, DType::kFloat32, {1, 1, 1, 1}, device());
  const auto call = [&](VoxelMode mode) {
    voxelize_pointcloud_backward(
        {.points = points.view(), .features = values.view()},
        {.grid_min = {0, 0, 0}, .voxel_size = {1, 1, 1}, .grid_size = {1, 1, 1}, .modes = {mode}}, grid.view(),
        std::nullopt, values.view(), CudaStream{});
  };
  test::expect_refused<ArgumentError>([&] { call(VoxelMode::kMean); }, "forward: ");
  test::expect_refused<ArgumentError>([&] { call(VoxelMode::kCount); }, "mode: ");
}

}  // namespace
}  // namespace robocache
