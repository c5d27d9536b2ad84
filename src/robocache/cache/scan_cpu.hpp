// Sums for a scan of a column, in vector code. No result depends on the instruction set.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "robocache/core/cpu_isa.hpp"

namespace robocache::cache {

// The most numbers per call.
inline constexpr int64_t kScanBlock = 1024;

// The number of quantiles that numbers are compared with.
inline constexpr size_t kScanQuantiles = 5;
using QuantileCounts = std::array<int64_t, kScanQuantiles>;

// `sum` and `squares` are sums over (number - centre). If a number is NaN, these two are NaN; the other members ignore
// it.
template <class Real>
struct ScanSums {
  double sum, squares;
  Real least, greatest;
};

// `sum` and `greatest` are over the sizes of finite steps. `moved` counts the finite steps that are not 0.
template <class Real>
struct ScanSteps {
  Real sum, greatest;
  int64_t moved, still;
};

// Kernels for float or double. Each processes `count` numbers.
template <class Real>
struct ScanKernels {
  ScanSums<Real> (*add_up)(const Real* numbers, int64_t count, double centre);

  // Count the numbers below each quantile, and those equal to it.
  void (*count_below)(const Real* numbers, int64_t count, const Real* quantiles, QuantileCounts& below);
  void (*count_at)(const Real* numbers, int64_t count, const Real* quantiles, QuantileCounts& at);

  // Find the step to each number from its previous number, and whether it is not 0.
  ScanSteps<Real> (*find_steps)(const Real* numbers, int64_t count);
  void (*mark_changes)(const Real* numbers, int64_t count, uint8_t* changed);
};

}  // namespace robocache::cache

namespace robocache {
namespace baseline {
extern const cache::ScanKernels<float> kFloatScan;
extern const cache::ScanKernels<double> kDoubleScan;
}  // namespace baseline
namespace v3 {
extern const cache::ScanKernels<float> kFloatScan;
extern const cache::ScanKernels<double> kDoubleScan;
}  // namespace v3
namespace v4 {
extern const cache::ScanKernels<float> kFloatScan;
extern const cache::ScanKernels<double> kDoubleScan;
}  // namespace v4
}  // namespace robocache

namespace robocache::cache {

template <class Real>
const ScanKernels<Real>& scan_kernels() {
  if constexpr (sizeof(Real) == 4) {
    return ROBOCACHE_SELECT_ISA(kFloatScan);
  } else {
    return ROBOCACHE_SELECT_ISA(kDoubleScan);
  }
}

}  // namespace robocache::cache
