#include "robocache/ops/resample/resample_cpu.hpp"

#include <algorithm>

#include "robocache/core/cpu_isa.hpp"
#include "robocache/core/thread_pool.hpp"

namespace robocache {

void resample_cpu(const ResampleParams& params) {
  ResampleRows* const rows = ROBOCACHE_SELECT_ISA(resample_rows);
  // A range is worth waking a thread for at about 32 KiB of output.
  const int64_t row_bytes = std::max<int64_t>(1, params.features * dtype_size(params.value_dtype));
  const int64_t grain = std::clamp<int64_t>(32768 / row_bytes, 1, 4096);
  parallel_for(params.batch * params.targets_count, grain,
               [&](int64_t begin, int64_t end) { rows(params, begin, end); });
}

}  // namespace robocache
