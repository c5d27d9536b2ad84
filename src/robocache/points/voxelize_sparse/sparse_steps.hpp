// The steps of voxelize_sparse and voxel_downsample on either device. The caller has checked the call.
//
// number_voxels finds the voxels and numbers them in the order of insertion, which is the order of their first rows.
// assign_points finds the voxel of each point and the points of each voxel. Then gather_rows or reduce_rows computes
// the features.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>

#include "robocache/core/allocate.hpp"
#include "robocache/core/tensor_view.hpp"
#include "robocache/points/voxelize_sparse/sparse_call.hpp"
#include "robocache/points/voxels/reduce.hpp"

namespace robocache {

// Refuses more rows or clouds than the steps can count: 2^31 - 1, on CUDA 2^30 rows.
void check_row_count(const Clouds& clouds, Device device);

// Fills call.numbering. If `sizes` is not null, waits for the device and writes the numbers of voxels to it.
void number_voxels(SparseCall& call, SparseSizes* sizes, const Allocate& allocate, Device device, CudaStream stream);

void assign_points(SparseCall& call, const Allocate& allocate, Device device, CudaStream stream);

void gather_rows(const GatherCall& call, Device device, CudaStream stream);

// Returns the rows with the indices `row`, as [count, columns].
TensorView gather_rows(const Clouds& clouds, const Features& features, const int32_t* row,
                       std::initializer_list<int64_t> shape, const Allocate& allocate, Device device,
                       CudaStream stream);

// Reduces the features of the rows whose entry in `kept` is a voxel to [voxels, F]. Writes the number of these rows to
// `counts` [voxels].
TensorView reduce_rows(const Clouds& clouds, const Features& features, VoxelMode mode, const int32_t* kept,
                       int64_t voxels, int32_t* counts, const Allocate& allocate, Device device, CudaStream stream);

// Returns the first `columns` columns of points as features.
Features columns_of(const TensorView& points, int64_t columns);

}  // namespace robocache
