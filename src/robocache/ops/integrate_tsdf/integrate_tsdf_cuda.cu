#include <cuda_runtime.h>

#include <algorithm>

#include "robocache/core/launch_cuda.cuh"
#include "robocache/ops/integrate_tsdf/tsdf_glance.hpp"
#include "robocache/ops/integrate_tsdf/tsdf_math.hpp"
#include "robocache/ops/integrate_tsdf/tsdf_params.hpp"
#include "robocache/ops/integrate_tsdf/tsdf_sensor.hpp"

namespace robocache {
namespace {

constexpr unsigned kThreads = 128;

// Of tiles for depth images; see below.
constexpr int kEach = 4;                            // voxels of a thread, along z: 16 bytes of the grid
constexpr int kTileX = 1, kTileY = 4, kTileZ = 32;  // of a warp
constexpr int kInTile = 32 * kEach;
static_assert(kTileX * kTileY * kTileZ == kInTile);

struct SensorBatch {
  TsdfSensor sensors[kSensorsInParams];
  TsdfView views[kSensorsInParams];  // of depth images
};

// What free space leaves of a voxel that nothing was known of.
struct TsdfFree {
  float distance, most_weight;
};

struct TsdfCall {
  TsdfParams params;
  TsdfFree free;
  int tiles;               // of a warp, one after the other along z
  bool quads;              // 16 bytes of grid and weights at a time
  const TsdfSensor* many;  // null: they are in `few`
  const TsdfView* many_views;
  SensorBatch few;
};
static_assert(sizeof(TsdfCall) <= 4096);

__device__ const TsdfSensor* sensors_of(const TsdfCall& call) { return call.many ? call.many : call.few.sensors; }
__device__ const TsdfView* views_of(const TsdfCall& call) { return call.many ? call.many_views : call.few.views; }

// Of the whole grid.
__host__ __device__ TsdfView view_of(const TsdfParams& p, const TsdfSensor& sensor) {
  const int64_t first[3] = {0, 0, 0};
  const int tile[3] = {kTileX, kTileY, kTileZ};
  const TsdfGlance glance = glance_at(p, sensor, first, p.grid.shape);
  return {glance, frustum_of(p, glance, tile)};
}

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

// With what of them lies here; `first` is the place of the batch.
__global__ void store_sensors(const __grid_constant__ SensorBatch batch, const TsdfNumbers poses,
                              const TsdfNumbers cameras, const TsdfParams p, TsdfSensor* sensors, TsdfView* views,
                              int64_t first) {
  wait_for_work_before();
  const int64_t place = first + threadIdx.x;
  if (place >= p.sensors) return;
  TsdfSensor sensor = batch.sensors[threadIdx.x];
  const bool good = (poses.data == nullptr || read_pose(poses, place, sensor).fault == SensorFault::kNone) &&
                    (cameras.data == nullptr || read_camera(cameras, place, sensor).fault == SensorFault::kNone);
  for (double& r : sensor.rotation) r = good ? r : NAN;  // such a sensor measures nothing
  sensors[place] = sensor;
  if (p.is_depth) views[place] = view_of(p, sensor);
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
  along_my_rays(call, [&](const int64_t cell[3], double sdf) {
    TsdfSum& sum = p.sums[cell_index(p, cell)];
    const int64_t quanta = in_quanta(p, sdf) - p.free_quanta;
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

// ---- Depth images ----
//
// A warp takes a tile of voxels. float32 says of most of them what an image measured (tsdf_glance.hpp); those that it is not
// sure of are few, and lie together in few tiles: they are gathered and shared out among the warp.

constexpr int kWarps = kThreads / 32;
constexpr int kTiles = 4;                        // of a warp at most
static_assert(kTiles * kSensorsInParams == 32);  // a lane each looks which of them are in view

// What rule 32 itself found of the voxels of a tile.
struct TileMemory {
  int64_t quanta[kInTile];  // of TsdfSum
  int32_t counts[kInTile];
  uint8_t doubtful[kInTile];  // which voxels
};

struct Place {
  int x, y, z;
};

// Voxel `i` of a lane.
__device__ Place voxel_of(const Place& tile, unsigned lane, unsigned i) {
  constexpr unsigned kQuads = kTileZ / kEach;
  return {tile.x, tile.y + static_cast<int>(lane / kQuads), tile.z + static_cast<int>(lane % kQuads * kEach + i)};
}

__device__ Projected project(const TsdfParams& p, const TsdfSensor& s, const Place& voxel) {
  return project(s, voxel_centre(p.grid, 0, voxel.x) - s.origin[0], voxel_centre(p.grid, 1, voxel.y) - s.origin[1],
                 voxel_centre(p.grid, 2, voxel.z) - s.origin[2]);
}

// What float64 needs would not leave registers enough for all that float32 decides: its work is apart, in calls.

// Of the pixel that a voxel falls on, as the image holds it: 0 for none.
template <class Depth>
__device__ __noinline__ float exact_depth(const TsdfParams& p, const TsdfSensor& exact, const Depth* image, int x,
                                          int y, int z) {
  const Projected there = project(p, exact, {x, y, z});
  if (!is_on_image(p, there)) return 0;
  return static_cast<float>(
      image[static_cast<int64_t>(there.row) * p.row_stride + static_cast<int64_t>(there.column) * p.column_stride]);
}

// Adds what rule 32 says of a voxel of a tile.
__device__ __noinline__ void add_exactly(const TsdfParams& p, const TsdfSensor& exact, int64_t sensor, int x, int y,
                                         int z, int64_t& quanta, int32_t& count) {
  const Projected there = project(p, exact, {x, y, z});
  const double sdf = depth_distance(p, there, depth_behind(p, sensor, there));
  if (!(sdf == sdf)) return;
  quanta += in_quanta(p, sdf) - p.free_quanta;
  ++count;
}

__device__ __noinline__ float2 update_exactly(const TsdfParams& p, float distance, float weight, int64_t quanta,
                                              int32_t count) {
  update_voxel(p, distance, weight, {quanta, count});
  return {distance, weight};
}

// One instruction, which a compiler that knows all terms of the sum does not find.
template <class Depth>
__device__ const Depth* pixel_at(const Depth* image, int32_t place) {
  size_t at;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(at) : "r"(place), "n"(sizeof(Depth)), "l"(__cvta_generic_to_global(image)));
  return static_cast<const Depth*>(__cvta_global_to_generic(at));
}

// What an image measured of a tile, `height` voxels of this lane's inside the grid: free space to `counts`, the rest to
// `memory`, which is `clean` before it is written. All lanes.
template <class Depth>
__device__ void add_image(const TsdfCall& call, int64_t sensor, const Place& tile, int height, TileMemory& memory,
                          bool& clean, int32_t* counts) {
  const TsdfParams& p = call.params;
  const TsdfSensor& exact = sensors_of(call)[sensor];
  const TsdfGlance glance = views_of(call)[sensor].glance;
  const unsigned lane = threadIdx.x % 32;
  const Place own = voxel_of(tile, lane, 0);
  float c[3];
  for (int k = 0; k < 3; ++k) {
    c[k] = std::fma(static_cast<float>(own.x), glance.step[0][k],
                    std::fma(static_cast<float>(own.y), glance.step[1][k],
                             std::fma(static_cast<float>(own.z), glance.step[2][k], glance.at[k])));
  }
  const Depth* const image = static_cast<const Depth*>(p.measured) + sensor * p.sensor_stride;
  const auto columns = static_cast<unsigned>(p.columns);
  const auto rows = static_cast<unsigned>(p.rows);
  const auto column_stride = static_cast<int>(p.column_stride);
  const auto row_stride = static_cast<int>(p.row_stride);
  unsigned between = 0;  // pixels, as far as float32 knows
  float z[kEach];
  float depth[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const auto up = static_cast<float>(i);
    z[i] = std::fma(up, glance.step[2][2], c[2]);
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(z[i]));
    const Glimpse seen =
        glimpse(glance, std::fma(up, glance.step[2][0], c[0]), std::fma(up, glance.step[2][1], c[1]), z[i], inverse);
    const bool on =
        (seen.sure != 0) & (static_cast<unsigned>(seen.column) < columns) & (static_cast<unsigned>(seen.row) < rows);
    if ((seen.sure == 0) & !(z[i] < -glance.error)) between |= 1u << i;
    depth[i] = 0;
    if (on) depth[i] = static_cast<float>(*pixel_at(image, seen.row * row_stride + seen.column * column_stride));
  }
  const unsigned here = height >= kEach ? (1u << kEach) - 1 : height > 0 ? (1u << height) - 1 : 0;
  between &= here;
  for (; between != 0; between &= between - 1) {
    const unsigned which = __ffs(between) - 1;
    const float found = exact_depth(p, exact, image, own.x, own.y, own.z + static_cast<int>(which));
#pragma unroll
    for (unsigned i = 0; i < kEach; ++i) depth[i] = i == which ? found : depth[i];
  }
  unsigned in_doubt = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const Verdict says = verdict(glance, p.space_carving, z[i], depth[i]);
    if (says.free != 0) ++counts[i];
    if (says.doubtful != 0) in_doubt |= 1u << i;
  }
  in_doubt &= here;
  if (!__any_sync(~0u, in_doubt != 0)) return;

  unsigned count = 0;
#pragma unroll
  for (unsigned i = 0; i < kEach; ++i) {
    if (clean) {
      memory.quanta[i * 32 + lane] = 0;
      memory.counts[i * 32 + lane] = 0;
    }
    const unsigned lanes = __ballot_sync(~0u, in_doubt >> i & 1);
    const unsigned before = __popc(lanes & ((1u << lane) - 1));
    if (in_doubt >> i & 1) memory.doubtful[count + before] = static_cast<uint8_t>(lane * kEach + i);
    count += __popc(lanes);
  }
  clean = false;
  __syncwarp();
  for (unsigned k = lane; k < count; k += 32) {
    const unsigned voxel = memory.doubtful[k];
    const Place there = voxel_of(tile, voxel / kEach, voxel % kEach);
    add_exactly(p, exact, sensor, there.x, there.y, there.z, memory.quanta[voxel], memory.counts[voxel]);
  }
  __syncwarp();
}

// What free space alone leaves of a quad, without float64; false where that cannot say it of all. A voxel that it has left
// before at `free`, the truncation in float32, stays there: the mean of that and of the truncation, less than half a unit in
// the last place beside it, is nearer to it than half of one, for weights and counts within these bounds, whose sum is a
// double.
__device__ bool is_free_again(const TsdfFree& free, const int32_t* counts, float* distance, float* weight,
                              bool& moved) {
  constexpr float kLeast = 0x1p-6f, kMost = 0x1p24f;
  constexpr int32_t kMostCount = 1 << 12;
  bool sure = (counts[0] | counts[1] | counts[2] | counts[3]) < kMostCount;
  float left[kEach];
  moved = false;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const bool seen = counts[i] > 0;
    const bool known = weight[i] > 0;
    const bool there = __float_as_int(distance[i]) == __float_as_int(free.distance);
    sure &= !seen | (!known & (counts[i] == 1)) | (there & (weight[i] >= kLeast) & (weight[i] <= kMost));
    moved |= seen & !there;
    const float more = (known ? weight[i] : 0) + static_cast<float>(counts[i]);
    left[i] = seen ? fminf(more, free.most_weight) : weight[i];
  }
  if (!sure) return false;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    distance[i] = counts[i] > 0 ? free.distance : distance[i];
    weight[i] = left[i];
  }
  return true;
}

