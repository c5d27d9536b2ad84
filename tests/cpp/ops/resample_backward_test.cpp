// Compares the gradient of resample_trajectories with finite differences of the call itself, on the CPU and on CUDA.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "robocache/interpolation/validate.hpp"
#include "robocache/ops/resample/resample.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/random_data.hpp"

namespace robocache {
namespace {

using test::DeviceArray;
using test::Random;

constexpr int64_t kBatch = 2;
constexpr int64_t kSamples = 9;
constexpr int64_t kTargets = 11;
constexpr int64_t kFeatures = 4;

// All arrays are float64. Times and targets ascend in each row and are well apart, so that small steps do not reorder
// them.
struct GradientProblem {
  std::vector<double> values, times, targets, weights;  // the loss is the sum of weights * out

  explicit GradientProblem(Random& random) {
    for (int64_t b = 0; b < kBatch; ++b) {
      double t = random.between(-1, 1);
      for (int64_t i = 0; i < kSamples; ++i) times.push_back(t += random.between(0.5, 1.5));
      for (int64_t i = 0; i < kTargets; ++i) {
        const auto row = static_cast<size_t>(b * kSamples + random.below(kSamples));
        targets.push_back(times[row] + random.between(-0.45, 0.45) + 0.01);
      }
    }
    for (int64_t i = 0; i < kBatch * kSamples * kFeatures; ++i) values.push_back(random.between(-1, 1));
    for (int64_t i = 0; i < kBatch * kTargets * kFeatures; ++i) weights.push_back(random.between(-1, 1));
  }
};

std::optional<DeviceArray<uint8_t>> memory(int64_t bytes, Device device) {
  if (bytes == 0) return std::nullopt;
  return DeviceArray<uint8_t>(std::vector<uint8_t>(static_cast<size_t>(bytes)), DType::kUInt8, {bytes}, device);
}

std::optional<TensorView> view_of(const std::optional<DeviceArray<uint8_t>>& memory) {
  return memory ? std::optional(memory->view()) : std::nullopt;
}

double loss(const GradientProblem& p, const InterpolationOptions& options, Device device) {
  const DeviceArray<double> values(p.values, DType::kFloat64, {kBatch, kSamples, kFeatures}, device);
  const DeviceArray<double> times(p.times, DType::kFloat64, {kBatch, kSamples}, device);
  const DeviceArray<double> targets(p.targets, DType::kFloat64, {kBatch, kTargets}, device);
  const DeviceArray<double> out(std::vector<double>(p.weights.size()), DType::kFloat64, {kBatch, kTargets, kFeatures},
                                device);
  const auto workspace = memory(stream_workspace_bytes(values.view(), options), device);
  resample_trajectories({.values = values.view(),
                         .times = times.view(),
                         .target_times = targets.view(),
                         .options = options,
                         .out = out.view(),
                         .workspace = view_of(workspace)},
                        CudaStream{});
  const std::vector<double> result = out.read();
  double sum = 0;
  for (size_t i = 0; i < result.size(); ++i) {
    if (!std::isnan(result[i])) sum += p.weights[i] * result[i];
  }
  return sum;
}

class ResampleBackward : public test::OnDevice {};
ROBOCACHE_ON_EACH_DEVICE(ResampleBackward);

TEST_P(ResampleBackward, IsTheSlopeOfTheLoss) {
  using M = InterpolationMethod;
  Random random(71);
  const double step = 1e-6;
  for (const M method : {M::kLinear, M::kNearest, M::kPrevious, M::kNext, M::kPchip, M::kAkima, M::kCubic, M::kSlerp}) {
    for (const Extrapolate extrapolate : {Extrapolate::kClamp, Extrapolate::kNan, Extrapolate::kLinear}) {
      if (is_step(method) && extrapolate == Extrapolate::kLinear) continue;
      const InterpolationOptions options{.method = method, .extrapolate = extrapolate};
      GradientProblem p(random);
      const DeviceArray<double> values(p.values, DType::kFloat64, {kBatch, kSamples, kFeatures}, device());
      const DeviceArray<double> times(p.times, DType::kFloat64, {kBatch, kSamples}, device());
      const DeviceArray<double> targets(p.targets, DType::kFloat64, {kBatch, kTargets}, device());
      // There are gaps between the features, as in a view of wider rows.
      const DeviceArray<double> out_gradient(p.weights, DType::kFloat64, {kBatch, kTargets, kFeatures}, device(),
                                             {kTargets * kFeatures * 3, kFeatures * 3, 3});
      const DeviceArray<double> values_gradient(std::vector<double>(p.values.size()), DType::kFloat64,
                                                {kBatch, kSamples, kFeatures}, device());
      const DeviceArray<double> times_gradient(std::vector<double>(p.times.size()), DType::kFloat64, {kBatch, kSamples},
                                               device());
      const DeviceArray<double> targets_gradient(std::vector<double>(p.targets.size()), DType::kFloat64,
                                                 {kBatch, kTargets}, device());
      const auto workspace = memory(stream_gradient_workspace_bytes(values.view(), options), device());
      resample_trajectories_backward(
          {.values = values.view(),
           .times = times.view(),
           .target_times = targets.view(),
           .options = options,
           .workspace = view_of(workspace)},
          {out_gradient.view(), values_gradient.view(), times_gradient.view(), targets_gradient.view()}, CudaStream{});
      const auto compare = [&](std::vector<double> GradientProblem::* input, const std::vector<double>& gradient,
                               const char* what) {
        for (size_t i = 0; i < gradient.size(); ++i) {
          GradientProblem q = p;
          (q.*input)[i] += step;
          const double above = loss(q, options, device());
          (q.*input)[i] -= 2 * step;
          const double slope = (above - loss(q, options, device())) / (2 * step);
          // Allows for the rounding of the loss divided by the step, and for third derivatives of some hundreds times
          // the step's square.
          EXPECT_NEAR(gradient[i], slope, 1e-6 * (1 + std::abs(slope)))
              << what << " " << i << ", method " << static_cast<int>(method) << ", extrapolate "
              << static_cast<int>(extrapolate);
        }
      };
      compare(&GradientProblem::values, values_gradient.read(), "values");
      compare(&GradientProblem::times, times_gradient.read(), "times");
      compare(&GradientProblem::targets, targets_gradient.read(), "targets");
    }
  }
}

TEST_P(ResampleBackward, AddsToTheOldContent) {
  const DeviceArray<float> values({1, 2}, DType::kFloat32, {2, 1}, device());
  const DeviceArray<float> times({0, 4}, DType::kFloat32, {2}, device());
  const DeviceArray<float> targets({1}, DType::kFloat32, {1}, device());
  const DeviceArray<float> out_gradient({8}, DType::kFloat32, {1, 1}, device());
  const DeviceArray<float> values_gradient({100, 200}, DType::kFloat32, {1, 2, 1}, device());
  const DeviceArray<double> times_gradient({10, 20}, DType::kFloat64, {1, 2}, device());
  const DeviceArray<double> targets_gradient({30}, DType::kFloat64, {1, 1}, device());
  resample_trajectories_backward(
      {.values = values.view(), .times = times.view(), .target_times = targets.view()},
      {out_gradient.view(), values_gradient.view(), times_gradient.view(), targets_gradient.view()}, CudaStream{});
  EXPECT_EQ(values_gradient.read(), (std::vector<float>{106, 202}));
  EXPECT_EQ(times_gradient.read(), (std::vector<double>{8.5, 19.5}));
  EXPECT_EQ(targets_gradient.read(), (std::vector<double>{32}));
}

TEST_P(ResampleBackward, RefusalsNameTheArgument) {
  const DeviceArray<float> values({1, 2}, DType::kFloat32, {2, 1}, device());
  const DeviceArray<int64_t> stamps({0, 4}, DType::kInt64, {2}, device());
  const DeviceArray<float> narrow({8, 8}, DType::kFloat32, {2, 1}, device());
  const DeviceArray<double> wide({8, 8}, DType::kFloat64, {2, 1}, device());
  const DeviceArray<double> times_gradient({0, 0}, DType::kFloat64, {1, 2}, device());
  const auto refusal = [&](const TensorView& out_gradient, const std::optional<TensorView>& values_gradient,
                           const std::optional<TensorView>& clock_gradient) -> std::string {
    try {
      resample_trajectories_backward({.values = values.view(), .times = stamps.view(), .target_times = stamps.view()},
                                     {out_gradient, values_gradient, clock_gradient}, CudaStream{});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal(wide.view(), std::nullopt, std::nullopt).find("out_gradient: "), std::string::npos);
  EXPECT_NE(refusal(narrow.view(), wide.view(), std::nullopt).find("values_gradient: expected float32"),
            std::string::npos);
  EXPECT_NE(refusal(narrow.view(), narrow.view(), std::nullopt).find("values_gradient: expected [1, 2, 1]"),
            std::string::npos);
  EXPECT_NE(refusal(narrow.view(), std::nullopt, times_gradient.view()).find("times_gradient: an int64 clock"),
            std::string::npos);
}

}  // namespace
}  // namespace robocache
