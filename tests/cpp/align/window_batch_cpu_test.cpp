#include "robocache/align/window_batch_cpu.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "robocache/align/window_batch.hpp"
#include "robocache/align/window_plan.hpp"
#include "robocache/core/device_tables.hpp"
#include "robocache/sample/anchors.hpp"
#include "robocache/sample/mixture.hpp"
#include "tests/cpp/host_clock.hpp"
#include "tests/cpp/random_data.hpp"

namespace robocache {
namespace {

using test::Random;

struct Build {
  std::string name;
  WindowSamples* samples;
};

// The builds of the kernel that this processor runs beside the baseline, to be compared with it.
std::vector<Build> vector_builds() {
  std::vector<Build> all;
#ifdef __x86_64__
  if (__builtin_cpu_supports("x86-64-v3")) all.push_back({"v3", v3::window_samples});
  if (__builtin_cpu_supports("x86-64-v4")) all.push_back({"v4", v4::window_samples});
#endif
  return all;
}

std::vector<Build> every_build() {
  std::vector<Build> all = vector_builds();
  all.push_back({"baseline", baseline::window_samples});
  return all;
}

constexpr DType kFloats[] = {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// Each element type once to each type that it can become, normalised every other time; floats by `method`.
class EveryConversion {
 public:
  explicit EveryConversion(InterpolationMethod method) : method_(method) {
    test::for_each_float([&](auto element) {
      for (const DType out : kFloats) add(element, out);
    });
    test::for_each_integer([&](auto element) { add(element, element.kDType); });
    plan_ = window_plan(std::vector<WindowStreams>{{anchors_.index(), streams_, {}}}, tables_);
    plan_.snap_ns = 1000;
    plan_.time_offset = bytes_;
    plan_.episode_offset = bytes_ + 8 * count();
    bytes_ += 16 * count();
  }

  int64_t count() const { return anchors_.index().anchors; }

  // The memory that `samples` leaves, which held 0x5a in every byte.
  std::vector<unsigned char> filled(WindowSamples* samples, int64_t begin, int64_t end) const {
    std::vector<unsigned char> memory(static_cast<size_t>(bytes_), 0x5a);
    WindowBatch batch{};
    batch.plan = plan_;
    batch.mixture = mixture_.mixture().at_epoch(1, 2);
    batch.count = count();
    batch.memory = memory.data();
    samples(batch, begin, end);
    return memory;
  }

 private:
  static constexpr int64_t kFeatures = 20;  // whole vectors and a rest in each build

  template <class E>
  void add(E element, DType out) {
    using T = typename E::Type;
    auto values = random_.tame_values(element, 40 * kFeatures);
    // A NaN's payload may be another in each build.
    if constexpr (test::kIsFloat<T>) {
      for (T& value : values) value = std::isnan(test::widened(value)) ? T{} : value;
    }
    const bool floating = is_floating(E::kDType);
    WindowStream stream{};
    stream.rows = {clock_.view(), tables_.put(values), kFeatures, E::kDType};
    stream.delta_ns = {0, 100'000'000, -250'000'000, 700, 9'000'000'000};
    stream.methods = {{0, kFeatures, floating ? method_ : InterpolationMethod::kPrevious}};
    stream.max_gap_ns = 600'000'000;
    stream.out_features = kFeatures;
    stream.out_dtype = out;
    if (streams_.size() % 2 == 0 && floating) {
      const bool wide = E::kDType == DType::kFloat64;
      stream.scale = wide ? static_cast<const void*>(wide_factors_.data()) : narrow_factors_.data();
      stream.shift = stream.scale;
    }
    const auto steps = static_cast<int64_t>(stream.delta_ns.size());
    stream.out_offset = bytes_;
    bytes_ += (steps * kFeatures * dtype_size(out) * count() + 7) / 8 * 8;
    stream.pad_offset = bytes_;
    bytes_ += (steps * count() + 7) / 8 * 8;
    streams_.push_back(std::move(stream));
  }

  Random random_{61};
  test::HostClock clock_{{random_.clock<int64_t>(20), random_.clock<int64_t>(20)}};
  InterpolationMethod method_;
  Anchors anchors_ = Anchors::of_ticks(clock_.view(), std::vector<int64_t>{0, 1});
  MixtureTables mixture_{std::vector<int64_t>{count()}, {.weights = {std::nullopt}}};
  std::vector<float> narrow_factors_ = std::vector<float>(kFeatures, 1.0F / 3);
  std::vector<double> wide_factors_ = std::vector<double>(kFeatures, 1.0 / 3);
  std::vector<WindowStream> streams_;
  DeviceTables tables_{Device{}};
  WindowPlan plan_{};
  int64_t bytes_ = 0;
};

TEST(WindowSamplesBuilds, GiveTheSameBitsForEveryConversionAndMethod) {
  if (vector_builds().empty()) GTEST_SKIP() << "this processor runs the baseline alone";
  for (const InterpolationMethod method :
       {InterpolationMethod::kLinear, InterpolationMethod::kPchip, InterpolationMethod::kAkima,
        InterpolationMethod::kAngle, InterpolationMethod::kSlerp}) {
    const EveryConversion batch(method);
    const std::vector<unsigned char> expected = batch.filled(baseline::window_samples, 0, batch.count());
    EXPECT_NE(expected, batch.filled(baseline::window_samples, 0, 0));
    for (const Build& build : vector_builds()) {
      EXPECT_EQ(batch.filled(build.samples, 0, batch.count()), expected) << build.name << " by " << method_name(method);
    }
  }
}

TEST(WindowSamplesBuilds, FillTheirSamplesAndNoOther) {
  const EveryConversion batch(InterpolationMethod::kLinear);
  const std::vector<unsigned char> whole = batch.filled(baseline::window_samples, 0, batch.count());
  const std::vector<unsigned char> none = batch.filled(baseline::window_samples, 0, 0);
  for (const Build& build : every_build()) {
    for (const int64_t middle : {int64_t{0}, int64_t{1}, int64_t{13}, batch.count()}) {
      const std::vector<unsigned char> first = batch.filled(build.samples, 0, middle);
      const std::vector<unsigned char> second = batch.filled(build.samples, middle, batch.count());
      for (size_t i = 0; i < whole.size(); ++i) {
        // Of the two halves one wrote this byte, and the other left it.
        ASSERT_TRUE((first[i] == whole[i] && second[i] == none[i]) || (first[i] == none[i] && second[i] == whole[i]))
            << build.name << " up to " << middle << ", byte " << i;
      }
    }
  }
}

}  // namespace
}  // namespace robocache
