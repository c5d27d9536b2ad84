// Uses a single operation: resamples a gripper, which was recorded at its own rate, at other times.
#include <robocache/ops/resample/resample.hpp>

#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>

int main() try {
  using robocache::CudaStream;
  using robocache::DType;
  using robocache::TensorView;

  // Four samples have the position in m and the force in N, with stamps in nanoseconds. There is a gap of 150 ms before the last one.
  std::array<int64_t, 4> times{0, 50'000'000, 100'000'000, 250'000'000};
  std::array<float, 8> values{0.00f, 0, 0.01f, 2, 0.02f, 4, 0.05f, 10};
  std::array<int64_t, 4> targets{0, 75'000'000, 200'000'000, 300'000'000};
  std::array<float, 8> out{};
  std::array<bool, 4> valid{};

  robocache::InterpolationOptions options;
  options.max_gap = int64_t{100'000'000};
  robocache::resample_trajectories({.values = TensorView::contiguous(values.data(), DType::kFloat32, {4, 2}),
                                    .times = TensorView::contiguous(times.data(), DType::kInt64, {4}),
                                    .target_times = TensorView::contiguous(targets.data(), DType::kInt64, {4}),
                                    .options = options,
                                    .out = TensorView::contiguous(out.data(), DType::kFloat32, {4, 2}),
                                    .valid = TensorView::contiguous(valid.data(), DType::kBool, {4})},
                                   CudaStream{});

  for (size_t t = 0; t < targets.size(); ++t) {
    std::printf("%4lld ms  position %.3f m  force %4.1f N  %s\n", static_cast<long long>(targets[t] / 1'000'000),
                static_cast<double>(out[2 * t]), static_cast<double>(out[2 * t + 1]),
                valid[t] ? "valid" : "not valid: outside the recording or in a gap");
  }
  const bool as_expected = out[2] == 0.015f && out[3] == 3 && valid[0] && valid[1] && !valid[2] && !valid[3];
  return as_expected ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
