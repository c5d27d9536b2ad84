// The CUDA engine for every mode, dtype and grid: atomic operations whose result does not depend on their order, on
// arrays over all cells.
//
//   locate      names the cell of each row; counts, occupies
//   gather      what a sum needs to know of its cell beforehand, minima and maxima, first and last rows
//   add         the features, in quanta
//   finish      one rounding, for each cell and feature
#include "robocache/core/backend.hpp"
#include "robocache/core/launch_cuda.cuh"
#include "robocache/voxels/feature.hpp"
#include "robocache/voxels/fixed_point.hpp"
#include "robocache/voxels/order_key.hpp"
#include "robocache/voxels/reduce.hpp"

namespace robocache {
namespace {

constexpr int kThreads = 256;
constexpr int32_t kExponentBias = -kNoExponent;  // so that an exponent of none is 0
using Word = unsigned long long;                 // what atomic operations on 64 bits take

// Where a call's work goes; null where no output needs it.
struct Work {
  int64_t rows;
  int64_t* cell_of_row;  // -1 where in none
  int32_t* counts;       // [cells]
  bool* occupancy;       // [cells]
  uint32_t* bits;
  int32_t* exponents;  // [cells, F] largest exponent_above, biased
  uint32_t* marks;     // [cells, F] bytes
  Word* sums;          // [cells, F] wrapping
  Word* coarse_sums;   // [cells, F]
  Word* minima;        // [cells, F] order keys
  Word* maxima;
  Word* first_rows;            // [cells]
  Word* last_rows;             // [cells] plus 1
  void* outputs[kVoxelModes];  // by mode

  template <class T>
  __device__ T* output(VoxelMode mode) const {
    return static_cast<T*>(outputs[static_cast<int>(mode)]);
  }
};

__device__ int64_t integer_at(const void* array, DType dtype, int64_t i) {
  return dtype == DType::kInt32 ? static_cast<const int32_t*>(array)[i] : static_cast<const int64_t*>(array)[i];
}

struct RowPlace {
  int64_t cloud;
  int64_t row;    // in its cloud, of strides of clouds
  bool is_point;  // false past a length, and between the clouds of offsets that are wrong
};

__device__ RowPlace place_of_row(const Clouds& clouds, int64_t row) {
  if (clouds.offsets) {
    int64_t low = 0;  // the last cloud that starts at or before the row
    for (int64_t high = clouds.count; high - low > 1;) {
      const int64_t middle = (low + high) / 2;
      (integer_at(clouds.offsets, clouds.offsets_dtype, middle) <= row ? low : high) = middle;
    }
    return {low, row,
            integer_at(clouds.offsets, clouds.offsets_dtype, low) <= row &&
                row < integer_at(clouds.offsets, clouds.offsets_dtype, low + 1)};
  }
  if (clouds.count == 1 && !clouds.lengths) return {0, row, true};
  const int64_t cloud = row / clouds.rows;
  const int64_t in_cloud = row - cloud * clouds.rows;
  return {cloud, in_cloud, !clouds.lengths || in_cloud < integer_at(clouds.lengths, clouds.lengths_dtype, cloud)};
}

template <class T>
__device__ const T* features_of_row(const VoxelReduction& call, int64_t row) {
  const Features& f = call.features;
  if (call.clouds.offsets || call.clouds.count == 1) return static_cast<const T*>(f.data) + row * f.row_stride;
  const int64_t cloud = row / call.clouds.rows;
  return static_cast<const T*>(f.data) + cloud * f.cloud_stride + (row - cloud * call.clouds.rows) * f.row_stride;
}

template <class Real>
__device__ int64_t located(const VoxelReduction& call, const RowPlace& place) {
  const Real* const p = static_cast<const Real*>(call.clouds.points) + place.cloud * call.clouds.cloud_stride +
                        place.row * call.clouds.row_stride;
  const Real point[3] = {p[0], p[1], p[2]};
  const int64_t cell = voxel_cell<Real>(point, call.grid);
  if (cell < 0) return -1;
  return place.cloud * (call.grid.shape[0] * call.grid.shape[1] * call.grid.shape[2]) + cell;
}

__global__ void locate(const __grid_constant__ VoxelReduction call, const __grid_constant__ Work work) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x; row < work.rows; row += step) {
    int64_t cell = -1;
    if (call.cell_of_row) {
      cell = call.cell_of_row[row];
      if (cell < 0 || cell >= call.cells) cell = -1;
    } else {
      const RowPlace place = place_of_row(call.clouds, row);
      if (place.is_point) {
        cell = call.clouds.dtype == DType::kFloat32 ? located<float>(call, place) : located<double>(call, place);
        if (cell < 0 && call.dropped) atomicAdd(reinterpret_cast<Word*>(call.dropped + place.cloud), Word{1});
      }
    }
    if (work.cell_of_row) work.cell_of_row[row] = cell;
    if (cell < 0) continue;
    if (work.counts) atomicAdd(work.counts + cell, 1);
    if (work.occupancy) work.occupancy[cell] = true;
    if (work.bits) {
      const int64_t z = cell % call.grid.shape[2];
      const int64_t words = (call.grid.shape[2] + 31) / 32;
      atomicOr(work.bits + cell / call.grid.shape[2] * words + z / 32, 1u << (z % 32));
    }
    if (work.first_rows) atomicMin(work.first_rows + cell, static_cast<Word>(row));
    if (work.last_rows) atomicMax(work.last_rows + cell, static_cast<Word>(row) + 1);
  }
}

