#include <cuda_runtime.h>

#include <algorithm>

#include "robocache/core/launch_cuda.cuh"
#include "robocache/points/integrate_tsdf/tsdf_bounds.hpp"
#include "robocache/points/integrate_tsdf/tsdf_math.hpp"
#include "robocache/points/integrate_tsdf/tsdf_params.hpp"
#include "robocache/points/integrate_tsdf/tsdf_sensor.hpp"

namespace robocache {
namespace {

constexpr unsigned kThreads = 128;

// The sizes of tiles for depth images; see "Depth images" below.
constexpr int kPerThread = 4;                      // voxels per thread, along z: 16 bytes of the grid
constexpr int kTileX = 4, kTileY = 4, kTileZ = 8;  // per warp
static_assert(kTileX * kTileY * kTileZ == 32 * kPerThread);

struct SensorBatch {
  TsdfSensor sensors[kSensorsInParams];
  TsdfView views[kSensorsInParams];  // for depth images
};

// The result for a voxel that only free space updates.
struct TsdfFree {
  float distance, most_weight;
};

struct TsdfCall {
  TsdfParams params;
  TsdfFree free;
  int tiles_log2;                    // tiles per warp, one after the other along z
  bool uses_quads;                   // 16 bytes of grid and weights at a time
  int most_ahead;                    // unaligned quads begin up to this many voxels before their tile
  const TsdfSensor* stored_sensors;  // null: the sensors are in `params_batch`
  const TsdfView* stored_views;
  SensorBatch params_batch;
};
static_assert(sizeof(TsdfCall) <= 4096);

__device__ const TsdfSensor* sensors_of(const TsdfCall& call) {
  return call.stored_sensors ? call.stored_sensors : call.params_batch.sensors;
}

// With kOne there is one sensor. It lies in the parameters, where instructions read it directly.
template <bool kOne>
__device__ const TsdfSensor& sensor_of(const TsdfCall& call, int64_t sensor) {
  return kOne ? call.params_batch.sensors[0] : sensors_of(call)[sensor];
}

template <bool kOne>
__device__ const TsdfView& view_of(const TsdfCall& call, int64_t sensor) {
  return kOne                  ? call.params_batch.views[0]
         : call.stored_sensors ? call.stored_views[sensor]
                               : call.params_batch.views[sensor];
}

// Returns the bounds of the whole grid and of the tiles. A tile includes the voxels before it where quads begin.
__host__ __device__ TsdfView view_of(const TsdfParams& p, const TsdfSensor& sensor, int most_ahead) {
  const int64_t first[3] = {0, 0, -most_ahead};
  const int64_t extent[3] = {p.grid.shape[0], p.grid.shape[1], p.grid.shape[2] + most_ahead};
  const int tile[3] = {kTileX, kTileY, kTileZ + most_ahead};
  return view_of(bounds_of(p, sensor, first, extent), tile);
}

__device__ int64_t first_index() { return blockIdx.x * int64_t{kThreads} + threadIdx.x; }
__device__ int64_t index_step() { return gridDim.x * int64_t{kThreads}; }

__device__ int64_t cell_count(const TsdfParams& p) { return p.grid.shape[0] * p.grid.shape[1] * p.grid.shape[2]; }

template <class Visit>
__device__ void along_my_rays(const TsdfCall& call, const Visit& visit) {
  const TsdfParams& p = call.params;
  for (int64_t ray = first_index(); ray < p.sensors * p.rows; ray += index_step()) {
    const int64_t sensor = p.sensors == 1 ? 0 : ray / p.rows;
    for_each_measured(p, sensors_of(call), sensor, ray - sensor * p.rows, visit);
  }
}

// Stores the sensors, and fills in the numbers that are on the device. `first` is the index of the batch's first
// sensor.
__global__ void store_sensors(const __grid_constant__ SensorBatch batch, const TsdfNumbers poses,
                              const TsdfNumbers cameras, const TsdfParams p, int most_ahead, TsdfSensor* sensors,
                              TsdfView* views, int64_t first) {
  wait_for_work_before();
  const int64_t index = first + threadIdx.x;
  if (index >= p.sensors) return;
  TsdfSensor sensor = batch.sensors[threadIdx.x];
  const bool is_usable = (poses.data == nullptr || read_pose(poses, index, sensor).fault == SensorFault::kNone) &&
                         (cameras.data == nullptr || read_camera(cameras, index, sensor).fault == SensorFault::kNone);
  for (double& r : sensor.rotation) r = is_usable ? r : NAN;  // such a sensor measures nothing
  sensors[index] = sensor;
  if (p.is_depth) views[index] = view_of(p, sensor, most_ahead);
}

__global__ void clear_on_rays(const __grid_constant__ TsdfCall call) {
  wait_for_work_before();
  along_my_rays(call,
                [&](const int64_t cell[3], double) { call.params.sums[cell_index(call.params, cell)] = TsdfSum{}; });
}

__global__ void clear_everywhere(const __grid_constant__ TsdfCall call) {
  wait_for_work_before();
  for (int64_t i = first_index(); i < cell_count(call.params); i += index_step()) {
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
    // Reads past the first-level cache, which may miss another ray's exchange.
    if (__ldcg(&sum.count) == 0) return;
    const int32_t rays = atomicExch(&sum.count, 0);  // only the first ray to arrive here updates the voxel
    if (rays > 0) update_voxel(p, cell[0], cell[1], cell[2], {sum.quanta, rays});
  });
}

__global__ void update_everywhere(const __grid_constant__ TsdfCall call) {
  wait_for_work_before();
  const TsdfParams& p = call.params;
  for (int64_t i = first_index(); i < cell_count(p); i += index_step()) {
    const TsdfSum sum = p.sums[i];
    if (sum.count > 0) update_voxel_at(p, i, sum);
  }
}

// ---- Depth images ----
//
// A warp handles a tile of voxels, unless the ranges of the image's cells show that the image measured none of them.
// For most voxels float32 decides what an image measured, and for most others float64 without divisions
// (tsdf_bounds.hpp); a thread tests all its voxels together. Few voxels need rule 32 itself.

constexpr int kWarps = kThreads / 32;

// Finds the ranges of the cells of all images, one block of cells at a time.
constexpr unsigned kRangeThreads = 512;

template <class Depth>
__global__ void __launch_bounds__(kRangeThreads) find_ranges(const TsdfParams p) {
  constexpr int kEdge = kBlockCell >> kLeastCellLog2;  // in cells of the smallest size
  constexpr int kCellsPerWarp = kEdge * kEdge * 32 / kRangeThreads;
  constexpr int kCell = 1 << kLeastCellLog2;
  __shared__ TsdfRange least_cells[kEdge][kEdge];
  wait_for_work_before();
  const int64_t across = cell_blocks(p.columns);
  const int64_t down = cell_blocks(p.rows);
  const unsigned lane = threadIdx.x % 32;
  for (int64_t block = blockIdx.x; block < p.sensors * across * down; block += gridDim.x) {
    const int64_t sensor = block / (across * down);
    const int64_t block_row = (block - sensor * across * down) / across;
    const int64_t block_column = block % across;
    const Depth* const image = static_cast<const Depth*>(p.measured) + sensor * p.sensor_stride;
#pragma unroll
    for (int i = 0; i < kCellsPerWarp; ++i) {
      const int cell = static_cast<int>(threadIdx.x) / 32 * kCellsPerWarp + i;
      const int64_t column = block_column * kBlockCell + cell % kEdge * kCell + lane % kCell;
      const int64_t row = block_row * kBlockCell + cell / kEdge * kCell + lane / kCell;
      float depth[kCell * kCell / 32];
#pragma unroll
      for (int k = 0; k < kCell * kCell / 32; ++k) {
        const int64_t pixel_row = row + k * (32 / kCell);
        depth[k] = pixel_row < p.rows && column < p.columns
                       ? static_cast<float>(image[pixel_row * p.row_stride + column * p.column_stride])
                       : 0;
      }
      float least = INFINITY;
      float most = 0;
#pragma unroll
      for (const float pixel : depth) {
        const bool measured = pixel > 0 && pixel < INFINITY;
        least = measured ? fminf(least, pixel) : least;
        most = measured ? fmaxf(most, pixel) : most;
      }
      // Floats of 0 or more have the order of their bits.
      least = __uint_as_float(__reduce_min_sync(~0u, __float_as_uint(least)));
      most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));
      if (lane == 0) least_cells[cell / kEdge][cell % kEdge] = {least, most};
    }
    __syncthreads();
    if (threadIdx.x < kCellsInBlock) {
      // A block has 16 cells of the smallest size, then 4 of the next size, then one.
      const int index = static_cast<int>(threadIdx.x);
      const int size = index < 16 ? 0 : index < 20 ? 1 : 2;
      const int edge = kEdge >> size;
      const int row = (index < 16 ? index : index < 20 ? index - 16 : 0) / edge;
      const int column = (index < 16 ? index : index < 20 ? index - 16 : 0) % edge;
      TsdfRange range{INFINITY, 0};
      for (int i = 0; i < 1 << (2 * size); ++i) {
        const TsdfRange part = least_cells[(row << size) + (i >> size)][(column << size) + (i & ((1 << size) - 1))];
        range = {fminf(range.least, part.least), fmaxf(range.most, part.most)};
      }
      p.ranges[sensor * across * down * kCellsInBlock +
               range_index(across, down, size, block_row * edge + row, block_column * edge + column)] = range;
    }
    __syncthreads();
  }
}

