#include "robocache/ops/voxelize_sparse/voxelize_sparse.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "robocache/core/backend.hpp"
#include "robocache/core/error.hpp"
#include "robocache/ops/voxelize_sparse/voxel_downsample.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/random_data.hpp"

namespace robocache {
namespace {

using test::DeviceArray;
using test::Random;

// Memory of a call; every byte is 0xa5 until it is written.
class Poisoned {
 public:
  explicit Poisoned(Device device) : device_(device) {}

  Allocate allocate() {
    return [this](DType dtype, std::initializer_list<int64_t> shape) {
      TensorView view = TensorView::contiguous(nullptr, dtype, shape, device_);
      const auto bytes = static_cast<size_t>(view.numel() * dtype_size(dtype));
      memory_.emplace_back(device_, bytes);
      memory_.back().fill_from_host(std::vector<uint8_t>(bytes, 0xa5).data(), bytes);
      view.data = memory_.back().data();
      return view;
    };
  }

  template <class T>
  std::vector<T> read(const TensorView& view) const {
    std::vector<T> values(static_cast<size_t>(view.numel()));
    const size_t bytes = values.size() * sizeof(T);
    if (bytes == 0) return values;
    if (device_.is_cuda()) {
      check_cuda(cuda_backend().copy_to_host(device_.index, values.data(), view.data, bytes, nullptr), "read");
      check_cuda(cuda_backend().synchronize(device_.index, nullptr), "read");
    } else {
      std::memcpy(values.data(), view.data, bytes);
    }
    return values;
  }

 private:
  Device device_;
  std::vector<DeviceBuffer> memory_;
};

// The answer once more: a loop over rows, a map of cells.
struct Expected {
  std::vector<int32_t> coords;
  std::vector<int32_t> counts;
  std::vector<int32_t> point_to_voxel;
  std::vector<std::vector<int32_t>> rows;
  int64_t dropped = 0;
  int64_t found = 0;
};

Expected expected_of(const std::vector<float>& points, float size, const SparseOptions& options) {
  using Cell = std::array<int32_t, 3>;
  const auto rows = static_cast<int32_t>(points.size() / 3);
  std::map<Cell, size_t> births;
  std::vector<Cell> cells;
  std::vector<std::vector<int32_t>> rows_of;
  Expected made;
  made.point_to_voxel.assign(static_cast<size_t>(rows), -1);
  for (int32_t row = 0; row < rows; ++row) {
    Cell cell{};
    bool inside = true;
    for (size_t axis = 0; axis < 3; ++axis) {
      const float at = std::floor(points[static_cast<size_t>(row) * 3 + axis] / size);
      inside = inside && at >= -0x1p31f && at < 0x1p31f;
      if (inside) cell[axis] = static_cast<int32_t>(at);
    }
    if (!inside) continue;
    const auto known = births.find(cell);
    if (known == births.end()) {
      if (options.max_voxels && static_cast<int64_t>(cells.size()) == *options.max_voxels) continue;
      births.emplace(cell, cells.size());
      cells.push_back(cell);
      rows_of.emplace_back();
    }
    rows_of[births.at(cell)].push_back(row);
  }
  made.found = static_cast<int64_t>(cells.size());
  std::vector<size_t> order(std::min(cells.size(), static_cast<size_t>(options.capacity.value_or(INT32_MAX))));
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  if (options.order == VoxelOrder::kLinear) {
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return cells[a] < cells[b]; });
  }
  for (size_t voxel = 0; voxel < order.size(); ++voxel) {
    const Cell& cell = cells[order[voxel]];
    made.coords.insert(made.coords.end(), cell.begin(), cell.end());
    std::vector<int32_t> of_voxel = rows_of[order[voxel]];
    for (const int32_t row : of_voxel) made.point_to_voxel[static_cast<size_t>(row)] = static_cast<int32_t>(voxel);
    const auto most = static_cast<size_t>(options.max_points_per_voxel.value_or(INT32_MAX));
    of_voxel.resize(std::min(of_voxel.size(), most));
    made.counts.push_back(static_cast<int32_t>(of_voxel.size()));
    made.rows.push_back(of_voxel);
  }
  made.dropped = std::count(made.point_to_voxel.begin(), made.point_to_voxel.end(), -1);
  return made;
}