// Calls body(place, feature) for every feature of every row in a cell, place = cell * F + feature; the lanes of a warp
// take neighbouring features, so that rows are read whole.
template <class T, class Body>
__device__ void for_each_feature(const VoxelReduction& call, const Work& work, Body body) {
  constexpr int kLanes = 32;
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const int64_t count = call.features.count;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t base = int64_t{blockIdx.x} * kThreads + threadIdx.x - lane; base < work.rows; base += step) {
    const int64_t mine = base + lane < work.rows ? work.cell_of_row[base + lane] : -1;
    for (int64_t i = lane; i < kLanes * count; i += kLanes) {
      const int64_t in_warp = i / count;
      const int64_t cell = __shfl_sync(~0u, mine, static_cast<int>(in_warp));
      if (cell < 0) continue;
      const int64_t feature = i - in_warp * count;
      body(cell * count + feature, features_of_row<T>(call, base + in_warp)[feature]);
    }
  }
}

// atomicMax and atomicMin that spare the write where nothing would change, which is most often.
template <class Integer>
__device__ void raise(Integer* to, Integer value) {
  if (*static_cast<volatile Integer*>(to) < value) atomicMax(to, value);
}
template <class Integer>
__device__ void lower(Integer* to, Integer value) {
  if (*static_cast<volatile Integer*>(to) > value) atomicMin(to, value);
}

__device__ void add_mark(const Work& work, int64_t place, uint32_t mark) {
  atomicOr(work.marks + place / 4, mark << (place % 4 * 8));
}

template <class T>
__global__ void gather(const __grid_constant__ VoxelReduction call, const __grid_constant__ Work work) {
  for_each_feature<T>(call, work, [&](int64_t place, T feature) {
    const FeatureWork<T> value = to_feature_work(feature);
    if constexpr (!std::is_integral_v<T>) {
      if (work.exponents && mark_of(value) == 0) {
        raise(work.exponents + place, exponent_above(value) + kExponentBias);
      }
    }
    if (work.minima) lower(work.minima + place, static_cast<Word>(min_key(value)));
    if (work.maxima) raise(work.maxima + place, static_cast<Word>(max_key(value)));
  });
}

template <class T>
__device__ int32_t quantum_of(const VoxelReduction& call, const Work& work, int64_t place) {
  if constexpr (std::is_integral_v<T>) {
    return 0;
  } else {
    if (call.quantum_exponent != kOwnQuantum) return call.quantum_exponent;
    const int32_t above = std::is_same_v<T, Float16> ? kExponentAboveFloat16 : work.exponents[place] - kExponentBias;
    return own_quantum(above, work.counts[place / call.features.count], least_exponent(kFeatureDType<T>));
  }
}

template <class T>
__global__ void add(const __grid_constant__ VoxelReduction call, const __grid_constant__ Work work) {
  for_each_feature<T>(call, work, [&](int64_t place, T feature) {
    int64_t quanta = 0;
    if constexpr (std::is_integral_v<T>) {
      quanta = static_cast<int64_t>(feature);
    } else {
      const FeatureWork<T> value = to_feature_work(feature);
      uint32_t mark = mark_of(value);
      const QuantumScale scale = quantum_scale(quantum_of<T>(call, work, place));
      if (mark == 0 && !to_given_quanta(value, scale, quanta)) mark = kHasNan;
      if (mark != 0) return add_mark(work, place, mark);
    }
    if (quanta == 0) return;
    atomicAdd(work.sums + place, static_cast<Word>(quanta));
    if (work.coarse_sums && coarse(quanta) != 0) atomicAdd(work.coarse_sums + place, static_cast<Word>(coarse(quanta)));
  });
}

template <class T>
__device__ T fill_of(const VoxelReduction& call) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(call.fill_integer);
  } else {
    return from_feature_work<T>(static_cast<FeatureWork<T>>(call.fill));
  }
}