struct Voxel {
  int x, y, z;
};

__device__ Projected seen_from(const TsdfParams& p, const TsdfSensor& s, const Voxel& voxel) {
  return seen_from(s, voxel_centre(p.grid, 0, voxel.x) - s.origin[0], voxel_centre(p.grid, 1, voxel.y) - s.origin[1],
                   voxel_centre(p.grid, 2, voxel.z) - s.origin[2]);
}

__device__ float guess_inverse(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ float guess_inverse_root(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Rule 32 itself needs many registers. Its functions are not inlined, so that the other code keeps its registers.

// Returns the depth of a voxel's pixel in the image's unit; 0 for none.
template <class Depth>
__device__ __noinline__ float exact_depth(const TsdfParams& p, const TsdfSensor& sensor, const Depth* image, int x,
                                          int y, int z) {
  Projected projected = seen_from(p, sensor, {x, y, z});
  if (!find_pixel_if_sure(sensor, projected, guess_inverse)) find_pixel(sensor, projected);
  if (!is_on_image(p, projected)) return 0;
  return static_cast<float>(image[static_cast<int64_t>(projected.row) * p.row_stride +
                                  static_cast<int64_t>(projected.column) * p.column_stride]);
}

constexpr int64_t kNone = INT64_MIN;

// Returns the quanta that a voxel with a known depth adds to TsdfSum; kNone for no measurement.
__device__ __noinline__ int64_t exact_quanta(const TsdfParams& p, const TsdfSensor& sensor, int x, int y, int z,
                                             float depth) {
  const double sdf = depth_distance(p, seen_from(p, sensor, {x, y, z}), depth_in_metres(p, depth));
  return sdf == sdf ? in_quanta(p, sdf) - p.free_quanta : kNone;
}

__device__ __noinline__ float2 update_exactly(const TsdfParams& p, float distance, float weight, int64_t quanta,
                                              int32_t count) {
  update_voxel(p, distance, weight, {quanta, count});
  return {distance, weight};
}

// Computes the address in one instruction. The compiler does not use that instruction when it knows all terms of the
// sum.
template <class Depth>
__device__ const Depth* pixel_at(const Depth* image, int32_t offset) {
  size_t address;
  asm("mad.wide.s32 %0, %1, %2, %3;"
      : "=l"(address)
      : "r"(offset), "n"(sizeof(Depth)), "l"(__cvta_generic_to_global(image)));
  return static_cast<const Depth*>(__cvta_global_to_generic(address));
}

// A lane's voxels of a tile, neighbours along z.
struct Quad {
  Voxel first;
  unsigned inside;  // bit i: voxel i lies inside the grid
  float* distances;
  float* weights;
};

__device__ Quad quad_of(const TsdfCall& call, const Voxel& tile, unsigned lane) {
  const TsdfParams& p = call.params;
  constexpr unsigned kQuads = kTileZ / kPerThread;
  // Unsigned, because the coordinates are never below 0 and the products are then cheaper.
  const unsigned x = static_cast<unsigned>(tile.x) + lane / kQuads / kTileY;
  const unsigned y = static_cast<unsigned>(tile.y) + lane / kQuads % kTileY;
  const unsigned z = static_cast<unsigned>(tile.z) + lane % kQuads * kPerThread;
  const auto offset = [&](const int64_t strides[3]) { return x * strides[0] + y * strides[1] + z * strides[2]; };
  Quad quad{{static_cast<int>(x), static_cast<int>(y), static_cast<int>(z)},
            0,
            p.distances + offset(p.distance_strides),
            p.weights + offset(p.weight_strides)};
  if (call.most_ahead > 0) {
    const auto ahead = static_cast<int>(reinterpret_cast<uintptr_t>(quad.distances) / sizeof(float) % kPerThread);
    quad.first.z -= ahead;
    quad.distances -= ahead;
    quad.weights -= ahead;
  }
  if (x < static_cast<unsigned>(p.grid.shape[0]) && y < static_cast<unsigned>(p.grid.shape[1])) {
    const int below = max(-quad.first.z, 0);
    const int end = min(max(static_cast<int>(p.grid.shape[2]) - quad.first.z, 0), kPerThread);
    quad.inside = (1u << end) - 1 & ~0u << below;
  }
  return quad;
}

__device__ void prefetch(const float* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

// Adds an image's measurements of a lane's voxels. With `free` the image measured only free space there.
template <class Depth, bool kOne>
__device__ void add_image(const TsdfCall& call, int64_t sensor, bool free, const Quad& quad, int32_t* counts,
                          int64_t* quanta) {
  const TsdfParams& p = call.params;
  const TsdfSensor& sensor_float64 = sensor_of<kOne>(call, sensor);
  const TsdfBounds& bounds = view_of<kOne>(call, sensor).bounds;
  Voxel voxel = quad.first;
  float c[3];
  for (int k = 0; k < 3; ++k) {
    c[k] = std::fma(static_cast<float>(voxel.x), bounds.step[0][k],
                    std::fma(static_cast<float>(voxel.y), bounds.step[1][k],
                             std::fma(static_cast<float>(voxel.z + call.most_ahead), bounds.step[2][k], bounds.at[k])));
  }
  const Depth* const image = static_cast<const Depth*>(p.measured) + sensor * p.sensor_stride;
  const auto columns = static_cast<unsigned>(p.columns);
  const auto rows = static_cast<unsigned>(p.rows);
  const auto column_stride = static_cast<int>(p.column_stride);
  const auto row_stride = static_cast<int>(p.row_stride);
  unsigned between = 0;  // bit i: float32 cannot tell the pixel of voxel i
  unsigned on_image = 0;
  float z[kPerThread];
  float depth[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const auto offset = static_cast<float>(i);
    z[i] = std::fma(offset, bounds.step[2][2], c[2]);
    const PixelGuess guess = guess_pixel(bounds, std::fma(offset, bounds.step[2][0], c[0]),
                                         std::fma(offset, bounds.step[2][1], c[1]), z[i], guess_inverse(z[i]));
    const bool is_on_image =
        (guess.sure != 0) & (static_cast<unsigned>(guess.column) < columns) & (static_cast<unsigned>(guess.row) < rows);
    if ((guess.sure == 0) & !(z[i] < -bounds.error)) between |= 1u << i;
    if (is_on_image) on_image |= 1u << i;
    depth[i] = 0;
    if (is_on_image)
      depth[i] = static_cast<float>(*pixel_at(image, guess.row * row_stride + guess.column * column_stride));
  }
  between &= quad.inside;
  if ((on_image & quad.inside) != 0 && ((p.ranges != nullptr) | p.space_carving)) {  // most voxels will be updated
    prefetch(quad.distances);
    prefetch(quad.weights);
  }
  for (; between != 0; between &= between - 1) {
    const unsigned index = __ffs(between) - 1;
    const float pixel_depth =
        exact_depth(p, sensor_float64, image, voxel.x, voxel.y, voxel.z + static_cast<int>(index));
#pragma unroll
    for (unsigned i = 0; i < kPerThread; ++i) depth[i] = i == index ? pixel_depth : depth[i];
  }
  if (free) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) counts[i] += depth[i] > 0 && depth[i] < INFINITY ? 1 : 0;
    return;
  }
  unsigned in_doubt = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const Verdict tested = verdict(bounds, p.space_carving, z[i], depth[i]);
    if (tested.free != 0) ++counts[i];
    if (tested.doubtful != 0) in_doubt |= 1u << i;
  }
  in_doubt &= quad.inside;
  if (in_doubt == 0) return;
  // Stops the compiler from computing the lines below for all voxels.
  asm volatile("" : "+r"(voxel.x), "+r"(voxel.y), "+r"(voxel.z));
  unsigned unsure = bounds.least_z < INFINITY ? 0 : in_doubt;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const Addend addend = addend_of(p, seen_from(p, sensor_float64, {voxel.x, voxel.y, voxel.z + i}),
                                    p.depth_scale * static_cast<double>(depth[i]), guess_inverse_root);
    if (!addend.sure) unsure |= in_doubt & 1u << i;
    const bool adds = (in_doubt & ~unsure) >> i & 1;
    counts[i] += adds ? addend.count : 0;
    quanta[i] += adds ? addend.quanta : 0;
  }
  if (unsure == 0) return;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if ((unsure >> i & 1) == 0) continue;
    const int64_t added_quanta = exact_quanta(p, sensor_float64, voxel.x, voxel.y, voxel.z + i, depth[i]);
    if (added_quanta == kNone) continue;
    ++counts[i];
    quanta[i] += added_quanta;
  }
}

