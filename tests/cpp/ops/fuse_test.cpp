#include "robocache/ops/fuse/fuse.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "robocache/interpolation/interpolate.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/not_finite.hpp"
#include "tests/cpp/random_data.hpp"
#include "tests/cpp/reference.hpp"

namespace robocache {
namespace {

using test::DeviceArray;
using test::Element;
using test::kMethods;
using test::kNan;
using test::Random;

class Fuse : public test::OnDevice {
 protected:
  static DeviceArray<double> doubles(const std::vector<double>& values, const std::vector<int64_t>& shape,
                                     const std::vector<int64_t>& strides = {}) {
    return {values, DType::kFloat64, shape, device(), strides};
  }
};
ROBOCACHE_ON_EACH_DEVICE(Fuse);

TEST_P(Fuse, TheExampleOfTheHeader) {
  const DeviceArray<float> imu({0, 10, 20}, DType::kFloat32, {3, 1}, device());
  const DeviceArray<float> gripper({1, 0}, DType::kFloat32, {2, 1}, device());
  const DeviceArray<double> imu_times = doubles({0.0, 0.1, 0.2}, {3});
  const DeviceArray<int64_t> gripper_times({0, 100'000'000}, DType::kInt64, {2}, device());
  const DeviceArray<double> targets = doubles({0.05, 0.15}, {2});
  const DeviceArray<float> out({7, 7, 7, 7}, DType::kFloat32, {2, 2}, device());
  const FuseStream streams[] = {{.name = "imu", .values = imu.view(), .times = imu_times.view()},
                                {.name = "gripper",
                                 .values = gripper.view(),
                                 .times = gripper_times.view(),
                                 .options = {.method = InterpolationMethod::kPrevious}}};
  fuse_multimodal(streams, targets.view(), {&out.view(), 1}, CudaStream{});
  EXPECT_EQ(out.read(), (std::vector<float>{5, 1, 15, 0}));
}

// One stream of a random call: its arrays, and the reference's results.
template <class V, class C>
struct RandomStream {
  using Value = typename V::Type;
  using Clock = typename C::Type;
  static constexpr bool kDouble = std::is_same_v<Value, double>;
  using Work = std::conditional_t<kDouble, double, float>;

  RandomStream(Random& random, int64_t batch_, const std::vector<Clock>& clock_times, Device device)
      : batch(batch_),
        samples(static_cast<int64_t>(clock_times.size())),
        features(1 + random.below(6)),
        values(random.values(V{}, batch * samples * features)),
        times(clock_times),
        scale(random_scale(random, features)),
        values_array(values, V::kDType, {batch, samples, features}, device),
        times_array(times, C::kDType, {samples}, device),
        scale_array(scale, kDouble ? DType::kFloat64 : DType::kFloat32, {features}, device) {
    options.method = kMethods[random.below(4)];
    if (random.one_in(2)) options.extrapolate = Extrapolate::kNan;
    options.causal = options.method != InterpolationMethod::kNext && random.one_in(3);
    shift = random.between(-3, 3);
  }

  FuseStream stream() const {
    return {.values = values_array.view(),
            .times = times_array.view(),
            .options = options,
            .scale = scale_array.view(),
            .shift = shift};
  }

  // Appends the expected features of one target, and returns how they were chosen.
  test::Choice append_expected(int64_t row, Clock target, std::vector<float>& out) const {
    const test::Choice choice = test::choose<Work>(std::span<const Clock>(times), target, options);
    for (int64_t d = 0; d < features; ++d) {
      const auto value = [&](int64_t sample) {
        return test::widened(values[static_cast<size_t>((row * samples + sample) * features + d)]);
      };
      if (choice.kind == test::Choice::kNothing) {
        out.push_back(static_cast<float>(kNan));
        continue;
      }
      const Work x = choice.kind == test::Choice::kRow
                         ? static_cast<Work>(value(choice.left))
                         : test::mixed<Work>(value(choice.left), value(choice.right), choice.weight);
      out.push_back(static_cast<float>(std::fma(x, scale[static_cast<size_t>(d)], static_cast<Work>(shift))));
    }
    return choice;
  }

