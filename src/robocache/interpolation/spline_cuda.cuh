// The slopes of cubic segments on CUDA, for values and for gradients. Included by *_cuda.cu alone.
#pragma once

#include <cuda_runtime.h>

#include "robocache/interpolation/spline.hpp"

namespace robocache::interpolation_cuda {

// Of the segment's work type, or in float64 whatever that is.
cudaError_t launch_splines(const SplineCall& call, bool in_double, cudaStream_t stream);

}  // namespace robocache::interpolation_cuda