// Whether free space alone updates a voxel without float64. This holds for an unseen voxel, and for a voxel that
// already holds `free`, the truncation in float32. The mean of `free` and the truncation differs from `free` by less
// than half a unit in the last place, so it rounds to `free` again. The bounds on weights and counts make their sum a
// double.
__device__ bool is_free_again(const TsdfFree& free, int32_t count, float distance, float weight) {
  constexpr float kLeast = 0x1p-6f, kMost = 0x1p24f;
  constexpr int32_t kMostCount = 1 << 12;
  const bool is_free = __float_as_int(distance) == __float_as_int(free.distance);
  return (!(weight > 0) & (count == 1)) | (is_free & (weight >= kLeast) & (weight <= kMost) & (count < kMostCount));
}

// Updates a lane's voxels by their measurements.
__device__ void update_quad(const TsdfCall& call, const Quad& quad, const int32_t* counts, const int64_t* quanta) {
  const TsdfParams& p = call.params;
  const auto distances = quad.distances;
  const auto weights = quad.weights;
  const bool all_inside = call.uses_quads && quad.inside == (1u << kPerThread) - 1;
  float distance[kPerThread] = {};
  float weight[kPerThread] = {};
  if (all_inside) {
    const float4 d = *reinterpret_cast<const float4*>(distances);
    const float4 w = *reinterpret_cast<const float4*>(weights);
    distance[0] = d.x, distance[1] = d.y, distance[2] = d.z, distance[3] = d.w;
    weight[0] = w.x, weight[1] = w.y, weight[2] = w.z, weight[3] = w.w;
  } else {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (counts[i] == 0) continue;
      distance[i] = distances[i * p.distance_strides[2]];
      weight[i] = weights[i * p.weight_strides[2]];
    }
  }
  bool distances_change = false;
  unsigned summed = 0;