// The quad of voxels that begins at `first`, of which `height` are in the grid, by the counts of its measurements and
// their sums; null: all 0.
__device__ void update_quad(const TsdfCall& call, const Place& first, int height, const int32_t* counts,
                            const int64_t* quanta) {
  const TsdfParams& p = call.params;
  const auto [x, y, z] = first;
  float* const distances =
      p.distances + x * p.distance_strides[0] + y * p.distance_strides[1] + z * p.distance_strides[2];
  float* const weights = p.weights + x * p.weight_strides[0] + y * p.weight_strides[1] + z * p.weight_strides[2];
  const bool whole = call.quads && height >= kEach;
  float distance[kEach] = {};
  float weight[kEach] = {};
  if (whole) {
    const float4 d = *reinterpret_cast<const float4*>(distances);
    const float4 w = *reinterpret_cast<const float4*>(weights);
    distance[0] = d.x, distance[1] = d.y, distance[2] = d.z, distance[3] = d.w;
    weight[0] = w.x, weight[1] = w.y, weight[2] = w.z, weight[3] = w.w;
  } else {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (counts[i] == 0) continue;
      distance[i] = distances[i * p.distance_strides[2]];
      weight[i] = weights[i * p.weight_strides[2]];
    }
  }
  const bool free = quanta == nullptr || (quanta[0] | quanta[1] | quanta[2] | quanta[3]) == 0;
  bool moved = true;
  if (!free || !is_free_again(call.free, counts, distance, weight, moved)) {
    moved = true;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (counts[i] == 0) continue;
      const float2 updated = update_exactly(p, distance[i], weight[i], quanta ? quanta[i] : 0, counts[i]);
      distance[i] = updated.x;
      weight[i] = updated.y;
    }
  }
  if (whole) {
    if (moved) *reinterpret_cast<float4*>(distances) = {distance[0], distance[1], distance[2], distance[3]};
    *reinterpret_cast<float4*>(weights) = {weight[0], weight[1], weight[2], weight[3]};
    return;
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (counts[i] == 0) continue;
    if (moved) distances[i * p.distance_strides[2]] = distance[i];
    weights[i * p.weight_strides[2]] = weight[i];
  }
}

