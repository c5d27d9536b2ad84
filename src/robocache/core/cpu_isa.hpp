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

// Selects baseline::f, v3::f or v4::f. Processors other than x86-64 have only baseline, compiled with the processor's
// fma instruction.
#ifdef __x86_64__
#define ROBOCACHE_SELECT_ISA(f)                                 \
  (::robocache::cpu_isa() == ::robocache::CpuIsa::kV4   ? v4::f \
   : ::robocache::cpu_isa() == ::robocache::CpuIsa::kV3 ? v3::f \
                                                        : baseline::f)
#else
#define ROBOCACHE_SELECT_ISA(f) (baseline::f)
#endif
