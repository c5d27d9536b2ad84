// Every operation on points where there are none: each byte of an answer is written all the same.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "robocache/points/integrate_tsdf/integrate_tsdf.hpp"
#include "robocache/points/voxelize/voxelize.hpp"
#include "robocache/points/voxelize_sparse/voxel_downsample.hpp"
#include "robocache/points/voxelize_sparse/voxelize_sparse.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/poisoned.hpp"

namespace robocache {
namespace {

using test::Poisoned;

class NoPoints : public test::OnDevice {
 protected:
  NoPoints() : memory(device()) {}

  TensorView poisoned(DType dtype, std::initializer_list<int64_t> shape) { return memory.allocate()(dtype, shape); }

  Poisoned memory;
};
ROBOCACHE_ON_EACH_DEVICE(NoPoints);

TEST_P(NoPoints, VoxelizeWritesAnEmptyGrid) {
  const test::DeviceArray<int64_t> offsets({0, 0, 0}, DType::kInt64, {3}, device());
  for (const bool two_clouds : {false, true}) {
    PointArguments arguments{.points = poisoned(DType::kFloat32, {0, 3}),
                             .features = poisoned(DType::kFloat32, {0, 2})};
    if (two_clouds) arguments.batch_offsets = offsets.view();
    const VoxelizeOptions options{
        .grid_min = {0, 0, 0},
        .voxel_size = {1, 1, 1},
        .grid_size = {2, 3, 40},
        .modes = {VoxelMode::kOccupancy, VoxelMode::kOccupancyBits, VoxelMode::kCount, VoxelMode::kSum,
                  VoxelMode::kMean, VoxelMode::kMin, VoxelMode::kMax, VoxelMode::kFirst, VoxelMode::kLast},
        .fill = -2.5};
    std::vector<TensorView> outs = voxelize_outputs(arguments, options);
    for (TensorView& out : outs) {
      const TensorView bytes = poisoned(DType::kUInt8, {out.numel() * dtype_size(out.dtype)});
      out.data = bytes.data;
    }
    TensorView dropped = voxelize_dropped(arguments);
    dropped.data = poisoned(DType::kInt64, {2}).data;
    const int64_t bytes = voxelize_workspace_bytes(arguments, options);
    voxelize_pointcloud(arguments, options, outs, CudaStream{}, dropped, poisoned(DType::kUInt8, {bytes}));
    const auto all = [&](size_t out, auto value) {
      return std::vector<decltype(value)>(static_cast<size_t>(outs[out].numel()), value);
    };
    EXPECT_EQ(memory.read<uint8_t>(outs[0]), all(0, uint8_t{0}));
    EXPECT_EQ(memory.read<uint32_t>(outs[1]), all(1, uint32_t{0}));
    EXPECT_EQ(memory.read<int32_t>(outs[2]), all(2, 0));
    EXPECT_EQ(memory.read<float>(outs[3]), all(3, 0.0f));
    for (size_t i = 4; i < outs.size(); ++i) EXPECT_EQ(memory.read<float>(outs[i]), all(i, -2.5f)) << i;
    EXPECT_EQ(memory.read<int64_t>(dropped), std::vector<int64_t>(two_clouds ? 2 : 1));
  }
}

TEST_P(NoPoints, VoxelizeSparseWritesItsWholeCapacity) {
  for (const std::optional<SparseReduce> reduce :
       {std::optional(SparseReduce::kMean), std::optional(SparseReduce::kSum), std::optional(SparseReduce::kMin),
        std::optional(SparseReduce::kMax), std::optional(SparseReduce::kFirst), std::optional(SparseReduce::kLast),
        std::optional<SparseReduce>()}) {
    for (const bool limited : {false, true}) {
      if (!reduce && !limited) continue;  // gathering into a capacity takes a limit
      SparseOptions options;
      options.voxel_size = {1, 1, 1};
      options.capacity = 10;
      options.reduce = reduce;
      if (limited) options.max_points_per_voxel = 4;
      SCOPED_TRACE(testing::Message() << (reduce ? name_of(*reduce) : "gather") << (limited ? ", limited" : ""));
      const SparseVoxels made = voxelize_sparse(poisoned(DType::kFloat64, {0, 3}), poisoned(DType::kFloat32, {0, 2}),
                                                options, memory.allocate(), CudaStream{});
      EXPECT_EQ(made.features.dtype, DType::kFloat32);
      EXPECT_EQ(memory.read<float>(made.features), std::vector<float>(reduce ? 20 : 80));
      EXPECT_EQ(memory.read<int32_t>(made.counts), std::vector<int32_t>(10));
      EXPECT_EQ(memory.read<int32_t>(made.coords), std::vector<int32_t>(30, -1));
      EXPECT_EQ(memory.read<int64_t>(made.dropped), std::vector<int64_t>(1));
      EXPECT_EQ(memory.read<int64_t>(*made.num_voxels), std::vector<int64_t>(1));
      if (reduce) continue;
      EXPECT_EQ(memory.read<int32_t>(*made.rows_of_voxel), std::vector<int32_t>(40, -1));
    }
  }
}

// What an answer's dtype is, its rows do not say.
TEST_P(NoPoints, VoxelizeSparseKeepsTheFeaturesDtype) {
  SparseOptions options;
  options.voxel_size = {1, 1, 1};
  const auto features_of = [&](DType dtype) {
    return voxelize_sparse(poisoned(DType::kFloat64, {0, 3}), poisoned(dtype, {0, 2}), options, memory.allocate(),
                           CudaStream{})
        .features;
  };
  EXPECT_EQ(features_of(DType::kFloat16).describe(), poisoned(DType::kFloat16, {0, 2}).describe());
  EXPECT_EQ(features_of(DType::kInt64).describe(), poisoned(DType::kFloat32, {0, 2}).describe());
  options.reduce = SparseReduce::kSum;
  EXPECT_EQ(features_of(DType::kInt8).describe(), poisoned(DType::kInt64, {0, 2}).describe());
  options.reduce = std::nullopt;
  EXPECT_EQ(features_of(DType::kUInt8).dtype, DType::kUInt8);
}

TEST_P(NoPoints, VoxelDownsampleTakesNone) {
  for (const DownsampleMethod method :
       {DownsampleMethod::kCentroid, DownsampleMethod::kFirst, DownsampleMethod::kRandom}) {
    DownsampleOptions options;
    options.voxel_size = {1, 1, 1};
    options.method = method;
    if (method == DownsampleMethod::kRandom) options.seed = 1;
    const Downsampled made = voxel_downsample(poisoned(DType::kFloat64, {0, 4}), poisoned(DType::kFloat16, {0, 2}),
                                              options, memory.allocate(), CudaStream{});
    EXPECT_EQ(made.points.describe(), poisoned(DType::kFloat64, {0, 3}).describe());
    EXPECT_EQ(made.features->describe(), poisoned(DType::kFloat16, {0, 2}).describe());
    EXPECT_EQ(made.point_to_voxel.describe(), poisoned(DType::kInt32, {0}).describe());
  }
}

TEST_P(NoPoints, IntegrateTsdfLeavesTheGridAlone) {
  const TensorView grid = poisoned(DType::kFloat32, {2, 2, 2});
  const TensorView weights = poisoned(DType::kFloat32, {2, 2, 2});
  const auto words = [&](TensorView volume) {
    volume.dtype = DType::kUInt32;
    return memory.read<uint32_t>(volume);
  };
  std::array<double, 16> pose{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
  std::array<double, 4> camera{1, 1, 0, 0};
  const TensorView poses = TensorView::contiguous(pose.data(), DType::kFloat64, {4, 4});
  const TsdfOptions options{.voxel_size = {1, 1, 1}, .truncation = 1, .space_carving = true};
  const TensorView points = poisoned(DType::kFloat32, {0, 3});
  const TensorView depth = poisoned(DType::kFloat32, {0, 640});
  integrate_tsdf(grid, weights, points, poses, std::nullopt, options, CudaStream{},
                 poisoned(DType::kUInt8, {tsdf_workspace_bytes(grid, points, poses, std::nullopt)}));
  integrate_tsdf(grid, weights, depth, poses, TensorView::contiguous(camera.data(), DType::kFloat64, {4}), options,
                 CudaStream{});
  EXPECT_EQ(words(grid), std::vector<uint32_t>(8, 0xa5a5a5a5));
  EXPECT_EQ(words(weights), std::vector<uint32_t>(8, 0xa5a5a5a5));
}

}  // namespace
}  // namespace robocache
