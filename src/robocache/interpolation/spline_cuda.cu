#include "robocache/core/launch_cuda.cuh"
#include "robocache/interpolation/spline_cuda.cuh"

namespace robocache::interpolation_cuda {
namespace {

// The influence of a sample falls by at least half with each further sample. So a row is solved in pieces. Each piece
// starts before its first sample and ends after its last one. Samples farther away do not change the result, unless
// they are NaN.
constexpr int kWarp = 32;
constexpr int kTableThreads = 128;
constexpr int kRun = 16;  // samples in a thread's piece of the table
// The samples by which a piece of the table begins earlier. Each divides the influence by four, so in float64 samples
// before them would change nothing.
constexpr int kRunUp = 32;
constexpr int kPiece = 128;  // samples of a warp's piece with one overlap
template <class Work>
constexpr int kOverlap = sizeof(Work) * 8;

// Writes the used rows into the table, in order, and returns their number. The whole block calls it.
template <class Clock>
__device__ int32_t set_rows(const ClockRow<Clock>& times, int32_t n, SplineRow* table) {
  __shared__ int32_t warp_counts[kTableThreads / kWarp];
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  int32_t total = 0;
  for (int32_t base = 0; base < n; base += kTableThreads) {
    const int32_t i = base + thread;
    const bool is_used = i < n && (i + 1 == n || !(times[i + 1] == times[i]));
    const unsigned votes = __ballot_sync(~0u, is_used);
    if (thread % kWarp == 0) warp_counts[thread / kWarp] = __popc(votes);
    __syncthreads();
    int32_t entry = total + __popc(votes & ((1u << thread % kWarp) - 1));
    for (int32_t w = 0; w < kTableThreads / kWarp; ++w) {
      if (w < thread / kWarp) entry += warp_counts[w];
      total += warp_counts[w];
    }
    if (is_used) table[entry].row = i;
    __syncthreads();
  }
  return total;
}

// A block handles a row. sweep_kernel sets the last entry's `back` if a value is NaN.
template <class Clock>
__global__ void __launch_bounds__(kTableThreads) table_kernel(const __grid_constant__ SplineCall call) {
  const Segment& s = call.segment;
  for (int64_t batch = blockIdx.x; batch < call.batch; batch += gridDim.x) {
    const auto n = static_cast<int32_t>(row_length(s, batch));
    if (n == 0) continue;
    const ClockRow<Clock> times{static_cast<const Clock*>(s.times) + batch * s.times_batch, s.times_sample};
    SplineRow* const table = call.table + batch * s.samples;
    const int32_t count = set_rows(times, n, table);
    const auto span = static_cast<double>(later_minus_earlier(times[n - 1], times[0]));
    const auto gap_after = [&](int32_t e) {
      return static_cast<double>(later_minus_earlier(times[table[e + 1].row], times[table[e].row])) / span;
    };
    int32_t begin = 1 + static_cast<int32_t>(threadIdx.x) * kRun;
    do {
      spline_factors(gap_after, count, begin, begin + kRun, kRunUp, s.boundary, table);
      begin += kTableThreads * kRun;
    } while (begin < count - 1);
    __syncthreads();
  }
}

// A warp handles a piece of a row, and each thread a feature, so neighbouring threads read neighbouring memory.
template <class T, class Work, int kWarps = 8 / sizeof(Work)>
__global__ void __launch_bounds__(kWarps* kWarp) sweep_kernel(const __grid_constant__ SplineCall call) {
  constexpr int kWithoutOverlap = kPiece - kOverlap<Work>;
  __shared__ Work memory[kWarps][kPiece][kWarp];
  const Segment& s = call.segment;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int64_t columns = (s.features + kWarp - 1) / kWarp;
  const int64_t pieces = (s.samples + kWithoutOverlap - 1) / kWithoutOverlap;
  const int64_t piece_number = blockIdx.x * int64_t{kWarps} + thread / kWarp;
  const int64_t batch = piece_number / (columns * pieces);
  const int64_t feature = piece_number % columns * kWarp + thread % kWarp;
  if (batch >= call.batch || feature >= s.features || row_length(s, batch) == 0) return;
  SplineRow* const table = call.table + batch * s.samples;
  const T* __restrict__ const values =
      static_cast<const T*>(s.values) + batch * s.values_batch + feature * s.values_feature;
  Work* __restrict__ const slopes = static_cast<Work*>(call.slopes) + batch * s.samples * s.features + feature;
  const int64_t begin = piece_number / columns % pieces * kWithoutOverlap;
  const bool has_nan = spline_sweep<1>(
      table, begin, begin + kWithoutOverlap, kOverlap<Work>,
      [&](int64_t row, int) { return to_work<double>(values[row * s.values_sample]); },
      [&](int64_t e, int) -> Work& { return memory[thread / kWarp][e - begin][thread % kWarp]; },
      [&](int64_t e, int) -> Work& { return slopes[table[e].row * s.features]; });
  if (has_nan) table[static_cast<int64_t>(table[0].carry) - 1].back = 1;
}

// Writes NaN to every slope of a feature that has a NaN. A block handles a row. Nearly all rows need nothing.
template <class T, class Work>
__global__ void __launch_bounds__(kTableThreads) spread_nan_kernel(const __grid_constant__ SplineCall call) {
  const Segment& s = call.segment;
  for (int64_t batch = blockIdx.x; batch < call.batch; batch += gridDim.x) {
    const SplineRow* const table = call.table + batch * s.samples;
    const auto count = row_length(s, batch) == 0 ? 0 : static_cast<int32_t>(table[0].carry);
    if (count < 3 || table[count - 1].back == 0) continue;  // with two samples, both slopes are NaN already
    for (int64_t feature = threadIdx.x; feature < s.features; feature += kTableThreads) {
      const T* const values = static_cast<const T*>(s.values) + batch * s.values_batch + feature * s.values_feature;
      Work* const slopes = static_cast<Work*>(call.slopes) + batch * s.samples * s.features + feature;
      bool has_nan = false;
      for (int32_t e = 0; e < count; ++e) {
        const auto y = to_work<Work>(values[table[e].row * s.values_sample]);
        has_nan = has_nan || y != y;
      }
      for (int32_t e = 0; has_nan && e < count; ++e) slopes[table[e].row * s.features] = absent_value<Work>();
    }
  }
}

template <class T, class Work>
void launch_sweep(const SplineCall& call, unsigned rows, cudaStream_t stream) {
  const Segment& s = call.segment;
  constexpr int kWarps = 8 / sizeof(Work);
  const int64_t pieces = (s.samples + kPiece - kOverlap<Work> - 1) / (kPiece - kOverlap<Work>);
  const int64_t warps = call.batch * pieces * ((s.features + kWarp - 1) / kWarp);
  sweep_kernel<T, Work><<<blocks_for(warps, kWarps), kWarps * kWarp, 0, stream>>>(call);
  spread_nan_kernel<T, Work><<<rows, kTableThreads, 0, stream>>>(call);
}

}  // namespace

cudaError_t launch_splines(const SplineCall& call, bool in_double, cudaStream_t stream) {
  const Segment& s = call.segment;
  if (call.batch * s.samples * s.features == 0) return cudaSuccess;
  const unsigned rows = blocks_for(call.batch, 1);
  with_clock(s.clock_dtype,
             [&](auto clock) { table_kernel<decltype(clock)><<<rows, kTableThreads, 0, stream>>>(call); });
  with_floating(s.value_dtype, [&](auto element) {
    using T = decltype(element);
    if (in_double) return launch_sweep<T, double>(call, rows, stream);
    launch_sweep<T, WorkType<T>>(call, rows, stream);
  });
  return cudaGetLastError();
}

}  // namespace robocache::interpolation_cuda

extern "C" __attribute__((visibility("default"))) int robocache_cuda_spline(const robocache::SplineCall* call,
                                                                            int32_t device, void* stream) {
  using namespace robocache;
  const DeviceGuard guard(device);
  if (guard.code() != cudaSuccess) return guard.code();
  return interpolation_cuda::launch_splines(*call, false, static_cast<cudaStream_t>(stream));
}
