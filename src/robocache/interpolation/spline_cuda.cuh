// Computes the slopes of cubic segments on CUDA, for values and for gradients. Only *_cuda.cu files include it.
#pragma once

#include <cuda_runtime.h>

#include "robocache/interpolation/spline.hpp"

namespace robocache::interpolation_cuda {

// The slopes have the segment's work type; with `in_double` they are always float64.
cudaError_t launch_splines(const SplineCall& call, bool in_double, cudaStream_t stream);

}  // namespace robocache::interpolation_cuda
