#include "robocache/core/cpu_isa.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace robocache {

CpuIsa cpu_isa() {
  static const CpuIsa isa = [] {
    CpuIsa newest = CpuIsa::kBaseline;
#ifdef __x86_64__
    if (__builtin_cpu_supports("x86-64-v3")) newest = CpuIsa::kV3;
    if (__builtin_cpu_supports("x86-64-v4")) newest = CpuIsa::kV4;
#endif
    const char* cap = std::getenv("ROBOCACHE_CPU_ISA");
    if (cap == nullptr) return newest;
    const std::string_view name(cap);
    if (name == "baseline") return CpuIsa::kBaseline;
    return name == "v3" ? std::min(newest, CpuIsa::kV3) : newest;
  }();
  return isa;
}

}  // namespace robocache
