// Built once per instruction set, into namespace robocache::ROBOCACHE_ISA.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "robocache/cache/scan_cpu.hpp"

namespace robocache::ROBOCACHE_ISA {
namespace {

// The number of lanes, which is the same on every processor.
template <class Real>
constexpr int64_t kLanes = 64 / static_cast<int64_t>(sizeof(Real));

// An integer as wide as the numbers, so both fill the same number of registers.
template <class Real>
using Count = std::conditional_t<sizeof(Real) == 4, int32_t, int64_t>;

template <class T>
T lesser(T a, T b) {
  return a < b ? a : b;
}

template <class T>
T greater(T a, T b) {
  return a > b ? a : b;
}

template <class Real>
cache::ScanSums<Real> add_up(const Real* numbers, int64_t count, double centre) {
  constexpr int64_t kSide = kLanes<Real>;
  constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
  double sum[kSide] = {};
  double squares[kSide] = {};
  Real least[kSide];
  Real greatest[kSide];
  for (int64_t lane = 0; lane < kSide; ++lane) {
    least[lane] = kInfinity;
    greatest[lane] = -kInfinity;
  }
  const auto add = [&](int64_t lane, Real x) {
    const double off = static_cast<double>(x) - centre;
    sum[lane] += off;
    squares[lane] += off * off;
    least[lane] = lesser(x, least[lane]);
    greatest[lane] = greater(x, greatest[lane]);
  };
  int64_t i = 0;
  for (; i + kSide <= count; i += kSide) {
    for (int64_t lane = 0; lane < kSide; ++lane) add(lane, numbers[i + lane]);
  }
  for (; i < count; ++i) add(i % kSide, numbers[i]);
  for (int64_t half = kSide / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) {
      sum[lane] += sum[lane + half];
      squares[lane] += squares[lane + half];
      least[lane] = lesser(least[lane + half], least[lane]);
      greatest[lane] = greater(greatest[lane + half], greatest[lane]);
    }
  }
  return {sum[0], squares[0], least[0], greatest[0]};
}

template <class Real, class Holds>
void count_where(const Real* numbers, int64_t count, const Real* quantiles, cache::QuantileCounts& counts,
                 const Holds& holds) {
  constexpr int64_t kSide = kLanes<Real>;
  static_assert(cache::kScanQuantiles == 5);
  const Real quantile[5] = {quantiles[0], quantiles[1], quantiles[2], quantiles[3], quantiles[4]};
  Count<Real> found[5][kSide] = {};
  int64_t i = 0;
  for (; i + kSide <= count; i += kSide) {
    for (int64_t lane = 0; lane < kSide; ++lane) {
      const Real x = numbers[i + lane];
      found[0][lane] += holds(x, quantile[0]) ? 1 : 0;
      found[1][lane] += holds(x, quantile[1]) ? 1 : 0;
      found[2][lane] += holds(x, quantile[2]) ? 1 : 0;
      found[3][lane] += holds(x, quantile[3]) ? 1 : 0;
      found[4][lane] += holds(x, quantile[4]) ? 1 : 0;
    }
  }
  for (size_t q = 0; q < 5; ++q) {
    for (int64_t rest = i; rest < count; ++rest) counts[q] += holds(numbers[rest], quantile[q]) ? 1 : 0;
    for (int64_t lane = 0; lane < kSide; ++lane) counts[q] += found[q][lane];
  }
}

template <class Real>
void count_below(const Real* numbers, int64_t count, const Real* quantiles, cache::QuantileCounts& below) {
  count_where(numbers, count, quantiles, below, [](Real x, Real quantile) { return x < quantile; });
}

template <class Real>
void count_at(const Real* numbers, int64_t count, const Real* quantiles, cache::QuantileCounts& at) {
  count_where(numbers, count, quantiles, at, [](Real x, Real quantile) { return x == quantile; });
}

template <class Real>
cache::ScanSteps<Real> find_steps(const Real* numbers, int64_t count) {
  constexpr int64_t kSide = kLanes<Real>;
  constexpr Real kMost = std::numeric_limits<Real>::max();
  alignas(64) Real sizes[cache::kScanBlock];
  Count<Real> moved = 0;
  Count<Real> still = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Real step = numbers[i] - numbers[i - 1];
    const Real size = step < 0 ? -step : step;
    const Real finite = size <= kMost ? size : Real{0};
    still += step == 0 ? 1 : 0;
    moved += finite > 0 ? 1 : 0;
    sizes[i] = finite;
  }
  Real sum[kSide] = {};
  Real greatest[kSide] = {};
  const auto add = [&](int64_t lane, Real size) {
    sum[lane] += size;
    greatest[lane] = greater(size, greatest[lane]);
  };
  int64_t i = 0;
  for (; i + kSide <= count; i += kSide) {
    for (int64_t lane = 0; lane < kSide; ++lane) add(lane, sizes[i + lane]);
  }
  for (; i < count; ++i) add(i % kSide, sizes[i]);
  for (int64_t half = kSide / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) {
      sum[lane] += sum[lane + half];
      greatest[lane] = greater(greatest[lane + half], greatest[lane]);
    }
  }
  return {sum[0], greatest[0], moved, still};
}

template <class Real>
void mark_changes(const Real* __restrict numbers, int64_t count, uint8_t* __restrict changed) {
  for (int64_t i = 0; i < count; ++i) changed[i] = numbers[i] - numbers[i - 1] == 0 ? 0 : 1;
}

template <class Real>
constexpr cache::ScanKernels<Real> kKernels{add_up<Real>, count_below<Real>, count_at<Real>, find_steps<Real>,
                                            mark_changes<Real>};

}  // namespace

const cache::ScanKernels<float> kFloatScan = kKernels<float>;
const cache::ScanKernels<double> kDoubleScan = kKernels<double>;

}  // namespace robocache::ROBOCACHE_ISA
