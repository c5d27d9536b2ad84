#include "robocache/align/window_batch.hpp"

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
  constexpr int64_t kSamplesPerRange = 32;
  WindowSamples* const samples = ROBOCACHE_SELECT_ISA(window_samples);
  parallel_for(batch.count, kSamplesPerRange, [&](int64_t begin, int64_t end) { samples(batch, begin, end); });
}

}  // namespace robocache
