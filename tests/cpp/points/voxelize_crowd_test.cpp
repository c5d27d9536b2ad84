// Clouds that lead through each path of a backend: few and many rows, few and many cells, voxels with one point and
// with more points than 16 bits can count. The outputs are aligned or not.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "robocache/points/voxelize/voxelize.hpp"
#include "robocache/points/voxelize_sparse/voxelize_sparse.hpp"
#include "robocache/points/voxels/reduce_way.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/random_data.hpp"
#include "tests/cpp/trials.hpp"

namespace robocache {
namespace {

using test::DeviceArray;
using test::Random;

struct Layout {
  std::string name;
  int64_t rows;
  std::array<int64_t, 3> shape;
  std::vector<int64_t> dense_rows;  // rows in each of the first voxels; the others lie anywhere, one in ten outside
};

const std::vector<Layout> kLayouts = {
    {"few rows", 700, {8, 8, 8}, {40}},
    {"one cell", 140'001, {1, 1, 1}, {140'000}},
    {"a line of cells", 20'003, {1, 1, 40}, {1100, 33, 32, 31}},
    {"crowds of every size", 70'001, {40, 40, 40}, {20'000, 5000, 1025, 1024, 1023, 300, 64, 33, 32, 31, 2, 1}},
    {"more than 16 bits count", 140'003, {16, 16, 32}, {70'000, 65'536, 0}},
    {"more cells than rows", 5003, {300, 200, test::trials(50)}, {50}},
    {"more rows than 2^20", kFewRows + 1009, {64, 33, 96}, {3000, 40}},
};

// Voxels have size 1. Features are small whole numbers, so that float64 sums are exact in any order.
struct Cloud {
  std::vector<float> xyz;
  std::vector<float> features;  // two per point
};

Cloud make_cloud(const Layout& layout, Random& random) {
  Cloud cloud;
  std::vector<int64_t> cells;
  for (size_t cell = 0; cell < layout.dense_rows.size(); ++cell) {
    cells.insert(cells.end(), static_cast<size_t>(layout.dense_rows[cell]), static_cast<int64_t>(cell));
  }
  const int64_t cell_count = layout.shape[0] * layout.shape[1] * layout.shape[2];
  while (static_cast<int64_t>(cells.size()) < layout.rows)
    cells.push_back(random.below(cell_count + cell_count / 10 + 1));
  for (size_t i = cells.size(); i-- > 1;) {
    std::swap(cells[i], cells[static_cast<size_t>(random.below(static_cast<int64_t>(i) + 1))]);
  }
  for (const int64_t cell : cells) {
    const std::array<int64_t, 3> position = {cell / (layout.shape[1] * layout.shape[2]),  // outside: past the end of x
                                             cell / layout.shape[2] % layout.shape[1], cell % layout.shape[2]};
    for (const int64_t index : position)
      cloud.xyz.push_back(static_cast<float>(index) + static_cast<float>(random.between(0.1, 0.9)));
    for (int f = 0; f < 2; ++f) cloud.features.push_back(static_cast<float>(random.below(2001) - 1000));
  }
  return cloud;
}

struct ExpectedSums {
  std::vector<int32_t> count;
  std::vector<double> sum;
  std::vector<float> largest, last;
  int64_t dropped = 0;
};

ExpectedSums expected_sums(const Layout& layout, const Cloud& cloud) {
  const auto cells = static_cast<size_t>(layout.shape[0] * layout.shape[1] * layout.shape[2]);
  ExpectedSums expected{std::vector<int32_t>(cells), std::vector<double>(2 * cells), std::vector<float>(2 * cells),
                        std::vector<float>(2 * cells)};
  for (size_t row = 0; row < static_cast<size_t>(layout.rows); ++row) {
    const auto x = static_cast<int64_t>(cloud.xyz[3 * row]);
    const auto y = static_cast<int64_t>(cloud.xyz[3 * row + 1]);
    const auto z = static_cast<int64_t>(cloud.xyz[3 * row + 2]);
    if (x >= layout.shape[0]) {
      ++expected.dropped;
      continue;
    }
    const auto cell = static_cast<size_t>((x * layout.shape[1] + y) * layout.shape[2] + z);
    const bool is_new = expected.count[cell]++ == 0;
    for (size_t f = 0; f < 2; ++f) {
      const float value = cloud.features[2 * row + f];
      expected.sum[2 * cell + f] += static_cast<double>(value);
      expected.largest[2 * cell + f] = is_new ? value : std::max(expected.largest[2 * cell + f], value);
      expected.last[2 * cell + f] = value;
    }
  }
  return expected;
}

class VoxelizeCrowds : public test::OnDevice {
 protected:
  // Only CUDA has another path for more than 2^20 rows.
  static int64_t rows_on_device(int64_t rows) { return device().is_cuda() || rows <= kFewRows ? rows : rows / 16; }

