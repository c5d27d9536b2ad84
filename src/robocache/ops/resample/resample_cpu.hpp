// The CPU loop, built once per instruction set.
#pragma once

#include <cstdint>

#include "robocache/ops/resample/resample_params.hpp"

namespace robocache {

// Fills the rows [begin, end) of the flattened [batch * targets].
using ResampleRows = void(const ResampleParams& params, int64_t begin, int64_t end);

namespace baseline {
ResampleRows resample_rows;
}
namespace v3 {
ResampleRows resample_rows;
}
namespace v4 {
ResampleRows resample_rows;
}

// On the pool's threads.
void resample_cpu(const ResampleParams& params);

}  // namespace robocache
