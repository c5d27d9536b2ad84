#include <cuda_runtime.h>

#include <algorithm>

#include "robocache/core/launch_cuda.cuh"
#include "robocache/ops/integrate_tsdf/tsdf_math.hpp"
#include "robocache/ops/integrate_tsdf/tsdf_params.hpp"

namespace robocache {
namespace {

constexpr unsigned kThreads = 128;

struct SensorBatch {
  TsdfSensor sensors[kSensorsInParams];
};

struct TsdfCall {
  TsdfParams params;
  const TsdfSensor* many;  // null: they are in `few`
  SensorBatch few;
};
static_assert(sizeof(TsdfCall) <= 4096);

__device__ const TsdfSensor* sensors_of(const TsdfCall& call) { return call.many ? call.many : call.few.sensors; }

__device__ int64_t my_place() { return blockIdx.x * int64_t{kThreads} + threadIdx.x; }
__device__ int64_t all_places() { return gridDim.x * int64_t{kThreads}; }

__device__ int64_t cell_count(const TsdfParams& p) { return p.grid.shape[0] * p.grid.shape[1] * p.grid.shape[2]; }

template <class Visit>
__device__ void along_my_rays(const TsdfCall& call, const Visit& visit) {
  const TsdfParams& p = call.params;
  for (int64_t ray = my_place(); ray < p.sensors * p.rows; ray += all_places()) {
    const int64_t sensor = p.sensors == 1 ? 0 : ray / p.rows;
    for_each_measured(p, sensors_of(call), sensor, ray - sensor * p.rows, visit);
  }
}

__global__ void store_sensors(const __grid_constant__ SensorBatch batch, TsdfSensor* to, int64_t count) {
  wait_for_work_before();
  if (threadIdx.x < count) to[threadIdx.x] = batch.sensors[threadIdx.x];
}

__global__ void clear_on_rays(const __grid_constant__ TsdfCall call) {
  wait_for_work_before();
  along_my_rays(call,
                [&](const int64_t cell[3], double) { call.params.sums[cell_index(call.params, cell)] = TsdfSum{}; });
}

__global__ void clear_everywhere(const __grid_constant__ TsdfCall call) {
  wait_for_work_before();
  for (int64_t i = my_place(); i < cell_count(call.params); i += all_places()) {
    call.params.sums[i] = TsdfSum{};
  }
}

__global__ void add_rays(const __grid_constant__ TsdfCall call) {
  wait_for_work_before();
  const TsdfParams& p = call.params;
  const int64_t free_space = in_quanta(p, p.truncation);
  along_my_rays(call, [&](const int64_t cell[3], double sdf) {
    TsdfSum& sum = p.sums[cell_index(p, cell)];
    const int64_t quanta = in_quanta(p, sdf) - free_space;
    if (quanta != 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(&sum.quanta), static_cast<unsigned long long>(quanta));
    }
    atomicAdd(&sum.count, 1);
  });
}

__global__ void update_on_rays(const __grid_constant__ TsdfCall call) {
  wait_for_work_before();
  const TsdfParams& p = call.params;
  along_my_rays(call, [&](const int64_t cell[3], double) {
    TsdfSum& sum = p.sums[cell_index(p, cell)];
    // Past the first-level cache, where another ray's exchange would not show.
    if (__ldcg(&sum.count) == 0) return;
    const int32_t rays = atomicExch(&sum.count, 0);  // the first to come updates the voxel
    if (rays > 0) update_voxel(p, cell[0], cell[1], cell[2], {sum.quanta, rays});
  });
}

__global__ void update_everywhere(const __grid_constant__ TsdfCall call) {
  wait_for_work_before();
  const TsdfParams& p = call.params;
  for (int64_t i = my_place(); i < cell_count(p); i += all_places()) {
    const TsdfSum sum = p.sums[i];
    if (sum.count > 0) update_cell(p, i, sum);
  }
}

// All images on one voxel.
__device__ void integrate_voxel(const TsdfCall& call, int64_t x, int64_t y, int64_t z) {
  const TsdfParams& p = call.params;
  const double v[3] = {voxel_centre(p.grid, 0, x), voxel_centre(p.grid, 1, y), voxel_centre(p.grid, 2, z)};
  TsdfSum sum{};
  for (int64_t i = 0; i < p.sensors; ++i) {
    const TsdfSensor& s = sensors_of(call)[i];
    const Projected c = project(s, v[0] - s.origin[0], v[1] - s.origin[1], v[2] - s.origin[2]);
    double sdf = 0;
    if (is_on_image(p, c) && depth_distance(p, i, c, sdf)) add_measurement(p, sdf, sum);
  }
  if (sum.count > 0) update_voxel(p, x, y, z, sum);
}

constexpr unsigned kAlongZ = 32;

__global__ void integrate_images(const __grid_constant__ TsdfCall call) {
  wait_for_work_before();
  const TsdfParams& p = call.params;
  const int64_t z = blockIdx.x * int64_t{kAlongZ} + threadIdx.x % kAlongZ;
  if (z >= p.grid.shape[2]) return;
  for (int64_t x = blockIdx.z; x < p.grid.shape[0]; x += gridDim.z) {
    for (int64_t y = blockIdx.y * int64_t{kThreads / kAlongZ} + threadIdx.x / kAlongZ; y < p.grid.shape[1];
         y += gridDim.y * int64_t{kThreads / kAlongZ}) {
      integrate_voxel(call, x, y, z);
    }
  }
}

// With the sensors in place.
cudaError_t launch_call(const TsdfCall& call, cudaStream_t stream) {
  const TsdfParams& p = call.params;
  const int64_t* shape = p.grid.shape;
  if (p.is_depth) {
    constexpr int64_t kMostZ = int64_t{1} << 30;
    const dim3 blocks(blocks_for(shape[2], kAlongZ, kMostZ), blocks_for(shape[1], kThreads / kAlongZ, 65535),
                      blocks_for(shape[0], 1, 65535));
    return launch_overlapped(integrate_images, blocks, kThreads, 0, stream, call);
  }
  constexpr int64_t kMostBlocks = int64_t{1} << 20;
  const dim3 of_rays(blocks_for(p.sensors * p.rows, kThreads, kMostBlocks));
  const dim3 of_cells(blocks_for(shape[0] * shape[1] * shape[2], kThreads, kMostBlocks));
  cudaError_t code = p.clear_everywhere ? launch_overlapped(clear_everywhere, of_cells, kThreads, 0, stream, call)
                                        : launch_overlapped(clear_on_rays, of_rays, kThreads, 0, stream, call);
  if (code == cudaSuccess) code = launch_overlapped(add_rays, of_rays, kThreads, 0, stream, call);
  if (code != cudaSuccess) return code;
  return p.clear_everywhere ? launch_overlapped(update_everywhere, of_cells, kThreads, 0, stream, call)
                            : launch_overlapped(update_on_rays, of_rays, kThreads, 0, stream, call);
}

}  // namespace
}  // namespace robocache

extern "C" __attribute__((visibility("default"))) int robocache_cuda_integrate_tsdf(
    const robocache::TsdfParams* params, const robocache::TsdfSensor* sensors, void* sensor_memory, int32_t device,
    void* stream_handle) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  TsdfCall call{};
  call.params = *params;
  if (params->sensors <= kSensorsInParams) {
    std::copy_n(sensors, params->sensors, call.few.sensors);
    return launch_call(call, stream);
  }
  auto* const many = static_cast<TsdfSensor*>(sensor_memory);
  call.many = many;
  for (int64_t first = 0; first < params->sensors; first += kSensorsInParams) {
    SensorBatch batch{};
    const int64_t count = std::min(kSensorsInParams, params->sensors - first);
    std::copy_n(sensors + first, count, batch.sensors);
    const cudaError_t code =
        launch_overlapped(store_sensors, dim3(1), unsigned{kSensorsInParams}, 0, stream, batch, many + first, count);
    if (code != cudaSuccess) return code;
  }
  return launch_call(call, stream);
}
