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
  // To wake a thread for a range takes longer than to make fewer bytes; one that is there already takes a smaller share.
  constexpr int64_t kRangeBytes = 64 << 10;
  constexpr int64_t kSharedRangeBytes = 16 << 10;
  constexpr int64_t kSamplesTogether = 8;
  const int64_t bytes = batch.count * batch.plan.sample_bytes;
  const int64_t range_bytes = bytes >= 2 * kRangeBytes && help_is_expected() ? kSharedRangeBytes : kRangeBytes;
  const int64_t ranges = std::max<int64_t>(1, bytes / range_bytes);
  int64_t grain = (batch.count + ranges - 1) / ranges;
  if (grain > kSamplesTogether) grain = (grain + kSamplesTogether - 1) / kSamplesTogether * kSamplesTogether;
  WindowSamples* const samples = ROBOCACHE_SELECT_ISA(window_samples);
  parallel_for(batch.count, grain, [&](int64_t begin, int64_t end) { samples(batch, begin, end); });
}

}  // namespace robocache
