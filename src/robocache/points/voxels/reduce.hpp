// Reduces points and their features into voxels: the engine of the dense grid, and of the sparse one once voxels have
// numbers.
//
// A call gives the cell of every row, by a grid (cell.hpp) or by an array, and any number of outputs, one a mode. Each
// cell's result depends on the rows of that cell alone, not on their order (except first and last), on threads or on the
// device: both backends give the same bits. points/voxelize/voxelize.hpp says what the modes mean.
#pragma once

#include <cstdint>

#include "robocache/core/device.hpp"
#include "robocache/points/voxels/cell.hpp"
#include "robocache/points/voxels/clouds.hpp"

namespace robocache {

enum class VoxelMode : int32_t {
  kOccupancy,      // bool [cells]
  kOccupancyBits,  // uint32 [clouds, X, Y, (Z + 31) / 32], bit z % 32
  kCount,          // int32 [cells]
  kSum,            // the rest: [cells, F]; of the features' dtype, of integers int64
  kMean,           // of the features' dtype, of integers float32
  kMin,            // of the features' dtype, and so the rest
  kMax,
  kFirst,
  kLast,
};
inline constexpr int kVoxelModes = 9;

constexpr bool takes_features(VoxelMode mode) { return mode >= VoxelMode::kSum; }

// The dtype of a mode's output for features of that dtype.
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
  const int32_t* cell_of_row;  // [rows], below 0 for a row to be left out
  int64_t cells;               // of all clouds together
  bool by_grid;                // the cell of cloud b is b * X * Y * Z + voxel_cell by `grid`; else as cell_of_row says
  int32_t output_count;
  VoxelOutput outputs[kVoxelModes];
  // The value of a cell without points in mean, min, max, first and last; in the other modes it is 0.
  double fill;
  int64_t fill_integer;      // the same for integer outputs
  int32_t quantum_exponent;  // sums go by multiples of 2^this; kOwnQuantum: each cell's and feature's own
  int64_t* dropped;          // [clouds.count] rows that are points but in no cell, or null; only by grid
  void* workspace;           // reduce_workspace_bytes of it, aligned to 256; its content is free
  int64_t workspace_bytes;
};
inline constexpr int32_t kOwnQuantum = INT32_MIN;

// Bytes of workspace on that device. They depend on shapes, strides, dtypes, modes and the quantum, not on any memory.
int64_t reduce_workspace_bytes(const VoxelReduction& call, Device device);

// Queues the work on `stream` and does not wait for it. The call has been checked.
void reduce_into_voxels(const VoxelReduction& call, Device device, CudaStream stream);

}  // namespace robocache
