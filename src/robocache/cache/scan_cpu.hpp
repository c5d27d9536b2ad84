// What a pass over a column's numbers adds up, in vector code. No result depends on the instruction set.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "robocache/core/cpu_isa.hpp"

namespace robocache::cache {

// Numbers that are looked at at once: at most so many of a call.
inline constexpr int64_t kScanBlock = 1024;

// The quantiles that numbers are counted against.
inline constexpr size_t kScanPlaces = 5;
using PlaceCounts = std::array<int64_t, kScanPlaces>;

// `sum` and `squares` are of what numbers are off a centre. With a NaN among them the first two are NaN, and the others leave it out.
template <class Real>
struct ScanSums {
  double sum, squares;
  Real least, greatest;
};

// `sum` and `greatest` are of their sizes, without those that are not finite; `moved` counts the finite ones but 0.
template <class Real>
struct ScanSteps {
  Real sum, greatest;
  int64_t moved, still;
};

// Of float or double; each of `count` numbers.
template <class Real>
struct ScanKernels {
  ScanSums<Real> (*add_up)(const Real* numbers, int64_t count, double centre);

  // Counts those below each place, and those that are it.
  void (*count_below)(const Real* numbers, int64_t count, const Real* places, PlaceCounts& below);
  void (*count_at)(const Real* numbers, int64_t count, const Real* places, PlaceCounts& at);

  // The steps that lead to them, the first from the number before; and whether each is another than 0.
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