std::vector<float> random_points(Random& random, int64_t rows) {
  std::vector<float> points;
  for (int64_t i = 0; i < rows * 3; ++i) {
    const double at = random.between(-3, 3);
    points.push_back(static_cast<float>(random.one_in(100)   ? std::nan("")
                                        : random.one_in(100) ? 1e30
                                        : random.one_in(5)   ? std::round(at * 2) / 2
                                                             : at));
  }
  return points;
}

class VoxelizeSparse : public test::OnDevice {};

TEST_P(VoxelizeSparse, IsTheReferenceWhateverTheCapsAndTheOrder) {
  Random random(1);
  for (const int64_t rows : {int64_t{0}, int64_t{1}, int64_t{255}, int64_t{1025}, int64_t{20000}}) {
    const std::vector<float> points = random_points(random, rows);
    const DeviceArray<float> array(points, DType::kFloat32, {rows, 3}, device());
    for (const auto& [max_voxels, most, capacity] :
         {std::array<int64_t, 3>{0, 0, 0}, {0, 5, 0}, {100, 3, 0}, {0, 40, 0}, {0, 5, 50}, {300, 2, 5000}}) {
      for (const VoxelOrder order : {VoxelOrder::kFirst, VoxelOrder::kLinear}) {
        SparseOptions options;
        options.voxel_size = {0.5, 0.5, 0.5};
        options.reduce = std::nullopt;
        options.order = order;
        if (max_voxels > 0) options.max_voxels = max_voxels;
        if (most > 0) options.max_points_per_voxel = most;
        if (capacity > 0) options.capacity = capacity;
        SCOPED_TRACE(testing::Message() << rows << " rows, " << max_voxels << ' ' << most << ' ' << capacity);
        Poisoned memory(device());
        const SparseVoxels made = voxelize_sparse(array.view(), std::nullopt, options, memory.allocate());
        Expected expected = expected_of(points, 0.5f, options);
        EXPECT_EQ(memory.read<int64_t>(made.dropped), std::vector<int64_t>{expected.dropped});
        if (capacity > 0) {
          EXPECT_EQ(memory.read<int64_t>(*made.num_voxels), std::vector<int64_t>{expected.found});
          expected.coords.resize(static_cast<size_t>(capacity) * 3, -1);
          expected.counts.resize(static_cast<size_t>(capacity), 0);
          expected.rows.resize(static_cast<size_t>(capacity));
        }
        EXPECT_EQ(memory.read<int32_t>(made.coords), expected.coords);
        EXPECT_EQ(memory.read<int32_t>(made.counts), expected.counts);
        EXPECT_EQ(memory.read<int32_t>(made.point_to_voxel), expected.point_to_voxel);
        const auto columns = static_cast<size_t>(made.features.shape[1]);
        std::vector<float> gathered;
        std::vector<int32_t> rows_of_voxel;
        for (const std::vector<int32_t>& of_voxel : expected.rows) {
          for (size_t place = 0; place < columns; ++place) {
            const int32_t row = place < of_voxel.size() ? of_voxel[place] : -1;
            rows_of_voxel.push_back(row);
            for (size_t axis = 0; axis < 3; ++axis) {
              gathered.push_back(row < 0 ? 0 : points[static_cast<size_t>(row) * 3 + axis]);
            }
          }
        }
        EXPECT_EQ(memory.read<int32_t>(*made.rows_of_voxel), rows_of_voxel);
        EXPECT_EQ(memory.read<float>(made.features), gathered);
      }
    }
  }
}

