// Marks the scalar rules that the CPU loops and the CUDA kernels share.
#pragma once

// Always inlined, so that a translation unit built for a newer instruction set never lends its copy to another.
#ifdef __CUDACC__
#define ROBOCACHE_HD __host__ __device__ __forceinline__
#else
#define ROBOCACHE_HD __attribute__((always_inline)) inline
#endif
