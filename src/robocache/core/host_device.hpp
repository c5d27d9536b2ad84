// Marks the scalar rules that the CPU loops and the CUDA kernels share.
#pragma once

// The rules are always inlined. Otherwise a file compiled for a newer instruction set could provide the copy that other
// files call.
#ifdef __CUDACC__
#define ROBOCACHE_HD __host__ __device__ __forceinline__
#else
#define ROBOCACHE_HD __attribute__((always_inline)) inline
#endif
