// The launchers of the interpolation kernels.
#pragma once

#include <cuda_runtime.h>

#include "robocache/interpolation/segment.hpp"

namespace robocache {

// Any call, in one launch: segments of different methods, element types, clocks and widths.
cudaError_t launch_any(const Interpolation& call, cudaStream_t stream);

}  // namespace robocache