  // Returns an output whose first element is `shift` elements after an aligned address.
  template <class T>
  static DeviceArray<T> output(int64_t elements, DType dtype, int64_t shift) {
    return {std::vector<T>(static_cast<size_t>(elements + shift), T{9}), dtype, {elements + shift}, device()};
  }

  template <class T>
  static TensorView part(const DeviceArray<T>& array, std::initializer_list<int64_t> shape, int64_t shift) {
    return TensorView::contiguous(static_cast<T*>(array.view().data) + shift, array.view().dtype, shape, device());
  }

  static void voxelize(const PointArguments& arguments, const VoxelizeOptions& options,
                       const std::vector<TensorView>& outs, const std::optional<TensorView>& dropped) {
    const auto bytes = voxelize_workspace_bytes(arguments, options);
    const DeviceBuffer memory(device(), static_cast<size_t>(bytes));
    const auto workspace = TensorView::contiguous(memory.data(), DType::kUInt8, {bytes}, device());
    voxelize_pointcloud(arguments, options, outs, CudaStream{}, dropped, workspace);
  }

  template <class T>
  static std::vector<T> read(const DeviceArray<T>& array, int64_t shift) {
    const std::vector<T> all = array.read();
    for (int64_t i = 0; i < shift; ++i) EXPECT_EQ(all[static_cast<size_t>(i)], T{9});
    return {all.begin() + shift, all.end()};
  }
};
ROBOCACHE_ON_EACH_DEVICE(VoxelizeCrowds);

TEST_P(VoxelizeCrowds, EqualAPlainLoop) {
  Random random(4);
  for (Layout layout : kLayouts) {
    layout.rows = rows_on_device(layout.rows);
    const Cloud cloud = make_cloud(layout, random);
    const ExpectedSums expected = expected_sums(layout, cloud);
    const int64_t cells = layout.shape[0] * layout.shape[1] * layout.shape[2];
    const DeviceArray<float> points(cloud.xyz, DType::kFloat32, {layout.rows, 3}, device());
    const DeviceArray<float> features(cloud.features, DType::kFloat32, {layout.rows, 2}, device());
    for (const int64_t shift : {0, 1}) {
      for (const bool with_features : {false, true}) {
        const auto count = output<int32_t>(cells, DType::kInt32, shift);
        const auto sum = output<float>(2 * cells, DType::kFloat32, shift);
        const auto largest = output<float>(2 * cells, DType::kFloat32, shift);
        const auto last = output<float>(2 * cells, DType::kFloat32, shift);
        const DeviceArray<int64_t> dropped({9}, DType::kInt64, {}, device());
        const auto [x, y, z] = layout.shape;
        PointArguments arguments{.points = points.view()};
        VoxelizeOptions options{
            .grid_min = {0, 0, 0}, .voxel_size = {1, 1, 1}, .grid_size = layout.shape, .modes = {VoxelMode::kCount}};
        std::vector<TensorView> outs = {part(count, {x, y, z}, shift)};
        if (with_features) {
          arguments.features = features.view();
          options.modes = {VoxelMode::kCount, VoxelMode::kSum, VoxelMode::kMax, VoxelMode::kLast};
          for (const auto* array : {&sum, &largest, &last}) outs.push_back(part(*array, {x, y, z, 2}, shift));
        }
        SCOPED_TRACE(layout.name + (with_features ? ", features" : "") + (shift > 0 ? ", not aligned" : ""));

        voxelize(arguments, options, outs, dropped.view());
        ASSERT_EQ(read(count, shift), expected.count);
        ASSERT_EQ(dropped.read(), std::vector<int64_t>{expected.dropped});
        if (!with_features) continue;
        ASSERT_EQ(read(sum, shift), std::vector<float>(expected.sum.begin(), expected.sum.end()));
        ASSERT_EQ(read(largest, shift), expected.largest);
        ASSERT_EQ(read(last, shift), expected.last);
      }
    }
  }
}

}  // namespace
}  // namespace robocache