template <class T>
__global__ void finish(const __grid_constant__ VoxelReduction call, const __grid_constant__ Work work) {
  const int64_t features = call.features.count;
  const int64_t places = call.cells * features;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  T* const min = work.output<T>(VoxelMode::kMin);
  T* const max = work.output<T>(VoxelMode::kMax);
  T* const first = work.output<T>(VoxelMode::kFirst);
  T* const last = work.output<T>(VoxelMode::kLast);
  auto* const sum = work.output<FeatureSum<T>>(VoxelMode::kSum);
  auto* const mean = work.output<FeatureMean<T>>(VoxelMode::kMean);
  const T fill = fill_of<T>(call);
  for (int64_t place = int64_t{blockIdx.x} * kThreads + threadIdx.x; place < places; place += step) {
    const int64_t cell = place / features;
    const int64_t feature = place - cell * features;
    const int32_t points = work.counts[cell];
    if (points == 0) {
      if (sum) sum[place] = FeatureSum<T>{};
      if (mean) mean[place] = fill_of<FeatureMean<T>>(call);
      if (min) min[place] = fill;
      if (max) max[place] = fill;
      if (first) first[place] = fill;
      if (last) last[place] = fill;
      continue;
    }
    if (sum || mean) {
      const int64_t quanta = static_cast<int64_t>(work.sums[place]);
      const int32_t exponent = quantum_of<T>(call, work, place);
      uint32_t marks = work.marks ? work.marks[place / 4] >> (place % 4 * 8) & 0xffu : 0;
      if (work.coarse_sums && sum_overflows(quanta, static_cast<int64_t>(work.coarse_sums[place]))) marks |= kHasNan;
      if (mean) {
        mean[place] = marks ? from_feature_work<FeatureMean<T>>(marked_sum(marks))
                            : rounded_mean<FeatureMean<T>>(quanta, exponent, points);
      }
      if constexpr (std::is_integral_v<T>) {
        if (sum) sum[place] = quanta;
      } else {
        if (sum) sum[place] = marks ? from_feature_work<T>(marked_sum(marks)) : rounded_sum<T>(quanta, exponent);
      }
    }
    using Key = decltype(order_key(FeatureWork<T>{}));
    const auto from_key = [](Word key) {
      FeatureWork<T> value{};
      from_order_key(static_cast<Key>(key), value);
      return from_feature_work<T>(value);
    };
    if (min) min[place] = from_key(work.minima[place]);
    if (max) max[place] = from_key(work.maxima[place]);
    if (first) first[place] = features_of_row<T>(call, static_cast<int64_t>(work.first_rows[cell]))[feature];
    if (last) last[place] = features_of_row<T>(call, static_cast<int64_t>(work.last_rows[cell]) - 1)[feature];
  }
}

// Hands out parts of the workspace; without memory it only counts.
class Workspace {
 public:
  explicit Workspace(void* memory) : memory_(static_cast<char*>(memory)) {}

  template <class T>
  void take(T*& part, int64_t count, bool wanted) {
    if (!wanted) return;
    if (memory_) part = reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
  }
  int64_t bytes() const { return bytes_; }

 private:
  char* memory_;
  int64_t bytes_ = 0;
};

// `zeroed` gets the bytes at the start of the workspace that begin as 0; after them come the minima and first rows, which
// begin as all ones, up to `set`.
Work plan(const VoxelReduction& call, Workspace& workspace, int64_t& zeroed, int64_t& set) {
  Work work{};
  work.rows = row_count(call.clouds);
  bool asked[kVoxelModes] = {};
  for (int32_t i = 0; i < call.output_count; ++i) {
    const int mode = static_cast<int>(call.outputs[i].mode);
    asked[mode] = true;
    work.outputs[mode] = call.outputs[i].data;
  }
  const auto has = [&](VoxelMode mode) { return asked[static_cast<int>(mode)]; };
  work.occupancy = static_cast<bool*>(work.outputs[static_cast<int>(VoxelMode::kOccupancy)]);
  work.bits = static_cast<uint32_t*>(work.outputs[static_cast<int>(VoxelMode::kOccupancyBits)]);
  work.counts = static_cast<int32_t*>(work.outputs[static_cast<int>(VoxelMode::kCount)]);
  const bool sums = has(VoxelMode::kSum) || has(VoxelMode::kMean);
  const bool keys = has(VoxelMode::kMin) || has(VoxelMode::kMax);
  const bool rows = has(VoxelMode::kFirst) || has(VoxelMode::kLast);
  const bool floats = is_floating(call.features.dtype);
  const bool own = call.quantum_exponent == kOwnQuantum;
  const int64_t places = call.cells * call.features.count;
  workspace.take(work.counts, call.cells, !has(VoxelMode::kCount) && (sums || keys || rows));
  workspace.take(work.exponents, places, sums && floats && own && call.features.dtype != DType::kFloat16);
  workspace.take(work.marks, (places + 3) / 4, sums && floats);
  workspace.take(work.sums, places, sums);
  workspace.take(work.coarse_sums, places, sums && (floats ? !own : call.features.dtype == DType::kInt64));
  workspace.take(work.maxima, places, has(VoxelMode::kMax));
  workspace.take(work.last_rows, call.cells, has(VoxelMode::kLast));
  zeroed = workspace.bytes();
  workspace.take(work.minima, places, has(VoxelMode::kMin));
  workspace.take(work.first_rows, call.cells, has(VoxelMode::kFirst));
  set = workspace.bytes();
  workspace.take(work.cell_of_row, work.rows, sums || keys);
  return work;
}