#pragma unroll
  for (unsigned i = 0; i < kPerThread; ++i) {  // has no branches
    const bool seen = counts[i] != 0;
    const bool stays_free = seen & (quanta[i] == 0) & is_free_again(call.free, counts[i], distance[i], weight[i]);
    const float free_weight = fminf(fmaxf(weight[i], 0) + static_cast<float>(counts[i]), call.free.most_weight);
    summed |= seen & !stays_free ? 1u << i : 0;
    distances_change |= seen & (!stays_free | (__float_as_int(distance[i]) != __float_as_int(call.free.distance)));
    distance[i] = stays_free ? call.free.distance : distance[i];
    weight[i] = stays_free ? free_weight : weight[i];
  }
  if (summed != 0) {
    unsigned unsure = 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      float new_distance = distance[i];
      float new_weight = weight[i];
      const bool sure = update_if_sure(p, new_distance, new_weight, {quanta[i], counts[i]}, guess_inverse);
      const bool is_summed = summed >> i & 1;
      if (is_summed & !sure) unsure |= 1u << i;
      distance[i] = is_summed & sure ? new_distance : distance[i];
      weight[i] = is_summed & sure ? new_weight : weight[i];
    }
    if (unsure != 0) {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        if ((unsure >> i & 1) == 0) continue;
        const float2 updated = update_exactly(p, distance[i], weight[i], quanta[i], counts[i]);
        distance[i] = updated.x;
        weight[i] = updated.y;
      }
    }
  }
  if (all_inside) {
    if (distances_change) *reinterpret_cast<float4*>(distances) = {distance[0], distance[1], distance[2], distance[3]};
    *reinterpret_cast<float4*>(weights) = {weight[0], weight[1], weight[2], weight[3]};
    return;
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (counts[i] == 0) continue;
    if (distances_change) distances[i * p.distance_strides[2]] = distance[i];
    weights[i * p.weight_strides[2]] = weight[i];
  }
}

