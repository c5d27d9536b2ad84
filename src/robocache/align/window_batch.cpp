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
  int64_t grain = batch.count;
  // Filling fewer bytes takes less time than waking a thread.
  constexpr int64_t kSharedBytes = 128 << 10;
  if (batch.count * batch.plan.sample_bytes >= kSharedBytes) {
    // Ranges are short, because at the end threads wait for the longest one.
    constexpr int64_t kRangeBytes = 20 << 10;
    const int64_t least_ranges = int64_t{4} * num_threads();
    grain = std::max<int64_t>(1, std::min(batch.count / least_ranges, kRangeBytes / batch.plan.sample_bytes));
  }
  WindowSamples* const kernel = ROBOCACHE_SELECT_ISA(window_samples);
  parallel_ranges(batch.count, grain, [&](Ranges& ranges) { kernel(batch, ranges); });
}

}  // namespace robocache
