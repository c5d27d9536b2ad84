#include "robocache/points/voxelize_sparse/sparse_steps.hpp"

#include <limits>
#include <string>

#include "robocache/core/arguments.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/points/voxelize_sparse/sparse_call_cpu.hpp"

namespace robocache {

void check_row_count(const Clouds& clouds, Device device) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  // The table on CUDA has twice as many slots as rows, counted in 32 bits.
  const int64_t most = device.is_cuda() ? int64_t{1} << 30 : kMost;
  const int64_t rows = row_count(clouds);
  if (rows > most) {
    refuse("points: expected at most ", device.is_cuda() ? "2^30 rows on CUDA" : "2^31 - 1 rows", ", got ",
           std::to_string(rows));
  }
  if (clouds.count > kMost) refuse("points: expected at most 2^31 - 1 clouds, got ", std::to_string(clouds.count));
}

void number_voxels(SparseCall& call, SparseSizes* sizes, const Allocate& allocate, Device device, CudaStream stream) {
  if (device.is_cuda()) {
    using Bytes = int64_t(const SparseCall*);
    using Launch = int(const SparseCall*, SparseSizes*, int32_t device, void* stream);
    static Bytes* const bytes = reinterpret_cast<Bytes*>(cuda_symbol("robocache_cuda_numbering_bytes"));
    static Launch* const launch = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_number_voxels"));
    call.numbering = allocate_bytes(allocate, bytes(&call));
    check_cuda(launch(&call, sizes, device.index, stream.handle), "numbering voxels");
    return;
  }
  call.numbering = allocate_bytes(allocate, numbering_bytes_cpu(call));
  number_voxels_cpu(call);
  if (sizes != nullptr) *sizes = sizes_cpu(call);
}

void assign_points(SparseCall& call, const Allocate& allocate, Device device, CudaStream stream) {
  if (device.is_cuda()) {
    using Bytes = int(const SparseCall*, int64_t* bytes, int32_t device);
    using Launch = int(const SparseCall*, int32_t device, void* stream);
    static Bytes* const bytes_of = reinterpret_cast<Bytes*>(cuda_symbol("robocache_cuda_assign_bytes"));
    static Launch* const launch = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_assign_points"));
    int64_t bytes = 0;
    check_cuda(bytes_of(&call, &bytes, device.index), "assigning points");
    call.workspace = allocate_bytes(allocate, bytes);
    check_cuda(launch(&call, device.index, stream.handle), "assigning points");
    return;
  }
  assign_points_cpu(call);
}

void gather_rows(const GatherCall& call, Device device, CudaStream stream) {
  if (call.count * call.columns == 0) return;
  if (device.is_cuda()) {
    using Launch = int(const GatherCall*, int32_t device, void* stream);
    static Launch* const launch = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_gather_rows"));
    check_cuda(launch(&call, device.index, stream.handle), "gathering points");
    return;
  }
  gather_rows_cpu(call);
}

TensorView gather_rows(const Clouds& clouds, const Features& features, const int32_t* row,
                       std::initializer_list<int64_t> shape, const Allocate& allocate, Device device,
                       CudaStream stream) {
  const TensorView out = allocate(features.dtype, shape);
  GatherCall call{};
  call.data = features.data;
  call.element_bytes = dtype_size(features.dtype);
  call.columns = features.count;
  call.rows = clouds.rows;
  call.cloud_stride = features.cloud_stride;
  call.row_stride = features.row_stride;
  call.row = row;
  call.count = features.count == 0 ? 0 : out.numel() / features.count;
  call.out = out.data;
  gather_rows(call, device, stream);
  return out;
}

TensorView reduce_rows(const Clouds& clouds, const Features& features, VoxelMode mode, const int32_t* kept,
                       int64_t voxels, int32_t* counts, const Allocate& allocate, Device device, CudaStream stream) {
  const TensorView out = allocate(reduced_dtype(mode, features.dtype), {voxels, features.count});
  VoxelReduction call{};
  call.clouds = clouds;
  call.features = features;
  call.cell_of_row = kept;
  call.cells = voxels;
  call.quantum_exponent = kOwnQuantum;
  if (counts != nullptr) call.outputs[call.output_count++] = {VoxelMode::kCount, DType::kInt32, counts};
  if (features.count > 0) call.outputs[call.output_count++] = {mode, out.dtype, out.data};
  if (call.output_count == 0 || voxels == 0) return out;
  call.workspace_bytes = reduce_workspace_bytes(call, device);
  call.workspace = allocate_bytes(allocate, call.workspace_bytes);
  reduce_into_voxels(call, device, stream);
  return out;
}

Features columns_of(const TensorView& points, int64_t columns) {
  const int row = points.ndim - 2;
  return {points.data, points.dtype, columns, row == 1 ? points.strides[0] : 0, points.strides[row]};
}

}  // namespace robocache
