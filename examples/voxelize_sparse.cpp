// Gathers the points of a scan into the pillars of a detector.
#include <robocache/points/voxelize_sparse/voxelize_sparse.hpp>

#include <robocache/core/backend.hpp>

#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

int main() try {
  using robocache::CudaStream;
  using robocache::DType;
  using robocache::TensorView;

  // Each point has x, y and z in metres, and an intensity.
  std::array<float, 16> points{0.1f, 0.1f, 0, 10, 5, 5, 0.5f, 20, 0.2f, 0.1f, 0, 30, 99, 0, 0, 40};

  std::vector<robocache::DeviceBuffer> memory;
  const auto allocate = [&](DType dtype, std::initializer_list<int64_t> shape) {
    TensorView view = TensorView::contiguous(nullptr, dtype, shape);
    memory.emplace_back(view.device, static_cast<size_t>(view.numel() * robocache::dtype_size(dtype)));
    view.data = memory.back().data();
    return view;
  };
  robocache::SparseOptions options;
  options.voxel_size = {0.5, 0.5, 4};
  options.point_range = {0, -40, -3, 70, 40, 1};
  options.max_points_per_voxel = 2;
  options.reduce = std::nullopt;  // gives the points themselves
  const robocache::SparseVoxels pillars = robocache::voxelize_sparse(
      TensorView::contiguous(points.data(), DType::kFloat32, {4, 4}), std::nullopt, options, allocate, CudaStream{});

  const auto* coords = static_cast<const int32_t*>(pillars.coords.data);
  const auto* counts = static_cast<const int32_t*>(pillars.counts.data);
  const auto* features = static_cast<const float*>(pillars.features.data);  // [voxels, 2, 4]
  for (int64_t voxel = 0; voxel < pillars.coords.shape[0]; ++voxel) {
    std::printf("x %2d  y %2d  points %d  intensity %2.0f, %2.0f\n", coords[3 * voxel], coords[3 * voxel + 1],
                counts[voxel], static_cast<double>(features[8 * voxel + 3]),
                static_cast<double>(features[8 * voxel + 7]));
  }
  const bool as_expected = pillars.coords.shape[0] == 2 && counts[0] == 2 && counts[1] == 1 && features[7] == 30 &&
                           *static_cast<const int64_t*>(pillars.dropped.data) == 1;
  return as_expected ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