  static std::vector<Work> random_scale(Random& random, int64_t count) {
    std::vector<Work> factors(static_cast<size_t>(count));
    for (Work& factor : factors) factor = static_cast<Work>(random.between(-2, 2));
    return factors;
  }

  int64_t batch, samples, features;
  std::vector<Value> values;
  std::vector<Clock> times;
  std::vector<Work> scale;
  DeviceArray<Value> values_array;
  DeviceArray<Clock> times_array;
  DeviceArray<Work> scale_array;
  InterpolationOptions options;
  double shift = 0;
};

TEST_P(Fuse, StreamsOfEveryFloatTypeEqualTheReference) {
  Random random(20);
  test::for_each_clock([&](auto clock) {
    using C = decltype(clock);
    using Clock = typename C::Type;
    for (int round = 0; round < 8; ++round) {
      const int64_t batch = random.below(4);
      const int64_t count = random.below(40);
      const auto random_times = [&] { return random.clock<Clock>(random.below(30)); };
      const RandomStream<Element<double, DType::kFloat64>, C> a(random, batch, random_times(), device());
      const RandomStream<Element<float, DType::kFloat32>, C> b(random, batch, random_times(), device());
      const RandomStream<Element<Float16, DType::kFloat16>, C> c(random, batch, random_times(), device());
      const RandomStream<Element<BFloat16, DType::kBFloat16>, C> d(random, batch, random_times(), device());
      const std::vector<Clock> target_times = random.targets(a.times, count);
      const DeviceArray<Clock> targets(target_times, C::kDType, {count}, device());

      const int64_t all_features = a.features + b.features + c.features + d.features;
      const DeviceArray<float> out(std::vector<float>(static_cast<size_t>(batch * count * all_features)),
                                   DType::kFloat32, {batch, count, all_features}, device(),
                                   {count * (all_features + 3), all_features + 3, 1});
      const DeviceArray<uint8_t> valid(std::vector<uint8_t>(static_cast<size_t>(batch * count * 4), 7), DType::kBool,
                                       {batch, count, 4}, device());
      const DeviceArray<Clock> age(std::vector<Clock>(static_cast<size_t>(batch * count * 4)), C::kDType,
                                   {batch, count, 4}, device());
      const FuseStream streams[] = {a.stream(), b.stream(), c.stream(), d.stream()};
      fuse_multimodal(streams, targets.view(), {&out.view(), 1}, CudaStream{}, std::nullopt, valid.view(), age.view());

      std::vector<float> expected;
      std::vector<uint8_t> expected_valid;
      std::vector<Clock> expected_age;
      for (int64_t i = 0; i < batch; ++i) {
        for (const Clock target : target_times) {
          const auto add = [&](const auto& stream) {
            const test::Choice choice = stream.append_expected(i, target, expected);
            expected_valid.push_back(choice.valid);
            if (choice.kind != test::Choice::kNothing) {
              expected_age.push_back(static_cast<Clock>(target - stream.times[static_cast<size_t>(choice.left)]));
            } else if constexpr (std::is_floating_point_v<Clock>) {
              expected_age.push_back(std::numeric_limits<Clock>::quiet_NaN());
            } else {
              expected_age.push_back(std::numeric_limits<Clock>::min());
            }
          };
          add(a), add(b), add(c), add(d);
        }
      }
      const std::vector<float> actual = out.read();
      for (size_t i = 0; i < actual.size(); ++i) {
        ASSERT_TRUE(test::same(actual[i], expected[i])) << i << ": " << actual[i] << ", expected " << expected[i];
      }
      EXPECT_EQ(valid.read(), expected_valid);
      const std::vector<Clock> actual_age = age.read();
      for (size_t i = 0; i < actual_age.size(); ++i) {
        ASSERT_TRUE(test::same(actual_age[i], expected_age[i]))
            << i << ": " << actual_age[i] << ", " << expected_age[i];
      }
      EXPECT_TRUE(out.gaps_are_untouched());
    }
  });
}

}  // namespace
}  // namespace robocache
