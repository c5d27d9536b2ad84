#include "robocache/points/voxelize_sparse/voxelize_sparse.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include "robocache/core/error.hpp"
#include "robocache/points/voxelize_sparse/voxel_downsample.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/poisoned.hpp"
#include "tests/cpp/random_data.hpp"

namespace robocache {
namespace {

using test::DeviceArray;
using test::Poisoned;
using test::Random;

// The expected results, which expected_of computes by a loop over rows and a map of cells.
struct ExpectedVoxels {
  std::vector<SparseCell> cells;
  std::vector<int32_t> counts;
  std::vector<int32_t> point_to_voxel;
  std::vector<std::vector<int32_t>> rows;
  std::vector<int64_t> dropped;
  int64_t num_voxels = 0;
};

// Cloud b has the rows [offsets[b], offsets[b + 1]).
ExpectedVoxels expected_of(const std::vector<float>& points, const std::vector<int64_t>& offsets,
                           const SparseOptions& options) {
  const auto size = static_cast<float>(options.voxel_size[0]);
  const auto key_of = [&](const SparseCell& cell) {
    const SparseKey key =
        sort_key(options.order == VoxelOrder::kMorton ? VoxelOrder::kMorton : VoxelOrder::kLinear, cell);
    return std::array<uint64_t, 2>{key.high, key.low};
  };
  std::map<std::array<uint64_t, 2>, size_t> voxel_of_key;
  std::vector<SparseCell> cells;
  std::vector<std::vector<int32_t>> rows_of;
  ExpectedVoxels expected;
  expected.point_to_voxel.assign(points.size() / 3, -1);
  for (size_t cloud = 0; cloud + 1 < offsets.size(); ++cloud) {
    int64_t inserted = 0;
    for (auto row = static_cast<size_t>(offsets[cloud]); row < static_cast<size_t>(offsets[cloud + 1]); ++row) {
      int32_t index[3] = {};
      bool inside = true;
      for (size_t axis = 0; axis < 3; ++axis) {
        const float origin = options.point_range ? static_cast<float>((*options.point_range)[axis]) : 0;
        const float quotient = std::floor((points[row * 3 + axis] - origin) / size);
        inside = inside && quotient >= -0x1p31f && quotient < 0x1p31f;
        if (inside) index[axis] = static_cast<int32_t>(quotient);
        if (options.point_range) {
          const auto& range = *options.point_range;
          inside = inside && index[axis] >= 0 && index[axis] < std::nearbyint((range[axis + 3] - range[axis]) / size) &&
                   points[row * 3 + axis] < static_cast<float>(range[axis + 3]);
        }
      }
      if (!inside) continue;
      const SparseCell cell{static_cast<int32_t>(cloud), index[0], index[1], index[2]};
      if (!voxel_of_key.contains(key_of(cell))) {
        if (options.max_voxels && inserted == *options.max_voxels) continue;
        ++inserted;
        voxel_of_key.emplace(key_of(cell), cells.size());
        cells.push_back(cell);
        rows_of.emplace_back();
      }
      rows_of[voxel_of_key.at(key_of(cell))].push_back(static_cast<int32_t>(row));
    }
  }
  expected.num_voxels = static_cast<int64_t>(cells.size());
  std::vector<size_t> order(std::min(cells.size(), static_cast<size_t>(options.capacity.value_or(INT32_MAX))));
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  if (options.order != VoxelOrder::kFirst) {
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key_of(cells[a]) < key_of(cells[b]); });
  }
  for (size_t voxel = 0; voxel < order.size(); ++voxel) {
    expected.cells.push_back(cells[order[voxel]]);
    std::vector<int32_t> voxel_rows = rows_of[order[voxel]];
    for (const int32_t row : voxel_rows)
      expected.point_to_voxel[static_cast<size_t>(row)] = static_cast<int32_t>(voxel);
    voxel_rows.resize(
        std::min(voxel_rows.size(), static_cast<size_t>(options.max_points_per_voxel.value_or(INT32_MAX))));
    expected.counts.push_back(static_cast<int32_t>(voxel_rows.size()));
    expected.rows.push_back(voxel_rows);
  }
  for (size_t cloud = 0; cloud + 1 < offsets.size(); ++cloud) {
    expected.dropped.push_back(std::count(expected.point_to_voxel.begin() + offsets[cloud],
                                          expected.point_to_voxel.begin() + offsets[cloud + 1], -1));
  }
  return expected;
}

std::vector<float> random_points(Random& random, int64_t rows) {
  std::vector<float> points;
  for (int64_t i = 0; i < rows * 3; ++i) {
    const double coordinate = random.between(-3, 3);
    points.push_back(static_cast<float>(random.one_in(100)   ? std::nan("")
                                        : random.one_in(100) ? 1e30
                                        : random.one_in(5)   ? std::round(coordinate * 2) / 2
                                                             : coordinate));
  }
  return points;
}

class VoxelizeSparse : public test::OnDevice {};

