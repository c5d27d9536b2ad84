#include "robocache/interpolation/interpolate_backward.hpp"

#include "robocache/core/arguments.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/core/cpu_isa.hpp"
#include "robocache/core/thread_pool.hpp"
#include "robocache/interpolation/spline.hpp"

namespace robocache {

int64_t spline_gradient_bytes(const Segment& s, int64_t batch) {
  if (s.causal) return 0;
  const auto row_bytes = static_cast<int64_t>(sizeof(SplineRow) + sizeof(SplineRowGradient));
  const int64_t bytes = batch * s.samples * (row_bytes + 2 * s.features * static_cast<int64_t>(sizeof(double)));
  return (bytes + 15) / 16 * 16;
}

void interpolate_backward(const Interpolation& call, std::span<SegmentGradient> gradients,
                          const std::optional<TensorView>& workspace, Device device, CudaStream stream) {
  if (call.batch == 0 || call.targets_count == 0 || call.segment_count == 0) return;
  const auto bytes_of = [&](const Segment& s) {
    return s.method == InterpolationMethod::kCubic ? spline_gradient_bytes(s, call.batch) : 0;
  };
  int64_t needed = 0;
  for (int32_t i = 0; i < call.segment_count; ++i) needed += bytes_of(call.segments[i]);
  auto* memory = static_cast<char*>(checked_workspace(workspace, needed, 16, device));
  for (int32_t i = 0; i < call.segment_count; ++i) {
    const Segment& s = call.segments[i];
    if (bytes_of(s) == 0) continue;
    SplineGradientMemory& spline = gradients[static_cast<size_t>(i)].spline;
    spline.slopes = reinterpret_cast<double*>(memory);
    spline.slopes_gradient = spline.slopes + call.batch * s.samples * s.features;
    spline.table_gradient =
        reinterpret_cast<SplineRowGradient*>(spline.slopes_gradient + call.batch * s.samples * s.features);
    spline.table = reinterpret_cast<SplineRow*>(spline.table_gradient + call.batch * s.samples);
    memory += bytes_of(s);
  }
  if (device.is_cuda()) {
    using Launch = int(const Interpolation*, const SegmentGradient*, int32_t device, void* stream);
    static Launch* const launch = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_interpolate_backward"));
    check_cuda(launch(&call, gradients.data(), device.index, stream.handle), "interpolate_backward");
    return;
  }
  InterpolateRowsBackward* const kernel = ROBOCACHE_SELECT_ISA(interpolate_rows_backward);
  // One thread owns a row's sums, so the number of threads does not change them.
  parallel_for(call.batch, 1, [&](int64_t begin, int64_t end) { kernel(call, gradients.data(), begin, end); });
}

}  // namespace robocache
