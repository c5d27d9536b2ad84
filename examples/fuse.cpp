// Fuses two sensors, each with a clock of its own, at the times that a policy asks for.
#include <robocache/ops/fuse/fuse.hpp>

#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>

int main() try {
  using robocache::CudaStream;
  using robocache::DType;
  using robocache::TensorView;

  // An IMU has stamps in seconds and a latency of 50 ms. A gripper has a sample, with a stamp in nanoseconds, when it moves.
  std::array<float, 3> imu{0, 10, 20};
  std::array<double, 3> imu_times{0.05, 0.15, 0.25};
  std::array<float, 2> gripper{1, 0};
  std::array<int64_t, 2> gripper_times{0, 100'000'000};
  std::array<double, 3> targets{0, 0.05, 0.15};
  std::array<float, 6> out{};

  const std::array<robocache::FuseStream, 2> streams{{
      {.name = "imu",
       .values = TensorView::contiguous(imu.data(), DType::kFloat32, {3, 1}),
       .times = TensorView::contiguous(imu_times.data(), DType::kFloat64, {3}),
       .offset = 0.05},
      {.name = "gripper",
       .values = TensorView::contiguous(gripper.data(), DType::kFloat32, {2, 1}),
       .times = TensorView::contiguous(gripper_times.data(), DType::kInt64, {2}),
       .options = {.method = robocache::InterpolationMethod::kPrevious}},
  }};
  const TensorView fused = TensorView::contiguous(out.data(), DType::kFloat32, {3, 2});
  robocache::fuse_multimodal(streams, TensorView::contiguous(targets.data(), DType::kFloat64, {3}), {&fused, 1},
                             CudaStream{});

  for (size_t t = 0; t < targets.size(); ++t) {
    std::printf("%3.0f ms  imu %4.1f  gripper %.0f\n", targets[t] * 1e3, static_cast<double>(out[2 * t]),
                static_cast<double>(out[2 * t + 1]));
  }
  const std::array<float, 6> expected{0, 1, 5, 1, 15, 0};
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i] < expected[i] - 1e-4f || out[i] > expected[i] + 1e-4f) return 1;
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
