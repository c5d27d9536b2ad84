#include "robocache/points/voxels/reduce_way.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>

namespace robocache {
namespace {

constexpr int64_t kMany = kFewRows + 1;

VoxelReduction call_of(int64_t rows, int64_t x, int64_t y, int64_t z, std::initializer_list<VoxelMode> modes,
                       int64_t features = 0) {
  VoxelReduction call{};
  call.clouds.count = 1;
  call.clouds.rows = rows;
  call.features = {.dtype = DType::kFloat32, .count = features, .row_stride = features};
  call.grid.shape[0] = x;
  call.grid.shape[1] = y;
  call.grid.shape[2] = z;
  call.cells = x * y * z;
  call.by_grid = true;
  call.quantum_exponent = kOwnQuantum;
  for (const VoxelMode mode : modes) call.outputs[call.output_count++].mode = mode;
  return call;
}

TEST(ReduceWay, FewPointsAreCountedAtOnce) {
  const auto suits = [](int64_t rows, int64_t z, std::initializer_list<VoxelMode> modes) {
    return suits_packed(call_of(rows, 1, 1, z, modes));
  };
  EXPECT_TRUE(suits(1, 16, {VoxelMode::kCount}));
  EXPECT_TRUE(suits(kFewRows, 16, {VoxelMode::kCount, VoxelMode::kOccupancy}));
  EXPECT_FALSE(suits(0, 16, {VoxelMode::kCount}));
  EXPECT_FALSE(suits(kMany, 16, {VoxelMode::kCount}));
  EXPECT_TRUE(suits(1, 17, {VoxelMode::kCount, VoxelMode::kOccupancy}));
  EXPECT_FALSE(suits(1, int64_t{1} << 31, {VoxelMode::kCount}));
  EXPECT_FALSE(suits(1, 32, {VoxelMode::kOccupancyBits}));
  EXPECT_FALSE(suits(1, 16, {VoxelMode::kCount, VoxelMode::kSum}));
  VoxelReduction numbered = call_of(1, 1, 1, 16, {VoxelMode::kCount});
  numbered.by_grid = false;
  EXPECT_FALSE(suits_packed(numbered));
}

TEST(ReduceWay, OccupancyAloneOfManyIsBits) {
  EXPECT_TRUE(suits_bits(call_of(kMany, 8, 8, 32, {VoxelMode::kOccupancy, VoxelMode::kOccupancyBits})));
  EXPECT_TRUE(suits_bits(call_of(kMany, 8, 8, 33, {VoxelMode::kOccupancy})));
  EXPECT_FALSE(suits_bits(call_of(kMany, 8, 8, 33, {VoxelMode::kOccupancyBits})));
  EXPECT_FALSE(suits_bits(call_of(kMany, 8, 8, 32, {VoxelMode::kOccupancy, VoxelMode::kCount})));
  EXPECT_FALSE(suits_bits(call_of(kMany, 8, 8, 32, {})));
  EXPECT_FALSE(suits_bits(call_of(kMany, 0, 8, 32, {VoxelMode::kOccupancy})));
  EXPECT_FALSE(suits_bits(call_of(kFewRows, 8, 8, 32, {VoxelMode::kOccupancy})));
  EXPECT_TRUE(suits_bits(call_of(2 * 128 * 128 * 128, 128, 128, 128, {VoxelMode::kOccupancy})));
  EXPECT_FALSE(suits_bits(call_of(2 * 128 * 128 * 128 - 1, 128, 128, 128, {VoxelMode::kOccupancy})));
  EXPECT_FALSE(suits_bits(call_of(int64_t{1} << 40, 256, 256, 257, {VoxelMode::kOccupancy})));
}

TEST(ReduceWay, TilesTakeWhatNumbersOf32BitsName) {
  EXPECT_TRUE(suits_tiles(call_of(1, 1, 1, 1, {VoxelMode::kCount})));
  EXPECT_FALSE(suits_tiles(call_of(0, 1, 1, 1, {VoxelMode::kCount})));
  EXPECT_FALSE(suits_tiles(call_of(int64_t{1} << 31, 1, 1, 1, {VoxelMode::kCount})));
  EXPECT_FALSE(suits_tiles(call_of(1, 0, 1, 1, {VoxelMode::kCount})));
  EXPECT_FALSE(suits_tiles(call_of(1, 1 << 16, 1 << 10, 32, {VoxelMode::kCount})));
  EXPECT_TRUE(suits_tiles(call_of(1, 1, 1, 64, {VoxelMode::kOccupancyBits})));
  EXPECT_FALSE(suits_tiles(call_of(1, 1, 1, 65, {VoxelMode::kOccupancyBits})));
  EXPECT_TRUE(suits_tiles(call_of(1, 1, 1, 1, {VoxelMode::kLast}, 3)));
  EXPECT_FALSE(suits_tiles(call_of(1, 1, 1, 1, {VoxelMode::kLast}, 0)));
  VoxelReduction backwards = call_of(2, 1, 1, 1, {VoxelMode::kMax}, 3);
  backwards.features.row_stride = -3;
  EXPECT_FALSE(suits_tiles(backwards));
  VoxelReduction stacked = call_of(10, 1, 1, 1, {VoxelMode::kMax}, 3);
  stacked.clouds.count = 2;
  stacked.features.cloud_stride = 30;
  EXPECT_TRUE(suits_tiles(stacked));
  stacked.features.cloud_stride = 31;
  EXPECT_FALSE(suits_tiles(stacked));
}

TEST(ReduceWay, SumsOfManyRowsMayGoByChunks) {
  const auto call = [](int64_t rows, int64_t features) {
    return call_of(rows, 64, 64, 64, {VoxelMode::kCount, VoxelMode::kMean}, features);
  };
  EXPECT_TRUE(suits_chunks(call(kMany, 8)));
  EXPECT_FALSE(suits_chunks(call(kFewRows, 8)));
  EXPECT_FALSE(suits_chunks(call(kMany, 7)));
  EXPECT_TRUE(suits_chunks(call(kMany, 128)));
  EXPECT_FALSE(suits_chunks(call(kMany, 132)));
  EXPECT_FALSE(suits_chunks(call_of(4 * 128 * 128 * 128 - 1, 128, 128, 128, {VoxelMode::kSum}, 8)));
  EXPECT_TRUE(suits_chunks(call_of(4 * 128 * 128 * 128, 128, 128, 128, {VoxelMode::kSum}, 8)));
  EXPECT_FALSE(suits_chunks(call_of(kMany, 64, 64, 64, {VoxelMode::kMean, VoxelMode::kMin}, 8)));
  EXPECT_FALSE(suits_chunks(call_of(kMany, 64, 64, 64, {VoxelMode::kCount}, 8)));
  VoxelReduction doubles = call(kMany, 8);
  doubles.features.dtype = DType::kFloat64;
  EXPECT_FALSE(suits_chunks(doubles));
  VoxelReduction given = call(kMany, 8);
  given.quantum_exponent = -126;
  EXPECT_TRUE(suits_chunks(given));
  given.quantum_exponent = -127;
  EXPECT_FALSE(suits_chunks(given));
}

}  // namespace
}  // namespace robocache