unsigned blocks_for(int64_t items) {
  constexpr int64_t kMost = 132 * 16;  // enough to fill the largest device; the rest goes in steps
  return static_cast<unsigned>(std::min<int64_t>((items + kThreads - 1) / kThreads, kMost));
}

cudaError_t reduce(const VoxelReduction& call, cudaStream_t stream) {
  Workspace workspace(call.workspace);
  int64_t zeroed = 0;
  int64_t set = 0;
  const Work work = plan(call, workspace, zeroed, set);
  const auto clear = [&](void* memory, int value, int64_t bytes) {
    return bytes == 0 || memory == nullptr ? cudaSuccess
                                           : cudaMemsetAsync(memory, value, static_cast<size_t>(bytes), stream);
  };
  char* const memory = static_cast<char*>(call.workspace);
  cudaError_t code = clear(memory, 0, zeroed);
  if (code == cudaSuccess) code = clear(memory + zeroed, 0xff, set - zeroed);
  for (int32_t i = 0; i < call.output_count && code == cudaSuccess; ++i) {
    const VoxelOutput& output = call.outputs[i];
    if (output.mode == VoxelMode::kOccupancy) code = clear(output.data, 0, call.cells);
    if (output.mode == VoxelMode::kCount) code = clear(output.data, 0, call.cells * 4);
    if (output.mode == VoxelMode::kOccupancyBits) {
      const int64_t* const shape = call.grid.shape;
      code = clear(output.data, 0, call.clouds.count * shape[0] * shape[1] * ((shape[2] + 31) / 32) * 4);
    }
  }
  if (code == cudaSuccess) code = clear(call.dropped, 0, call.dropped ? call.clouds.count * 8 : 0);
  if (code != cudaSuccess) return code;

  if (work.rows > 0) {
    locate<<<blocks_for(work.rows), kThreads, 0, stream>>>(call, work);
    code = cudaGetLastError();
    if (code != cudaSuccess) return code;
  }
  const int64_t places = call.cells * call.features.count;
  if (work.counts == nullptr || places == 0) return cudaSuccess;
  bool features = work.sums || work.minima || work.maxima || work.first_rows || work.last_rows;
  if (!features) return cudaSuccess;
  return with_feature_type(call.features.dtype, [&](auto type) {
    using T = decltype(type);
    if (work.rows > 0 && (work.exponents || work.minima || work.maxima)) {
      gather<T><<<blocks_for(work.rows), kThreads, 0, stream>>>(call, work);
      if (const cudaError_t launched = cudaGetLastError(); launched != cudaSuccess) return launched;
    }
    if (work.rows > 0 && work.sums) {
      add<T><<<blocks_for(work.rows), kThreads, 0, stream>>>(call, work);
      if (const cudaError_t launched = cudaGetLastError(); launched != cudaSuccess) return launched;
    }
    finish<T><<<blocks_for(places), kThreads, 0, stream>>>(call, work);
    return cudaGetLastError();
  });
}

}  // namespace
}  // namespace robocache

extern "C" __attribute__((visibility("default"))) int64_t
robocache_cuda_reduce_workspace_bytes(const robocache::VoxelReduction* call) {
  robocache::Workspace workspace(nullptr);
  int64_t zeroed = 0;
  int64_t set = 0;
  robocache::plan(*call, workspace, zeroed, set);
  return workspace.bytes();
}

extern "C" __attribute__((visibility("default"))) int robocache_cuda_reduce_into_voxels(
    const robocache::VoxelReduction* call, int32_t device, void* stream) {
  const robocache::DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  return robocache::reduce(*call, static_cast<cudaStream_t>(stream));
}
