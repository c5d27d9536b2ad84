#include "robocache/interpolation/spline.hpp"

#include <algorithm>
#include <type_traits>

#include "robocache/core/arguments.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/core/thread_pool.hpp"

namespace robocache {
namespace {

int64_t slopes_bytes(const Segment& s, int64_t batch) {
  const int64_t bytes = batch * s.samples * s.features * (works_in_double(s) ? 8 : 4);
  return (bytes + 15) / 16 * 16;
}

template <class Clock>
void fill_table(const SplineCall& call, int64_t batch, SplineRow* table) {
  const Segment& s = call.segment;
  const ClockRow<Clock> times{static_cast<const Clock*>(s.times) + batch * s.times_batch, s.times_sample};
  spline_table(times, row_length(s, batch), s.boundary, table);
}

template <class T>
void sweep_row(const SplineCall& call, int64_t batch, const SplineRow* table) {
  using Work = WorkType<T>;
  const Segment& s = call.segment;
  const T* const values = static_cast<const T*>(s.values) + batch * s.values_batch;
  Work* const slopes = static_cast<Work*>(call.slopes) + batch * s.samples * s.features;
  int64_t d = 0;
  const auto sweep = [&](auto lanes) {
    for (; d + lanes <= s.features; d += lanes) {
      spline_sweep_row<lanes>(table, values + d * s.values_feature, s.values_sample, s.values_feature, slopes + d,
                              s.features);
    }
  };
  sweep(std::integral_constant<int, 8>{});
  sweep(std::integral_constant<int, 1>{});
}

void spline_row(const SplineCall& call, int64_t batch) {
  const Segment& s = call.segment;
  if (row_length(s, batch) == 0) return;
  SplineRow* const table = call.table + batch * s.samples;
  with_clock(s.clock_dtype, [&](auto clock) { fill_table<decltype(clock)>(call, batch, table); });
  with_floating(s.value_dtype, [&](auto element) { sweep_row<decltype(element)>(call, batch, table); });
}

void make_spline(Segment& s, int64_t batch, char* workspace, Device device, CudaStream stream) {
  const SplineCall call{s, batch, reinterpret_cast<SplineRow*>(workspace + slopes_bytes(s, batch)), workspace};
  if (device.is_cuda()) {
    using Launch = int(const SplineCall*, int32_t device, void* stream);
    static Launch* const launch = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_spline"));
    check_cuda(launch(&call, device.index, stream.handle), "spline");
  } else {
    const int64_t grain = std::clamp<int64_t>(4096 / std::max<int64_t>(1, s.samples * s.features), 1, 4096);
    parallel_for(batch, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) spline_row(call, row);
    });
  }
  s.slopes = workspace;
}

}  // namespace

int64_t spline_workspace_bytes(const Segment& s, int64_t batch) {
  if (s.causal) return 0;
  const int64_t bytes = slopes_bytes(s, batch) + batch * s.samples * static_cast<int64_t>(sizeof(SplineRow));
  return (bytes + 15) / 16 * 16;
}

void make_splines(std::span<Segment> segments, int64_t batch, const std::optional<TensorView>& workspace, Device device,
                  CudaStream stream) {
  const auto bytes_of = [&](const Segment& s) {
    return s.method == InterpolationMethod::kCubic ? spline_workspace_bytes(s, batch) : 0;
  };
  int64_t needed = 0;
  for (const Segment& s : segments) needed += bytes_of(s);
  auto* memory = static_cast<char*>(checked_workspace(workspace, needed, 16, device));
  for (Segment& s : segments) {
    const int64_t bytes = bytes_of(s);
    if (bytes > 0) make_spline(s, batch, memory, device, stream);
    memory += bytes;
  }
}

}  // namespace robocache