// Handles the tiles of a warp, from this tile on along z. All lanes of the warp call it.
template <class Depth, bool kOne>
__device__ void integrate_tiles(const TsdfCall& call, Voxel tile) {
  const TsdfParams& p = call.params;
  const unsigned lane = threadIdx.x % 32;
  const auto sensors = kOne ? 1 : static_cast<unsigned>(p.sensors);
  // Each lane checks one sensor for one tile. The lanes check all sensors at once, unless there is only one tile.
  const int at_once_log2 = 5 - call.tiles_log2;
  const unsigned at_once = 1u << at_once_log2;
  unsigned unknown = 0;                // bits of the lanes whose box may be measured
  unsigned free = 0;                   // bits of the lanes whose box is measured as free space
  for (unsigned bit = 0; bit < 32;) {  // the first lane of a tile
    const Quad quad = quad_of(call, {tile.x, tile.y, tile.z + static_cast<int>(bit >> at_once_log2) * kTileZ}, lane);
    int32_t counts[kPerThread] = {};
    int64_t quanta[kPerThread] = {};
    for (unsigned first_sensor = 0; first_sensor < sensors; first_sensor += at_once) {
      if (bit == 0) {
        const unsigned sensor = first_sensor + lane % at_once;
        const int z = tile.z + static_cast<int>(lane >> at_once_log2) * kTileZ;
        BoxVerdict box = BoxVerdict::kNone;
        if (sensor < sensors && z < p.grid.shape[2] + call.most_ahead) box = BoxVerdict::kUnknown;
        // For one image without ranges, the check would take as long as the tile itself.
        if (box == BoxVerdict::kUnknown && (!kOne || p.ranges != nullptr)) {
          const int64_t cells = cell_blocks(p.columns) * cell_blocks(p.rows) * kCellsInBlock;
          box = box_verdict(p, view_of<kOne>(call, sensor), p.ranges ? p.ranges + sensor * cells : nullptr,
                            static_cast<float>(tile.x), static_cast<float>(tile.y), static_cast<float>(z));
        }
        unknown = __ballot_sync(~0u, box == BoxVerdict::kUnknown);
        free = __ballot_sync(~0u, box == BoxVerdict::kFree);
      }
      for (unsigned lanes_left = (unknown | free) >> bit & ~0u >> (32 - at_once); lanes_left != 0;
           lanes_left &= lanes_left - 1) {
        const unsigned k = __ffs(lanes_left) - 1;
        add_image<Depth, kOne>(call, first_sensor + k, (free >> (bit + k) & 1) != 0, quad, counts, quanta);
      }
    }
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if ((quad.inside >> i & 1) == 0) counts[i] = 0;
    }
    if ((counts[0] | counts[1] | counts[2] | counts[3]) != 0) update_quad(call, quad, counts, quanta);
    // Skips to the next tile that a sensor measures.
    bit += at_once;
    const unsigned rest = bit < 32 ? (unknown | free) >> bit : 0;
    if (rest == 0) break;
    bit += __ffs(rest) - 1 & ~(at_once - 1);
  }
}

