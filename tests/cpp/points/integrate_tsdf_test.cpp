#include "robocache/points/integrate_tsdf/integrate_tsdf.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "robocache/core/error.hpp"
#include "robocache/core/thread_pool.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/not_finite.hpp"
#include "tests/cpp/random_data.hpp"

namespace robocache {
namespace {

using test::DeviceArray;
using test::kNan;
using test::Random;

const std::vector<double> kIdentity{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};

TensorView float64_view(const std::vector<double>& values, std::initializer_list<int64_t> shape) {
  return TensorView::contiguous(const_cast<double*>(values.data()), DType::kFloat64, shape);
}

class IntegrateTsdf : public test::OnDevice {
 protected:
  // Runs with a workspace of exactly the required bytes, full of nonsense.
  static void integrate(const DeviceArray<float>& grid, const DeviceArray<float>& weights, const TensorView& measured,
                        const TensorView& poses, const std::optional<TensorView>& intrinsics,
                        const TsdfOptions& options) {
    const int64_t bytes = tsdf_workspace_bytes(grid.view(), measured, poses, intrinsics);
    const DeviceArray<uint8_t> workspace(std::vector<uint8_t>(static_cast<size_t>(bytes), 0xa5), DType::kUInt8, {bytes},
                                         device());
    integrate_tsdf(grid.view(), weights.view(), measured, poses, intrinsics, options, CudaStream{}, workspace.view());
  }

  static DeviceArray<float> floats(const std::vector<float>& values, const std::vector<int64_t>& shape,
                                   const std::vector<int64_t>& strides = {}) {
    return {values, DType::kFloat32, shape, device(), strides};
  }
};
ROBOCACHE_ON_EACH_DEVICE(IntegrateTsdf);

TEST_P(IntegrateTsdf, TheExampleOfTheHeader) {
  const DeviceArray<float> grid = floats(std::vector<float>(8), {2, 2, 2});
  const DeviceArray<float> weights = floats(std::vector<float>(8), {2, 2, 2});
  const DeviceArray<float> points = floats({0, 0, 1}, {1, 3});
  const std::vector<double> pose{1, 0, 0, 0.5, 0, 1, 0, 0.5, 0, 0, 1, 0, 0, 0, 0, 1};
  const TsdfOptions options{.voxel_size = {1, 1, 1}, .truncation = 1};
  integrate(grid, weights, points.view(), float64_view(pose, {4, 4}), std::nullopt, options);
  EXPECT_EQ(grid.read(), (std::vector<float>{0.5f, -0.5f, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(weights.read(), (std::vector<float>{1, 1, 0, 0, 0, 0, 0, 0}));
}

// Many rays cross a few voxels, so all threads add to the same sums. These must equal the sums of one thread and of
// another order.
TEST_P(IntegrateTsdf, HasTheSameBitsOnAnyThreadsInAnyOrder) {
  Random random(32);
  constexpr int64_t kCount = 5000;
  std::vector<float> points;
  std::vector<float> backwards;
  for (int64_t i = 0; i < 3 * kCount; ++i) {
    points.push_back(static_cast<float>(random.between(-1, 1)));
    if (random.one_in(50)) points.back() = kNan;
  }
  for (int64_t i = kCount - 1; i >= 0; --i) {
    backwards.insert(backwards.end(), points.begin() + 3 * i, points.begin() + 3 * i + 3);
  }
  const int threads = num_threads();
  for (const bool carving : {false, true}) {
    // integrate_tsdf clears all sums if rays visit more voxels than the grid has, as with 3 cells; with 88, carving or
    // not, it clears those along the rays.
    for (const int64_t cells : {3, 88}) {
      std::vector<std::vector<float>> results;
      for (const int n : {1, 4}) {
        for (const auto& order : {points, backwards}) {
          set_num_threads(n);
          const auto count = static_cast<size_t>(cells * cells * cells);
          const DeviceArray<float> grid = floats(std::vector<float>(count), {cells, cells, cells});
          const DeviceArray<float> weights = floats(std::vector<float>(count), {cells, cells, cells});
          const double size = 1.2 / static_cast<double>(cells);
          const TsdfOptions options{.grid_min = {-0.6, -0.6, -0.6},
                                    .voxel_size = {size, size, size},
                                    .truncation = 0.02,
                                    .space_carving = carving};
          const DeviceArray<float> measured = floats(order, {kCount, 3});
          integrate(grid, weights, measured.view(), float64_view(kIdentity, {4, 4}), std::nullopt, options);
          std::vector<float> grid_and_weights = grid.read();
          const std::vector<float> weight_values = weights.read();
          grid_and_weights.insert(grid_and_weights.end(), weight_values.begin(), weight_values.end());
          results.push_back(grid_and_weights);
        }
      }
      float rays = 0;
      for (size_t i = results[0].size() / 2; i < results[0].size(); ++i) rays += results[0][i];
      EXPECT_GT(rays, 100);
      for (const auto& other : results) EXPECT_EQ(other, results[0]);
    }
  }
  set_num_threads(threads);
}

TEST_P(IntegrateTsdf, RefusesAWorkspaceThatIsTooSmall) {
  const DeviceArray<float> grid = floats(std::vector<float>(8), {2, 2, 2});
  const DeviceArray<float> weights = floats(std::vector<float>(8), {2, 2, 2});
  const DeviceArray<float> points = floats({0, 0, 1}, {1, 3});
  const TsdfOptions options{.voxel_size = {1, 1, 1}, .truncation = 1};
  const int64_t bytes = tsdf_workspace_bytes(grid.view(), points.view(), float64_view(kIdentity, {4, 4}), std::nullopt);
  EXPECT_EQ(bytes, 8 * 16);  // 8 voxels, a sum of 16 bytes each
  const DeviceArray<uint8_t> too_small(std::vector<uint8_t>(static_cast<size_t>(bytes - 1)), DType::kUInt8, {bytes - 1},
                                       device());
  for (const auto& workspace : {std::optional<TensorView>(), std::optional(too_small.view())}) {
    try {
      integrate_tsdf(grid.view(), weights.view(), points.view(), float64_view(kIdentity, {4, 4}), std::nullopt, options,
                     CudaStream{}, workspace);
      FAIL() << "expected an error";
    } catch (const ArgumentError& error) {
      EXPECT_EQ(std::string(error.what()).find("workspace: expected 128 bytes on "), 0) << error.what();
    }
  }
  EXPECT_EQ(grid.read(), std::vector<float>(8));
}

}  // namespace
}  // namespace robocache
