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
  // Waking a thread takes longer than filling fewer bytes.
  constexpr int64_t kSharedBytes = 128 << 10;
  if (batch.count * batch.plan.sample_bytes >= kSharedBytes) {
    // At the end threads wait for the longest range.
    constexpr int64_t kRangeBytes = 20 << 10;
    const int64_t turns = int64_t{4} * num_threads();
    grain = std::max<int64_t>(1, std::min(batch.count / turns, kRangeBytes / batch.plan.sample_bytes));
  }
  WindowSamples* const samples = ROBOCACHE_SELECT_ISA(window_samples);
  parallel_ranges(batch.count, grain, [&](Ranges& ranges) { samples(batch, ranges); });
}

}  // namespace robocache
