#include <cstdint>

#include "robocache/points/voxelize_sparse/sparse_cuda.cuh"

namespace robocache::sparse_cuda {
namespace {

// Each thread copies a piece of an output row, so neighbouring threads write neighbouring pieces.
template <class Piece, class Index>
__global__ void __launch_bounds__(kThreads)
    gather(const __grid_constant__ GatherCall call, Index pieces_a_row, Index pieces) {
  wait_for_work_before();
  const Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= pieces) return;
  const Index out_row = i / pieces_a_row;
  const int32_t row = call.row[out_row];
  Piece piece{};
  if (row >= 0) {
    const int64_t offset = row_offset(call.rows, call.cloud_stride, call.row_stride, row) * call.element_bytes;
    piece = reinterpret_cast<const Piece*>(static_cast<const char*>(call.data) + offset)[i - out_row * pieces_a_row];
  }
  static_cast<Piece*>(call.out)[i] = piece;
}

template <class Piece>
cudaError_t launch(const GatherCall& call, cudaStream_t stream) {
  const int64_t pieces_a_row = call.columns * call.element_bytes / static_cast<int64_t>(sizeof(Piece));
  const int64_t pieces = call.count * pieces_a_row;
  if (pieces <= int64_t{UINT32_MAX} - kThreads) {  // a 32-bit division takes a third of the time
    return launch_overlapped(gather<Piece, uint32_t>, blocks_for(pieces, kThreads), kThreads, 0, stream, call,
                             static_cast<uint32_t>(pieces_a_row), static_cast<uint32_t>(pieces));
  }
  if (pieces > int64_t{INT32_MAX} * kThreads) return cudaErrorInvalidConfiguration;
  return launch_overlapped(gather<Piece, int64_t>, blocks_for(pieces, kThreads), kThreads, 0, stream, call,
                           pieces_a_row, pieces);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int robocache_cuda_gather_rows(const GatherCall* call, int32_t device,
                                                                                 void* stream_handle) {
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  // Uses the widest piece that divides every row and every address.
  const auto bytes = static_cast<uint64_t>(call->element_bytes);
  const uint64_t alignment = reinterpret_cast<uintptr_t>(call->data) | reinterpret_cast<uintptr_t>(call->out) |
                             static_cast<uint64_t>(call->columns) * bytes |
                             static_cast<uint64_t>(call->row_stride) * bytes |
                             static_cast<uint64_t>(call->cloud_stride) * bytes;
  if (alignment % 16 == 0) return launch<uint4>(*call, stream);
  if (alignment % 8 == 0) return launch<uint2>(*call, stream);
  if (alignment % 4 == 0) return launch<uint32_t>(*call, stream);
  return alignment % 2 == 0 ? launch<uint16_t>(*call, stream) : launch<uint8_t>(*call, stream);
}

}  // namespace robocache::sparse_cuda
