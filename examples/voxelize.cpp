// Averages the intensity of a few points of a lidar in voxels of half a metre.
#include <robocache/points/voxelize/voxelize.hpp>

#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>

int main() try {
  using robocache::CudaStream;
  using robocache::DType;
  using robocache::TensorView;

  // Each point has x, y and z in metres, and an intensity.
  std::array<float, 16> scan{0.1f, 0.2f, 0.3f, 10, 0.4f, 0.1f, 0.2f, 30, 0.9f, 0.1f, 0, 5, -0.1f, 0, 0, 7};
  std::array<int32_t, 4> counts{};
  std::array<float, 4> means{};
  int64_t dropped = 0;

  const robocache::VoxelizeOptions options{
      .grid_min = {0, 0, 0},
      .voxel_size = {0.5, 0.5, 0.5},
      .grid_size = {2, 2, 1},
      .modes = {robocache::VoxelMode::kCount, robocache::VoxelMode::kMean},
  };
  robocache::voxelize_pointcloud({.points = TensorView::contiguous(scan.data(), DType::kFloat32, {4, 4})}, options,
                                 {TensorView::contiguous(counts.data(), DType::kInt32, {2, 2, 1}),
                                  TensorView::contiguous(means.data(), DType::kFloat32, {2, 2, 1, 1})},
                                 CudaStream{}, TensorView::contiguous(&dropped, DType::kInt64, {}));

  for (size_t voxel = 0; voxel < counts.size(); ++voxel) {
    std::printf("x %zu y %zu  %d points  intensity %4.1f\n", voxel / 2, voxel % 2, counts[voxel],
                static_cast<double>(means[voxel]));
  }
  std::printf("%lld outside\n", static_cast<long long>(dropped));
  const bool as_expected = counts == std::array<int32_t, 4>{2, 0, 1, 0} && means == std::array<float, 4>{20, 0, 5, 0};
  return as_expected && dropped == 1 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
