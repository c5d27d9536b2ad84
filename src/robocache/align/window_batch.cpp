#include "robocache/align/window_batch.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "robocache/align/window_batch_cpu.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/core/cpu_isa.hpp"
#include "robocache/core/error.hpp"
#include "robocache/core/thread_pool.hpp"

namespace robocache {
namespace {

std::string path_of(int32_t file) {
  char path[4096];
  const ssize_t length = readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), path, sizeof path);
  return length < 0 ? "file " + std::to_string(file) : std::string(path, static_cast<size_t>(length));
}

[[noreturn]] void fail(const WindowFault& fault) {
  const std::string expected =
      ": at byte " + std::to_string(fault.offset) + ": expected " + std::to_string(fault.bytes) + " bytes, got ";
  throw FileError(path_of(fault.file) + expected +
                  (fault.got < 0 ? std::strerror(static_cast<int>(-fault.got)) : std::to_string(fault.got)));
}

}  // namespace

char* window_scratch(size_t bytes) {
  thread_local std::vector<char> memory;
  if (memory.size() < bytes) memory = std::vector<char>(bytes);
  return memory.data();
}

WindowFault read_window(int32_t file, int64_t offset, int64_t bytes, char* to) {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t got = pread(file, to + done, static_cast<size_t>(bytes - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return {file, offset, bytes, got < 0 ? -int64_t{errno} : done};
    done += got;
  }
  return {};
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
  parallel_for(batch.count, kSamplesPerRange, [&](int64_t begin, int64_t end) {
    if (const WindowFault fault = samples(batch, begin, end); fault.file >= 0) fail(fault);
  });
}

}  // namespace robocache
