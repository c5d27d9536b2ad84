#include "robocache/interpolation/interpolate.hpp"

#include <algorithm>

#include "robocache/core/backend.hpp"
#include "robocache/core/cpu_isa.hpp"
#include "robocache/core/thread_pool.hpp"

namespace robocache {

void interpolate(const Interpolation& call, Device device, CudaStream stream) {
  const int64_t rows = call.batch * call.targets_count;
  if (rows == 0 || call.segment_count == 0) return;
  if (device.is_cuda()) {
    using Launch = int(const Interpolation*, int32_t device, void* stream);
    static Launch* const launch = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_interpolate"));
    check_cuda(launch(&call, device.index, stream.handle), "interpolate");
    return;
  }
  InterpolateEntries* const kernel = ROBOCACHE_SELECT_ISA(interpolate_entries);
  int64_t widest = 1;
  for (int32_t i = 0; i < call.segment_count; ++i) {
    const Segment& s = call.segments[i];
    widest = std::max(widest, s.features * dtype_size(s.out_dtype));
  }
  // Waking a thread pays off from about 32 KiB of output.
  const int64_t grain = std::clamp<int64_t>(32768 / widest, 1, 4096);
  parallel_for(rows * call.segment_count, grain, [&](int64_t begin, int64_t end) { kernel(call, begin, end); });
}

}  // namespace robocache
