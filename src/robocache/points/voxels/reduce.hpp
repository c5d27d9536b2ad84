// Reduces points and their features into voxels. This is the engine of the dense grid, and of the sparse grid after its
// voxels are numbered.
//
// A call defines the cell of every row, by a grid (cell.hpp) or by an array, and has one output per mode. A cell's
// result depends only on the rows of that cell. It does not depend on their order (except first and last), on threads
// or on the device: both backends give the same bits. points/voxelize/voxelize.hpp defines the modes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "robocache/core/device.hpp"
#include "robocache/core/host_device.hpp"
#include "robocache/points/voxels/cell.hpp"
#include "robocache/points/voxels/clouds.hpp"

namespace robocache {

enum class VoxelMode : int32_t {
  kOccupancy,      // bool [cells]
  kOccupancyBits,  // uint32 [clouds, X, Y, (Z + 31) / 32], bit z % 32
  kCount,          // int32 [cells]
  kSum,            // [cells, F], like the modes below: the features' dtype, for integers int64
  kMean,           // the features' dtype, for integers float32
  kMin,            // the features' dtype, like the modes below
  kMax,
  kFirst,
  kLast,
};
inline constexpr int kVoxelModes = 9;

constexpr bool takes_features(VoxelMode mode) { return mode >= VoxelMode::kSum; }

// Returns the dtype of a mode's output for features of that dtype.
DType reduced_dtype(VoxelMode mode, DType features);

struct VoxelOutput {
  VoxelMode mode;
  DType dtype;
  void* data;  // dense
};

struct VoxelReduction {
  Clouds clouds;
  Features features;
  VoxelGrid grid;
  const int32_t* cell_of_row;  // [rows]; a negative cell leaves the row out
  int64_t cells;               // number of cells of all clouds
  bool by_grid;                // the cell of cloud b is b * X * Y * Z + voxel_cell in `grid`; else cell_of_row holds it
  int32_t output_count;
  VoxelOutput outputs[kVoxelModes];
  // The value of a cell without points, for mean, min, max, first and last. Other modes give 0.
  double fill;
  int64_t fill_integer;      // `fill` for integer outputs
  int32_t quantum_exponent;  // sums count multiples of 2^quantum_exponent, or kOwnQuantum
  int64_t* dropped;          // [clouds.count] number of points in no cell; may be null; only with a grid
  void* workspace;           // reduce_workspace_bytes() bytes, aligned to 256, with any content
  int64_t workspace_bytes;
};
inline constexpr int32_t kOwnQuantum = INT32_MIN;  // each cell and feature has a quantum of its own

template <class Condition>
bool any_output(const VoxelReduction& call, Condition condition) {
  return std::any_of(call.outputs, call.outputs + call.output_count,
                     [&](const VoxelOutput& output) { return condition(output.mode); });
}

// The outputs by mode; null for modes that are not requested.
struct Outputs {
  void* data[kVoxelModes];

  explicit Outputs(const VoxelReduction& call) : data{} {
    for (int32_t i = 0; i < call.output_count; ++i) data[static_cast<int>(call.outputs[i].mode)] = call.outputs[i].data;
  }

  ROBOCACHE_HD void* operator[](VoxelMode mode) const { return data[static_cast<int>(mode)]; }
  template <class T>
  ROBOCACHE_HD T* as(VoxelMode mode) const {
    return static_cast<T*>((*this)[mode]);
  }
};

// Returns the bytes of workspace on that device. They depend on shapes, strides, dtypes, modes and the quantum, not on
// the content of memory.
int64_t reduce_workspace_bytes(const VoxelReduction& call, Device device);

// Queues the work on `stream` and does not wait. The caller has checked the call.
void reduce_into_voxels(const VoxelReduction& call, Device device, CudaStream stream);

}  // namespace robocache