template <class Depth, bool kOne>
__global__ void __launch_bounds__(kThreads, 6) integrate_images(const __grid_constant__ TsdfCall call) {
  wait_for_work_before();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto x_count = static_cast<int>(call.params.grid.shape[0]);  // at most 2^30
  const auto y_count = static_cast<int>(call.params.grid.shape[1]);
  const int z = static_cast<int>(blockIdx.x) * kTileZ << call.tiles_log2;
  constexpr int kBlockX = kWarps * kTileX;
  for (int x = static_cast<int>(blockIdx.z) * kBlockX + warp * kTileX; x < x_count;
       x += static_cast<int>(gridDim.z) * kBlockX) {
    for (int y = static_cast<int>(blockIdx.y) * kTileY; y < y_count; y += static_cast<int>(gridDim.y) * kTileY) {
      integrate_tiles<Depth, kOne>(call, {x, y, z});
    }
  }
}

// Returns by how many voxels, at most, aligned quads begin before their tile; -1 if quads cannot be aligned.
int most_ahead(const TsdfParams& p) {
  const int64_t* const d = p.distance_strides;
  const int64_t* const w = p.weight_strides;
  if (d[2] != 1 || w[2] != 1 || (d[0] - w[0]) % kPerThread != 0 || (d[1] - w[1]) % kPerThread != 0) return -1;
  const auto address = reinterpret_cast<uintptr_t>(p.distances);
  if ((address - reinterpret_cast<uintptr_t>(p.weights)) % sizeof(float4) != 0) return -1;
  return address % sizeof(float4) == 0 && d[0] % kPerThread == 0 && d[1] % kPerThread == 0 ? 0 : kPerThread - 1;
}

