#include "robocache/points/voxels/reduce_backward.hpp"

#include <algorithm>
#include <atomic>

#include "robocache/core/backend.hpp"
#include "robocache/core/thread_pool.hpp"

namespace robocache {
namespace {

constexpr int64_t kRowsPerRange = 4096;

template <class T>
const T* features_of(const VoxelGradient& call, int64_t cloud, int64_t row) {
  return static_cast<const T*>(call.features.data) + cloud * call.features.cloud_stride +
         row * call.features.row_stride;
}

// Calls visit(cloud, row, cell) for every point that is in a cell. `row` counts as in points_of_cloud.
template <class Real, class Visit>
void visit_rows(const VoxelGradient& call, const Visit& visit) {
  const Clouds& clouds = call.clouds;
  for (int64_t cloud = 0; cloud < clouds.count; ++cloud) {
    const RowRange rows = points_of_cloud(clouds, cloud);
    const auto* const points = static_cast<const Real*>(clouds.points) + cloud * clouds.cloud_stride;
    const int64_t cells = call.grid.shape[0] * call.grid.shape[1] * call.grid.shape[2];
    parallel_for(rows.end - rows.begin, kRowsPerRange, [&](int64_t range_begin, int64_t range_end) {
      for (int64_t i = range_begin; i < range_end; ++i) {
        const int64_t row = rows.begin + i;
        const int64_t cell = voxel_cell<Real>(points + row * clouds.row_stride, call.grid);
        if (cell >= 0) visit(cloud, row, cloud * cells + cell);
      }
    });
  }
}

// Makes `chosen` the lesser of itself and `row`, or the greater.
void choose(int32_t& chosen, int32_t row, bool greatest) {
  std::atomic_ref<int32_t> atomic_chosen(chosen);
  int32_t current = atomic_chosen.load(std::memory_order_relaxed);
  while ((greatest ? row > current : row < current) &&
         !atomic_chosen.compare_exchange_weak(current, row, std::memory_order_relaxed)) {
  }
}

template <class T, class Real>
void backward(const VoxelGradient& call) {
  const int64_t width = call.features.count;
  if (goes_to_one(call.mode)) {
    std::fill_n(call.chosen, call.cells * width, no_row(call.mode));
    visit_rows<Real>(call, [&](int64_t cloud, int64_t row, int64_t cell) {
      const T* const features = features_of<T>(call, cloud, row);
      for (int64_t f = 0; f < width; ++f) {
        const int64_t entry = cell * width + f;
        if (may_take(call, features[f], entry)) {
          choose(call.chosen[entry], static_cast<int32_t>(row), call.mode == VoxelMode::kLast);
        }
      }
    });
  }
  visit_rows<Real>(call, [&](int64_t cloud, int64_t row, int64_t cell) {
    const int64_t gradient_row = call.clouds.offsets != nullptr ? row : cloud * call.clouds.rows + row;
    auto* const gradients = static_cast<FeatureGradient<T>*>(call.features_gradient) + gradient_row * width;
    for (int64_t f = 0; f < width; ++f) gradients[f] += gradient_of<T>(call, row, cell, cell * width + f);
  });
}

}  // namespace

void reduce_into_voxels_backward(const VoxelGradient& call, Device device, CudaStream stream) {
  if (call.cells == 0 || call.features.count == 0 || row_count(call.clouds) == 0) return;
  if (device.is_cuda()) {
    using Launch = int(const VoxelGradient*, int32_t device, void* stream);
    static Launch* const launch = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_reduce_into_voxels_backward"));
    check_cuda(launch(&call, device.index, stream.handle), "voxelize_backward");
    return;
  }
  with_feature_type(call.features.dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (!std::is_integral_v<T>) {
      call.clouds.dtype == DType::kFloat32 ? backward<T, float>(call) : backward<T, double>(call);
    }
  });
}

}  // namespace robocache