TEST_P(VoxelizeSparse, ReducesTheKeptRowsAlone) {
  const std::vector<float> points{0, 0, 0, 10, 5, 5, 5, 2, 0, 0, 0, 20, 0, 0, 0, 999};
  const DeviceArray<float> array(points, DType::kFloat32, {4, 4}, device());
  SparseOptions options;
  options.voxel_size = {1, 1, 1};
  options.max_points_per_voxel = 2;
  Poisoned memory(device());
  const SparseVoxels made = voxelize_sparse(array.view(), std::nullopt, options, memory.allocate());
  EXPECT_EQ(memory.read<float>(made.features), (std::vector<float>{15, 2}));
  EXPECT_EQ(memory.read<int32_t>(made.counts), (std::vector<int32_t>{2, 1}));
  EXPECT_EQ(memory.read<int32_t>(made.kept), (std::vector<int32_t>{0, 1, 0, -1}));
  EXPECT_EQ(memory.read<int32_t>(made.point_to_voxel), (std::vector<int32_t>{0, 1, 0, 0}));
}

TEST_P(VoxelizeSparse, DownsampleTakesTheLeastPriority) {
  Random random(2);
  const std::vector<float> points = random_points(random, 3000);
  const DeviceArray<float> array(points, DType::kFloat32, {3000, 3}, device());
  SparseOptions all;
  all.reduce = std::nullopt;
  const Expected expected = expected_of(points, 0.5f, all);
  for (const int64_t seed : {int64_t{0}, int64_t{-1}, int64_t{77}}) {
    DownsampleOptions options;
    options.voxel_size = {0.5, 0.5, 0.5};
    options.method = DownsampleMethod::kRandom;
    options.seed = seed;
    Poisoned memory(device());
    const Downsampled made = voxel_downsample(array.view(), std::nullopt, options, memory.allocate());
    std::vector<int32_t> taken;
    for (const std::vector<int32_t>& rows : expected.rows) {
      taken.push_back(*std::min_element(rows.begin(), rows.end(), [&](int32_t a, int32_t b) {
        return sample_priority(static_cast<uint64_t>(seed), a) < sample_priority(static_cast<uint64_t>(seed), b);
      }));
    }
    EXPECT_EQ(memory.read<int32_t>(*made.row), taken);
    EXPECT_EQ(memory.read<int32_t>(made.point_to_voxel), expected.point_to_voxel);
  }
}

TEST_P(VoxelizeSparse, AFailedAllocationIsTheCallers) {
  const DeviceArray<float> array(std::vector<float>(30), DType::kFloat32, {10, 3}, device());
  SparseOptions options;
  options.voxel_size = {1, 1, 1};
  const auto none = [](DType, std::initializer_list<int64_t>) -> TensorView { throw DeviceError("no memory"); };
  EXPECT_THROW(voxelize_sparse(array.view(), std::nullopt, options, none), DeviceError);
}

ROBOCACHE_ON_EACH_DEVICE(VoxelizeSparse);

TEST(SamplePriority, IsWhatItWas) {
  EXPECT_EQ(sample_priority(0, 0), 0x4821822600000000u);
  EXPECT_EQ(sample_priority(1, 5), 0x3817eddd00000005u);
}

TEST(SortKey, MortonBitsOfXAreTheLowest) {
  const auto code = [](int32_t x, int32_t y, int32_t z) {
    const SparseKey key = sort_key(VoxelOrder::kMorton, {0, x, y, z});
    const SparseKey origin = sort_key(VoxelOrder::kMorton, {0, 0, 0, 0});
    EXPECT_EQ(key.high, origin.high);
    return key.low - origin.low;
  };
  EXPECT_EQ(code(1, 0, 0), 1u);
  EXPECT_EQ(code(0, 1, 0), 2u);
  EXPECT_EQ(code(0, 0, 1), 4u);
  EXPECT_EQ(code(2, 0, 0), 8u);
  EXPECT_EQ(code(0x1fffff, 0x1fffff, 0x1fffff), 0x7fffffffffffffffu);
  EXPECT_LT(sort_key(VoxelOrder::kMorton, {0, -1, -1, -1}).high, sort_key(VoxelOrder::kMorton, {0, 0, 0, 0}).high);
  EXPECT_EQ(sort_key(VoxelOrder::kMorton, {3, 0, 0, 0}).high >> 33, 3u);
}

}  // namespace
}  // namespace robocache