// Launches the call. The sensors must be stored already.
cudaError_t launch_call(const TsdfCall& call, cudaStream_t stream) {
  const TsdfParams& p = call.params;
  const int64_t* shape = p.grid.shape;
  if (p.is_depth) {
    const bool is_float = p.dtype == DType::kFloat32;
    if (p.ranges != nullptr) {
      const int64_t cells = p.sensors * cell_blocks(p.rows) * cell_blocks(p.columns);
      const cudaError_t code = launch_overlapped(is_float ? find_ranges<float> : find_ranges<uint16_t>,
                                                 dim3(blocks_for(cells, 1)), kRangeThreads, 0, stream, p);
      if (code != cudaSuccess) return code;
    }
    const dim3 blocks(blocks_for(shape[2] + call.most_ahead, int64_t{kTileZ} << call.tiles_log2),
                      blocks_for(shape[1], kTileY, 65535), blocks_for(shape[0], int64_t{kWarps} * kTileX, 65535));
    const bool has_one_sensor = p.sensors == 1 && call.stored_sensors == nullptr;
    const auto kernel = is_float ? has_one_sensor ? integrate_images<float, true> : integrate_images<float, false>
                        : has_one_sensor ? integrate_images<uint16_t, true>
                                         : integrate_images<uint16_t, false>;
    return launch_overlapped(kernel, blocks, kThreads, 0, stream, call);
  }
  constexpr int64_t kMostBlocks = int64_t{1} << 20;
  const dim3 ray_blocks(blocks_for(p.sensors * p.rows, kThreads, kMostBlocks));
  const dim3 voxel_blocks(blocks_for(shape[0] * shape[1] * shape[2], kThreads, kMostBlocks));
  cudaError_t code = p.clear_everywhere ? launch_overlapped(clear_everywhere, voxel_blocks, kThreads, 0, stream, call)
                                        : launch_overlapped(clear_on_rays, ray_blocks, kThreads, 0, stream, call);
  if (code == cudaSuccess) code = launch_overlapped(add_rays, ray_blocks, kThreads, 0, stream, call);
  if (code != cudaSuccess) return code;
  return p.clear_everywhere ? launch_overlapped(update_everywhere, voxel_blocks, kThreads, 0, stream, call)
                            : launch_overlapped(update_on_rays, ray_blocks, kThreads, 0, stream, call);
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
  // A warp handles as many tiles as its lanes can check together, but few enough to leave warps for the whole device.
  call.most_ahead = std::max(most_ahead(p), 0);
  call.uses_quads = most_ahead(p) >= 0;
  const int64_t tiles = blocks_for(p.grid.shape[2] + call.most_ahead, kTileZ) *
                        int64_t{blocks_for(p.grid.shape[1], kTileY)} * blocks_for(p.grid.shape[0], kTileX);
  while (p.sensors << (call.tiles_log2 + 1) <= 32 &&
         tiles >= (int64_t{128} << call.tiles_log2) * multiprocessors(device)) {
    ++call.tiles_log2;
  }
  float unused_weight = 0;
  update_voxel(p, call.free.distance, unused_weight, {0, 1});
  call.free.most_weight = static_cast<float>(p.max_weight);
  if (poses == nullptr && cameras == nullptr && p.sensors <= kSensorsInParams) {
    for (int64_t i = 0; i < p.sensors; ++i) {
      call.params_batch.sensors[i] = sensors[i];
      if (p.is_depth) call.params_batch.views[i] = view_of(p, sensors[i], call.most_ahead);
    }
    return launch_call(call, stream);
  }
  auto* const stored_sensors = static_cast<TsdfSensor*>(sensor_memory);
  auto* const views = reinterpret_cast<TsdfView*>(stored_sensors + p.sensors);
  call.stored_sensors = stored_sensors;
  call.stored_views = views;
  for (int64_t first = 0; first < p.sensors; first += kSensorsInParams) {
    SensorBatch batch{};
    std::copy_n(sensors + first, std::min(kSensorsInParams, p.sensors - first), batch.sensors);
    const cudaError_t code = launch_overlapped(store_sensors, dim3(1), unsigned{kSensorsInParams}, 0, stream, batch,
                                               poses ? *poses : TsdfNumbers{}, cameras ? *cameras : TsdfNumbers{}, p,
                                               call.most_ahead, stored_sensors, views, first);
    if (code != cudaSuccess) return code;
  }
  return launch_call(call, stream);
}
