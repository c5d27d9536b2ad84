// The C2 spline through all samples of a row. Computes its slope at each sample, for methods/cubic.hpp.
//
// If several samples have one time, only the last one is used. Times are in units of the row's span, so slopes are
// values per span. The slopes solve a tridiagonal system, always in float64. Only its right side depends on the values:
// spline_table computes the factors of a row from the times, and spline_sweep uses them for one or more features. The
// influence of a sample falls by at least half with each further sample, so CUDA solves a row in overlapping pieces. A
// NaN still reaches every slope of its feature. Two samples give a straight line and three a parabola, unless the
// boundary is natural.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include "robocache/core/device.hpp"
#include "robocache/core/host_device.hpp"
#include "robocache/core/tensor_view.hpp"
#include "robocache/interpolation/method.hpp"
#include "robocache/interpolation/number.hpp"
#include "robocache/interpolation/pick.hpp"
#include "robocache/interpolation/segment.hpp"

namespace robocache {

// Returns the bytes of memory that a cubic segment needs for its slopes, a multiple of 16; 0 for a causal segment,
// which never mixes two samples.
int64_t spline_workspace_bytes(const Segment& s, int64_t batch);

// Computes the slopes of the cubic segments in `workspace` and points their `slopes` at them. The workspace is
// contiguous, 16-byte aligned, on `device`, and stays alive until the segments have been interpolated. On CUDA it
// queues three kernels per segment on `stream`. Throws ArgumentError if the workspace is missing or too small,
// DeviceError.
void make_splines(std::span<Segment> segments, int64_t batch, const std::optional<TensorView>& workspace, Device device,
                  CudaStream stream);

// The factors of a used sample. The sweep down sets slope = before * (y - y_previous) + after * (y_next - y) - carry *
// (the previous sample's slope so far). The sweep up subtracts back * (the next sample's slope). At the row's ends,
// `before` and `after` belong to the two differences nearest to that end, and `back` (first) or `carry` (last) to the
// neighbour's slope. The first sample's `carry` is the number of used samples.
struct SplineRow {
  double before, after, carry, back;
  int64_t row;  // index in the row of samples; the last entry's is the row's last sample
};

// The arguments of both launches on CUDA, as a plain C struct.
struct SplineCall {
  Segment segment;
  int64_t batch;
  SplineRow* table;  // [batch, samples]
  void* slopes;
};

// The entries that one sample's equation adds to the table. The first equation also fills the entries of the first
// sample, and the last equation those of the last sample.
template <class Scalar>
struct SplineStep {
  Scalar before, after, carry, back;
  Scalar first_before, first_after, first_back;
  Scalar last_before, last_after, last_carry;
};

// Returns the entries that a sample's equation adds. a and b are the gaps before and after the sample; `back` is the
// factor of the previous sample.
//
// The interior equations are lower * s[i-1] + diagonal * s[i] + upper * s[i+1] = p * m[i-1] + q * m[i], where s[i] is
// the slope at sample i and m[i] the slope of the line from it to the next. The conditions of `boundary` eliminate the
// slopes at the ends. Scalar is float64 or a number type based on it.
template <class Scalar>
ROBOCACHE_HD SplineStep<Scalar> spline_step(Scalar a, Scalar b, Scalar back, bool is_first, bool is_last,
                                            Boundary boundary) {
  const bool is_natural = boundary == Boundary::kNatural;
  const Scalar zero(0);
  const Scalar half(0.5);
  const Scalar two(2);
  const Scalar sum = a + b;
  Scalar lower = half * b / sum;
  Scalar upper = half * a / sum;
  Scalar diagonal(1);
  Scalar p = Scalar(1.5) * b / sum;
  Scalar q = Scalar(1.5) * a / sum;
  SplineStep<Scalar> result{zero, zero, zero, zero, zero, zero, zero, zero, zero, zero};
  if (is_first && is_last && !is_natural) {
    lower = upper = zero;
    p = b / sum;
    q = a / sum;
    result.first_before = two / a;
    result.first_back = Scalar(1);
    result.last_after = two / b;
    result.last_carry = Scalar(1);
  } else {
    if (is_first) {
      if (is_natural) {
        diagonal = diagonal - half * lower;
        p = p * half;
        result.first_before = Scalar(1.5) / a;
        result.first_back = half;
      } else {
        upper = a / sum;
        p = b * b / (sum * sum);
        q = a * (two * sum + b) / (sum * sum);
        result.first_before = (a + two * sum) / (sum * a);
        result.first_after = a * a / (sum * b) / b;
        result.first_back = sum / b;
      }
      lower = zero;
    }
    if (is_last) {
      if (is_natural) {
        diagonal = diagonal - half * upper;
        q = q * half;
        result.last_after = Scalar(1.5) / b;
        result.last_carry = half;
      } else {
        lower = b / sum;
        q = a * a / (sum * sum);
        p = b * (two * sum + a) / (sum * sum);
        result.last_before = b * b / (sum * a) / a;
        result.last_after = (b + two * sum) / (sum * b);
        result.last_carry = sum / a;
      }
      upper = zero;
    }
  }
  const Scalar pivot = Scalar(1) / (diagonal - lower * back);
  result.back = upper * pivot;
  result.before = p * pivot / a;
  result.after = q * pivot / b;
  result.carry = lower * pivot;
  return result;
}

// Fills the entries [begin, end) of the interior samples. The first and the last interior sample also fill the entries
// of the row's ends. The computation starts `run_up` samples before `begin`, because each factor depends on the
// previous one. table[0].carry becomes `count`, the number of used samples; their rows must be in the table already.
// gap_after(e) returns the time to the next sample, in spans of the row.
template <class GapAfter>
ROBOCACHE_HD void spline_factors(const GapAfter& gap_after, int64_t count, int64_t begin, int64_t end, int64_t run_up,
                                 Boundary boundary, SplineRow* table) {
  const auto set = [&](int64_t e, double before, double after, double carry, double back) {
    table[e] = {before, after, carry, back, table[e].row};
  };
  if (count < 3) {
    const double slope = count == 2 ? 1 / gap_after(0) : 0;
    set(0, slope, slope, static_cast<double>(count), 0);
    if (count == 2) set(1, slope, slope, 0, 0);
    return;
  }
  int64_t e = begin > run_up + 1 ? begin - run_up : 1;
  if (e >= count - 1) return;
  double back = 0;
  double a = gap_after(e - 1);
  for (; e < end && e < count - 1; ++e) {
    const double b = gap_after(e);
    const bool is_first = e == 1;
    const bool is_last = e == count - 2;
    const SplineStep<double> step = spline_step(a, b, back, is_first, is_last, boundary);
    back = step.back;
    a = b;
    if (e < begin) continue;
    if (is_first) set(0, step.first_before, step.first_after, static_cast<double>(count), step.first_back);
    if (is_last) set(count - 1, step.last_before, step.last_after, step.last_carry, 0);
    set(e, step.before, step.after, step.carry, step.back);
  }
}

// Fills the table for n >= 1 samples: its first entries, one per used sample.
template <class Times>
ROBOCACHE_HD void spline_table(const Times& times, int64_t n, Boundary boundary, SplineRow* table) {
  const auto span = static_cast<double>(later_minus_earlier(times[n - 1], times[int64_t{0}]));
  int64_t count = 0;
  for (int64_t row = 0; row < n; ++row) {
    if (row + 1 == n || !(times[row + 1] == times[row])) table[count++].row = row;
  }
  const auto gap_after = [&](int64_t e) {
    return static_cast<double>(later_minus_earlier(times[table[e + 1].row], times[table[e].row])) / span;
  };
  spline_factors(gap_after, count, 1, count, 0, boundary, table);
}

// Computes the slopes of the used samples [begin, end), for kLanes neighbouring features. The sweep down starts
// `overlap` samples before them, the sweep up as many after them; samples farther away are ignored. value(row, lane)
// returns a sample. down_slope(e, lane) stores the slope of the sweep down, in the work type, and slope(e, lane)
// the final slope; both may use the same memory. Returns whether the sweep down found a NaN.
template <int kLanes, class Value, class DownSlope, class Slope>
ROBOCACHE_HD bool spline_sweep(const SplineRow* __restrict__ table, int64_t begin, int64_t end, int64_t overlap,
                               const Value& value, const DownSlope& down_slope, const Slope& slope) {
  using Work = std::remove_reference_t<decltype(down_slope(0, 0))>;
  const auto count = static_cast<int64_t>(table[0].carry);
  if (count < 2 || begin >= count) return false;
  if (end > count) end = count;
  const int64_t sweep_end = end + overlap < count - 1 ? end + overlap : count - 1;  // at most all interior samples
  const SplineRow first_entry = table[0];
  double current[kLanes];
  double before[kLanes];  // the difference before the sample
  double after[kLanes];
  double result[kLanes];
  double first[kLanes];  // the slope of the row's first sample
  int64_t e = begin > overlap + 1 ? begin - overlap : 1;
  for (int lane = 0; lane < kLanes; ++lane) {
    current[lane] = value(table[e].row, lane);
    after[lane] = current[lane] - value(table[e - 1].row, lane);
    before[lane] = result[lane] = 0;
    first[lane] = first_entry.after * after[lane];  // a row of two samples
  }
#ifdef __CUDA_ARCH__
#pragma unroll 4
#endif
  for (; e < sweep_end; ++e) {
    const SplineRow row = table[e];
    const int64_t next = table[e + 1].row;
    for (int lane = 0; lane < kLanes; ++lane) {
      const double y = value(next, lane);
      before[lane] = after[lane];
      after[lane] = y - current[lane];
      current[lane] = y;
      result[lane] = row.before * before[lane] + row.after * after[lane] - row.carry * result[lane];
    }
    for (int lane = 0; lane < kLanes && e == 1; ++lane) {
      first[lane] = first_entry.before * before[lane] + first_entry.after * after[lane];
    }
    for (int lane = 0; lane < kLanes && e >= begin; ++lane) down_slope(e, lane) = static_cast<Work>(result[lane]);
  }
  bool has_nan = false;
  for (int lane = 0; lane < kLanes; ++lane) has_nan = has_nan || result[lane] != result[lane];
  if (end == count) {
    const SplineRow row = table[count - 1];
    for (int lane = 0; lane < kLanes; ++lane) {
      slope(count - 1, lane) =
          static_cast<Work>(row.before * before[lane] + row.after * after[lane] - row.carry * result[lane]);
    }
  }
#ifdef __CUDA_ARCH__
#pragma unroll 4
#endif
  for (e = sweep_end - 1; e >= begin && e >= 1; --e) {
    const double back = table[e].back;
    for (int lane = 0; lane < kLanes; ++lane) {
      if (e < sweep_end - 1) result[lane] = static_cast<double>(down_slope(e, lane)) - back * result[lane];
      if (e < end) slope(e, lane) = static_cast<Work>(result[lane]);
    }
  }
  for (int lane = 0; lane < kLanes && begin == 0; ++lane) {  // rounds to Work twice, as the sweeps do for other samples
    slope(0, lane) =
        static_cast<Work>(static_cast<double>(static_cast<Work>(first[lane])) - first_entry.back * result[lane]);
  }
  return has_nan;
}

// Computes the slopes of a whole row. Slopes of unused samples are not written.
template <int kLanes, class T, class Work>
ROBOCACHE_HD void spline_sweep_row(const SplineRow* table, const T* values, int64_t values_sample,
                                   int64_t values_feature, Work* slopes, int64_t slopes_sample) {
  const auto value = [&](int64_t row, int lane) {
    return to_work<double>(values[row * values_sample + lane * values_feature]);
  };
  const auto slope = [&](int64_t e, int lane) -> Work& { return slopes[table[e].row * slopes_sample + lane]; };
  spline_sweep<kLanes>(table, 0, INT64_MAX, 0, value, slope, slope);
}

}  // namespace robocache
