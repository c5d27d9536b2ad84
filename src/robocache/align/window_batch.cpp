#include "robocache/align/window_batch.hpp"

#include <algorithm>
#include <vector>

#include "robocache/align/window_batch_cpu.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/core/cpu_isa.hpp"
#include "robocache/core/thread_pool.hpp"

namespace robocache {
char* window_scratch(size_t bytes) {
  thread_local std::vector<char> memory;
  if (memory.size() < bytes) memory = std::vector<char>(bytes);
  return memory.data();
}

void window_batch(const WindowBatch& batch, Device device, CudaStream stream) {
  if (batch.count == 0) return;
  if (device.is_cuda()) {
    using Launch = int(const WindowBatch*, int32_t device, void* stream);
    static Launch* const launch = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_window_batch"));
    check_cuda(launch(&batch, device.index, stream.handle), "window_batch");
    return;
  }
  // To hand a range to another thread takes longer than to make fewer bytes.
  constexpr int64_t kRangeBytes = 64 << 10;
  constexpr int64_t kSamplesTogether = 32;
  const int64_t ranges = std::max<int64_t>(1, batch.count * batch.plan.sample_bytes / kRangeBytes);
  const int64_t even = (batch.count + ranges - 1) / ranges;
  const int64_t grain = (even + kSamplesTogether - 1) / kSamplesTogether * kSamplesTogether;
  WindowSamples* const samples = ROBOCACHE_SELECT_ISA(window_samples);
  parallel_for(batch.count, grain, [&](int64_t begin, int64_t end) { samples(batch, begin, end); });
}

}  // namespace robocache
