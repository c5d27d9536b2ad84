#include "robocache/image/mirror.hpp"

#include "robocache/core/backend.hpp"
#include "robocache/core/thread_pool.hpp"
#include "robocache/image/mirror_math.hpp"

namespace robocache {

void mirror_values(const MirrorParams& params, Device device, CudaStream stream) {
  if (params.samples == 0) return;
  if (device.is_cuda()) {
    using Launch = int(const MirrorParams*, int32_t device, void* stream);
    static Launch* const launch = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_mirror_values"));
    check_cuda(launch(&params, device.index, stream.handle), "mirror");
    return;
  }
  constexpr int64_t kSharedSamples = 64;  // waking a thread takes longer than mirroring fewer
  parallel_for(params.samples, kSharedSamples, [&](int64_t begin, int64_t end) {
    for (int64_t sample = begin; sample < end; ++sample) {
      const uint8_t flipped = flipped_axes(params, sample);
      for (int64_t i = 0; flipped != 0 && i < params.rows * params.features; ++i) {
        params.wide ? mirror_number<double>(params, flipped, sample, i)
                    : mirror_number<float>(params, flipped, sample, i);
      }
    }
  });
}

}  // namespace robocache
