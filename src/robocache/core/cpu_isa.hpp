// Chooses among the builds of a CPU kernel: x86-64 (baseline), x86-64-v3 (AVX2, FMA, F16C) and x86-64-v4 (AVX-512).
#pragma once

namespace robocache {

enum class CpuIsa { kBaseline, kV3, kV4 };

// Returns the newest build that this processor runs, limited by ROBOCACHE_CPU_ISA=baseline|v3|v4. No result depends on
// it.
CpuIsa cpu_isa();

// The bytes of a vector register, in the build that the including file is compiled for.
#if defined(__AVX512F__) && defined(__AVX512VL__)
constexpr int kRegisterBytes = 64;
#elif defined(__AVX__)
constexpr int kRegisterBytes = 32;
#else
constexpr int kRegisterBytes = 16;
#endif

}  // namespace robocache

// How many of the builds the library has. Processors other than x86-64 have only baseline, compiled with the processor's
// fma instruction. CMake leaves out others for a sanitizer.
#ifndef __x86_64__
#define ROBOCACHE_ISA_COUNT 1
#elif !defined(ROBOCACHE_ISA_COUNT)
#define ROBOCACHE_ISA_COUNT 3
#endif

// Selects baseline::f, v3::f or v4::f.
#if ROBOCACHE_ISA_COUNT == 1
#define ROBOCACHE_SELECT_ISA(f) (baseline::f)
#elif ROBOCACHE_ISA_COUNT == 2
#define ROBOCACHE_SELECT_ISA(f) (::robocache::cpu_isa() == ::robocache::CpuIsa::kBaseline ? baseline::f : v3::f)
#else
#define ROBOCACHE_SELECT_ISA(f)                                 \
  (::robocache::cpu_isa() == ::robocache::CpuIsa::kV4   ? v4::f \
   : ::robocache::cpu_isa() == ::robocache::CpuIsa::kV3 ? v3::f \
                                                        : baseline::f)
#endif
