#include "robocache/interpolation/interpolate_backward.hpp"

#include "robocache/core/backend.hpp"
#include "robocache/core/cpu_isa.hpp"
#include "robocache/core/thread_pool.hpp"

namespace robocache {

void interpolate_backward(const Interpolation& call, const SegmentGradient* gradients, Device device,
                          CudaStream stream) {
  if (call.batch == 0 || call.targets_count == 0 || call.segment_count == 0) return;
  if (device.is_cuda()) {
    using Launch = int(const Interpolation*, const SegmentGradient*, int32_t device, void* stream);
    static Launch* const launch = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_interpolate_backward"));
    check_cuda(launch(&call, gradients, device.index, stream.handle), "interpolate_backward");
    return;
  }
  InterpolateRowsBackward* const rows = ROBOCACHE_SELECT_ISA(interpolate_rows_backward);
  // A row's sums belong to one thread: they come out the same whatever the number of threads.
  parallel_for(call.batch, 1, [&](int64_t begin, int64_t end) { rows(call, gradients, begin, end); });
}

}  // namespace robocache