// The tiles of a warp, from this one on along z. All its lanes.
template <class Depth>
__device__ void integrate_tiles(const TsdfCall& call, Place tile, TileMemory& memory) {
  const TsdfParams& p = call.params;
  const unsigned lane = threadIdx.x % 32;
  const auto top = static_cast<int>(p.grid.shape[2]);
  unsigned in_view = 0;  // a bit for each tile and eight sensors
  for (int i = 0; i < call.tiles && tile.z < top; ++i, tile.z += kTileZ) {
    const Place own = voxel_of(tile, lane, 0);
    const int height = own.y < p.grid.shape[1] ? top - own.z : 0;
    int32_t counts[kEach] = {};
    bool clean = true;
    for (int64_t from = 0; from < p.sensors; from += kSensorsInParams) {
      if (i == 0 || p.sensors > kSensorsInParams) {
        const int64_t sensor = from + lane % kSensorsInParams;
        const int ahead = static_cast<int>(lane / kSensorsInParams) - i;
        const bool seen =
            sensor < p.sensors && may_see(views_of(call)[sensor].frustum, static_cast<float>(tile.x),
                                          static_cast<float>(tile.y), static_cast<float>(tile.z + ahead * kTileZ));
        in_view = __ballot_sync(~0u, seen);
      }
      for (unsigned some = in_view >> (i * kSensorsInParams) & 0xffu; some != 0; some &= some - 1) {
        add_image<Depth>(call, from + __ffs(some) - 1, tile, height, memory, clean, counts);
      }
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (!clean) counts[j] += memory.counts[lane * kEach + j];
      if (j >= height) counts[j] = 0;
    }
    if ((counts[0] | counts[1] | counts[2] | counts[3]) != 0) {
      update_quad(call, own, height, counts, clean ? nullptr : memory.quanta + lane * kEach);
    }
    __syncwarp();  // the next tile has this memory, too
  }
}

