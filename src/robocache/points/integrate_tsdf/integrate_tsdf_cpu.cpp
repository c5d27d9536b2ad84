#include <algorithm>
#include <atomic>

#include "robocache/core/cpu_isa.hpp"
#include "robocache/core/thread_pool.hpp"
#include "robocache/points/integrate_tsdf/tsdf_cpu.hpp"
#include "robocache/points/integrate_tsdf/tsdf_math.hpp"
#include "robocache/points/integrate_tsdf/tsdf_params.hpp"

namespace robocache {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr int64_t kVoxelsAtOnce = 16384;  // voxels that a thread takes at a time

int64_t voxel_count(const TsdfParams& p) { return p.grid.shape[0] * p.grid.shape[1] * p.grid.shape[2]; }

template <class Visit>
void along_all_rays(const TsdfParams& p, const TsdfSensor* sensors, const Visit& visit) {
  constexpr int64_t kRaysAtOnce = 256;
  parallel_for(p.sensors * p.rows, kRaysAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t ray = begin; ray < end; ++ray) {
      const int64_t sensor = ray / p.rows;
      for_each_measured(p, sensors, sensor, ray - sensor * p.rows, visit);
    }
  });
}

void clear(const TsdfParams& p, const TsdfSensor* sensors) {
  if (!p.clear_everywhere) {
    along_all_rays(p, sensors, [&](const int64_t cell[3], double) {
      TsdfSum& sum = p.sums[cell_index(p, cell)];
      std::atomic_ref(sum.quanta).store(0, kRelaxed);
      std::atomic_ref(sum.count).store(0, kRelaxed);
    });
    return;
  }
  parallel_for(voxel_count(p), kVoxelsAtOnce,
               [&](int64_t begin, int64_t end) { std::fill(p.sums + begin, p.sums + end, TsdfSum{}); });
}

void add(const TsdfParams& p, const TsdfSensor* sensors) {
  along_all_rays(p, sensors, [&](const int64_t cell[3], double sdf) {
    TsdfSum& sum = p.sums[cell_index(p, cell)];
    // Free space measures the truncation, so it adds 0, without an atomic addition.
    const int64_t quanta = in_quanta(p, sdf) - p.free_quanta;
    if (quanta != 0) std::atomic_ref(sum.quanta).fetch_add(quanta, kRelaxed);
    std::atomic_ref(sum.count).fetch_add(1, kRelaxed);
  });
}

void update(const TsdfParams& p, const TsdfSensor* sensors) {
  if (!p.clear_everywhere) {
    along_all_rays(p, sensors, [&](const int64_t cell[3], double) {
      TsdfSum& sum = p.sums[cell_index(p, cell)];
      const std::atomic_ref count(sum.count);
      if (count.load(kRelaxed) == 0) return;
      const int32_t rays = count.exchange(0, kRelaxed);  // only the first ray to arrive here updates the voxel
      if (rays > 0) update_voxel(p, cell[0], cell[1], cell[2], {sum.quanta, rays});
    });
    return;
  }
  parallel_for(voxel_count(p), kVoxelsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (p.sums[i].count > 0) update_voxel_at(p, i, p.sums[i]);
    }
  });
}

void integrate_depth(const TsdfParams& p, const TsdfSensor* sensors) {
  DepthRows* const integrate_rows = ROBOCACHE_SELECT_ISA(integrate_rows);
  const int64_t rows = std::max<int64_t>(1, kVoxelsAtOnce / p.grid.shape[2]);
  parallel_for(p.grid.shape[0] * p.grid.shape[1], rows,
               [&](int64_t begin, int64_t end) { integrate_rows(p, sensors, begin, end); });
}

}  // namespace

void integrate_tsdf_cpu(const TsdfParams& p, const TsdfSensor* sensors) {
  if (p.is_depth) {
    integrate_depth(p, sensors);
  } else {
    clear(p, sensors);
    add(p, sensors);
    update(p, sensors);
  }
}

}  // namespace robocache