void expect_reference(const std::vector<float>& points, const std::vector<int64_t>& offsets,
                      const SparseOptions& options, Device device) {
  const auto rows = static_cast<int64_t>(points.size() / 3);
  const DeviceArray<float> array(points, DType::kFloat32, {rows, 3}, device);
  const DeviceArray<int64_t> offsets_array(offsets, DType::kInt64, {static_cast<int64_t>(offsets.size())}, device);
  const bool batched = offsets.size() > 2;
  Poisoned memory(device);
  const SparseVoxels voxels =
      voxelize_sparse(array.view(), std::nullopt, options, memory.allocate(), CudaStream{}, std::nullopt,
                      batched ? std::optional(offsets_array.view()) : std::nullopt);
  ExpectedVoxels expected = expected_of(points, offsets, options);
  EXPECT_EQ(memory.read<int64_t>(voxels.dropped), expected.dropped);
  if (options.capacity) {
    EXPECT_EQ(memory.read<int64_t>(*voxels.num_voxels), std::vector<int64_t>{expected.num_voxels});
    expected.cells.resize(static_cast<size_t>(*options.capacity), {-1, -1, -1, -1});
    expected.counts.resize(static_cast<size_t>(*options.capacity), 0);
    expected.rows.resize(static_cast<size_t>(*options.capacity));
  }
  std::vector<int32_t> coords;
  for (const SparseCell& cell : expected.cells) {
    if (batched) coords.push_back(cell.cloud);
    coords.insert(coords.end(), {cell.x, cell.y, cell.z});
  }
  EXPECT_EQ(memory.read<int32_t>(voxels.coords), coords);
  EXPECT_EQ(memory.read<int32_t>(voxels.counts), expected.counts);
  EXPECT_EQ(memory.read<int32_t>(voxels.point_to_voxel), expected.point_to_voxel);
  const auto columns = static_cast<size_t>(voxels.features.shape[1]);
  std::vector<float> gathered;
  std::vector<int32_t> rows_of_voxel;
  for (const std::vector<int32_t>& voxel_rows : expected.rows) {
    for (size_t slot = 0; slot < columns; ++slot) {
      const int32_t row = slot < voxel_rows.size() ? voxel_rows[slot] : -1;
      rows_of_voxel.push_back(row);
      for (size_t axis = 0; axis < 3; ++axis) {
        gathered.push_back(row < 0 ? 0 : points[static_cast<size_t>(row) * 3 + axis]);
      }
    }
  }
  EXPECT_EQ(memory.read<int32_t>(*voxels.rows_of_voxel), rows_of_voxel);
  EXPECT_EQ(memory.read<float>(voxels.features), gathered);
}

TEST_P(VoxelizeSparse, EqualsTheReferenceForAllLimitsAndOrders) {
  Random random(1);
  for (const int64_t rows : {int64_t{0}, int64_t{1}, int64_t{255}, int64_t{1025}, int64_t{5000}}) {
    const std::vector<float> points = random_points(random, rows);
    for (const std::vector<int64_t>& offsets :
         {std::vector<int64_t>{0, rows}, {0, 0, rows / 3, rows / 3, rows / 2, rows, rows}}) {
      for (const auto& [max_voxels, max_points, capacity] :
           {std::array<int64_t, 3>{0, 0, 0}, {0, 5, 0}, {100, 3, 0}, {0, 40, 0}, {0, 5, 50}, {30, 2, 2000}}) {
        SparseOptions options;
        options.voxel_size = {0.5, 0.5, 0.5};
        options.reduce = std::nullopt;
        options.order = std::array{VoxelOrder::kFirst, VoxelOrder::kLinear, VoxelOrder::kMorton}[random.bits() % 3];
        if (random.one_in(2)) options.point_range = {-2, -2, -2.5, 2, 1, 2.5};
        if (max_voxels > 0) options.max_voxels = max_voxels;
        if (max_points > 0) options.max_points_per_voxel = max_points;
        if (capacity > 0) options.capacity = capacity;
        SCOPED_TRACE(testing::Message() << rows << " rows in " << offsets.size() - 1 << " clouds, " << max_voxels << ' '
                                        << max_points << ' ' << capacity << ", order "
                                        << static_cast<int>(options.order) << (options.point_range ? ", a range" : ""));
        expect_reference(points, offsets, options, device());
      }
    }
  }
}

TEST_P(VoxelizeSparse, AFailedAllocationReachesTheCaller) {
  const DeviceArray<float> array(std::vector<float>(30), DType::kFloat32, {10, 3}, device());
  SparseOptions options;
  options.voxel_size = {1, 1, 1};
  const auto failing_allocate = [](DType, std::initializer_list<int64_t>) -> TensorView {
    throw DeviceError("no memory");
  };
  EXPECT_THROW(voxelize_sparse(array.view(), std::nullopt, options, failing_allocate, CudaStream{}), DeviceError);
}

ROBOCACHE_ON_EACH_DEVICE(VoxelizeSparse);

TEST(SamplePriority, NeverChanges) {
  EXPECT_EQ(sample_priority(0, 0), 0x4821822600000000u);
  EXPECT_EQ(sample_priority(1, 5), 0x3817eddd00000005u);
}

}  // namespace
}  // namespace robocache