template <class Depth>
__global__ void __launch_bounds__(kThreads, 6) integrate_images(const __grid_constant__ TsdfCall call) {
  __shared__ TileMemory memory[kWarps];
  wait_for_work_before();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t* shape = call.params.grid.shape;
  const int z = static_cast<int>(blockIdx.x) * kTileZ * call.tiles;
  for (int64_t x = blockIdx.z * int64_t{kWarps} + warp; x < shape[0]; x += gridDim.z * int64_t{kWarps}) {
    for (int64_t y = blockIdx.y * int64_t{kTileY}; y < shape[1]; y += gridDim.y * int64_t{kTileY}) {
      integrate_tiles<Depth>(call, {static_cast<int>(x), static_cast<int>(y), z}, memory[warp]);
    }
  }
}

// Whether voxels beside one another along z lie so in memory, each quad of them aligned.
bool lies_in_quads(const float* data, const int64_t strides[3]) {
  return strides[2] == 1 && strides[0] % kEach == 0 && strides[1] % kEach == 0 &&
         reinterpret_cast<uintptr_t>(data) % sizeof(float4) == 0;
}

// With the sensors in place.
cudaError_t launch_call(const TsdfCall& call, cudaStream_t stream) {
  const TsdfParams& p = call.params;
  const int64_t* shape = p.grid.shape;
  if (p.is_depth) {
    const dim3 blocks(blocks_for(shape[2], int64_t{kTileZ} * call.tiles), blocks_for(shape[1], kTileY, 65535),
                      blocks_for(shape[0], kWarps, 65535));
    return launch_overlapped(p.dtype == DType::kFloat32 ? integrate_images<float> : integrate_images<uint16_t>, blocks,
                             kThreads, 0, stream, call);
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
    const robocache::TsdfParams* params, const robocache::TsdfSensor* sensors, const robocache::TsdfNumbers* poses,
    const robocache::TsdfNumbers* cameras, void* sensor_memory, int32_t device, void* stream_handle) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  const TsdfParams& p = *params;
  TsdfCall call{};
  call.params = p;
  // A warp for each tile where that does not fill the device.
  const int64_t tiles =
      blocks_for(p.grid.shape[2], kTileZ) * int64_t{blocks_for(p.grid.shape[1], kTileY)} * p.grid.shape[0];
  call.tiles = tiles < int64_t{64} * kTiles * multiprocessors(device) ? 1 : kTiles;
  float nothing = 0;
  update_voxel(p, call.free.distance, nothing, {0, 1});
  call.free.most_weight = static_cast<float>(p.max_weight);
  call.quads = lies_in_quads(p.distances, p.distance_strides) && lies_in_quads(p.weights, p.weight_strides);
  if (poses == nullptr && cameras == nullptr && p.sensors <= kSensorsInParams) {
    for (int64_t i = 0; i < p.sensors; ++i) {
      call.few.sensors[i] = sensors[i];
      if (p.is_depth) call.few.views[i] = view_of(p, sensors[i]);
    }
    return launch_call(call, stream);
  }
  auto* const many = static_cast<TsdfSensor*>(sensor_memory);
  auto* const views = reinterpret_cast<TsdfView*>(many + p.sensors);
  call.many = many;
  call.many_views = views;
  for (int64_t first = 0; first < p.sensors; first += kSensorsInParams) {
    SensorBatch batch{};
    std::copy_n(sensors + first, std::min(kSensorsInParams, p.sensors - first), batch.sensors);
    const cudaError_t code =
        launch_overlapped(store_sensors, dim3(1), unsigned{kSensorsInParams}, 0, stream, batch,
                          poses ? *poses : TsdfNumbers{}, cameras ? *cameras : TsdfNumbers{}, p, many, views, first);
    if (code != cudaSuccess) return code;
  }
  return launch_call(call, stream);
}
