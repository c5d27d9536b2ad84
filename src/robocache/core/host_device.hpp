// Marks the scalar rules that the CPU loops and the CUDA kernels share.
#pragma once

// They are always inlined, so that a file compiled for a newer instruction set never provides the copy that others
// call.
#ifdef __CUDACC__
#define ROBOCACHE_HD __host__ __device__ __forceinline__
#else
#define ROBOCACHE_HD __attribute__((always_inline)) inline
#endif
