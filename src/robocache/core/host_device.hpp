// Marks functions that host and device code share, or that files compiled for different instruction sets share.
#pragma once

// Such a function is always inlined. Otherwise the linker could keep one copy for all files, compiled for an instruction
// set that the processor lacks.
#ifdef __CUDACC__
#define ROBOCACHE_HD __host__ __device__ __forceinline__
#else
#define ROBOCACHE_HD __attribute__((always_inline)) inline
#endif
