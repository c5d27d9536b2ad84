#include "robocache/align/window_batch_cpu.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "robocache/align/window_batch.hpp"
#include "robocache/align/window_math.hpp"
#include "robocache/align/window_plan.hpp"
#include "robocache/core/cpu_isa.hpp"
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
  WindowSamples* kernel;
};

// The builds of the kernel for this processor besides the baseline, to be compared with the baseline.
std::vector<Build> vector_builds() {
  std::vector<Build> all;
#if ROBOCACHE_ISA_COUNT >= 2
  if (__builtin_cpu_supports("x86-64-v3")) all.push_back({"v3", v3::window_samples});
#endif
#if ROBOCACHE_ISA_COUNT >= 3
  if (__builtin_cpu_supports("x86-64-v4")) all.push_back({"v4", v4::window_samples});
#endif
  return all;
}

std::vector<Build> every_build() {
  std::vector<Build> all = vector_builds();
  all.push_back({"baseline", baseline::window_samples});
  return all;
}

// Samples [begin, end) in ranges of `grain`, of which only every `nth` is given.
class Portion final : public Ranges {
 public:
  Portion(int64_t begin, int64_t end, int64_t grain = 3, int64_t nth = 1)
      : next_(begin), end_(end), grain_(grain), stride_(grain * nth) {}

  bool next(int64_t& begin, int64_t& end) override {
    if (next_ >= end_) return false;
    begin = std::exchange(next_, next_ + stride_);
    end = std::min(end_, begin + grain_);
    return true;
  }

 private:
  int64_t next_;
  int64_t end_;
  int64_t grain_;
  int64_t stride_;
};

constexpr DType kFloats[] = {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// Converts each element type to each type that it can become. Every second float stream is normalised, and floats are
// interpolated by `method`.
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
    plan_.source_offset = bytes_ + 16 * count();
    plan_.anchor_offset = bytes_ + 24 * count();
    bytes_ += 32 * count();
  }

  int64_t count() const { return anchors_.index().anchors; }

  // Returns the memory that `kernel` filled; every byte of it was 0x5a before.
  std::vector<unsigned char> filled(WindowSamples* kernel, Portion portion) const {
    std::vector<unsigned char> memory(static_cast<size_t>(bytes_), 0x5a);
    WindowBatch batch{};
    batch.plan = plan_;
    batch.mixture = mixture_.mixture().at_epoch(1, 2);
    batch.count = count();
    batch.memory = memory.data();
    kernel(batch, portion);
    return memory;
  }

 private:
  static constexpr int64_t kFeatures = 84;  // four vectors at once, one vector, and a remainder, in each build

  template <class E>
  void add(E element, DType out) {
    using T = typename E::Type;
    auto values = random_.everyday_values(element, 40 * kFeatures);
    // The builds may give different payloads of a NaN.
    if constexpr (test::kIsFloat<T>) {
      for (T& value : values) value = std::isnan(test::widened(value)) ? T{} : value;
    }
    const bool is_float = is_floating(E::kDType);
    WindowStream stream{};
    stream.rows = {clock_.view(), tables_.put(values), kFeatures, E::kDType};
    stream.delta_ns = {0, 100'000'000, -250'000'000, 700, 9'000'000'000};
    stream.methods = {{0, kFeatures, is_float ? method_ : InterpolationMethod::kPrevious}};
    stream.max_gap_ns = 600'000'000;
    stream.out_features = kFeatures;
    stream.out_dtype = out;
    if (streams_.size() % 2 == 0 && is_float) {
      const bool is_double = E::kDType == DType::kFloat64;
      stream.scale = is_double ? static_cast<const void*>(wide_factors_.data()) : narrow_factors_.data();
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
    const std::vector<unsigned char> expected = batch.filled(baseline::window_samples, {0, batch.count()});
    EXPECT_NE(expected, batch.filled(baseline::window_samples, {0, 0}));
    for (const Build& build : vector_builds()) {
      EXPECT_EQ(batch.filled(build.kernel, {0, batch.count()}), expected) << build.name << " by " << name_of(method);
    }
  }
}

TEST(WindowSamplesBuilds, FillTheirSamplesAndNoOther) {
  const EveryConversion batch(InterpolationMethod::kLinear);
  const std::vector<unsigned char> whole = batch.filled(baseline::window_samples, {0, batch.count()});
  const std::vector<unsigned char> none = batch.filled(baseline::window_samples, {0, 0});
  for (const Build& build : every_build()) {
    const int64_t all = batch.count();
    const std::pair<Portion, Portion> halves[] = {{{0, 0}, {0, all}},
                                                  {{0, 1}, {1, all}},
                                                  {{0, 13}, {13, all}},
                                                  {{0, all}, {all, all}},
                                                  {{0, all, 1, 2}, {1, all, 1, 2}},
                                                  {{0, all, 5, 2}, {5, all, 5, 2}}};
    for (size_t k = 0; k < std::size(halves); ++k) {
      const auto& [half, other_half] = halves[k];
      const std::vector<unsigned char> first = batch.filled(build.kernel, half);
      const std::vector<unsigned char> second = batch.filled(build.kernel, other_half);
      for (size_t i = 0; i < whole.size(); ++i) {
        // One of the two halves wrote this byte, the other left it.
        ASSERT_TRUE((first[i] == whole[i] && second[i] == none[i]) || (first[i] == none[i] && second[i] == whole[i]))
            << build.name << ", halves " << k << ", byte " << i;
      }
    }
  }
}

// The options of a stream.
struct StreamOptions {
  InterpolationMethod method;
  bool causal;
  int64_t max_gap_ns;
  int64_t tolerance_ns;
  int64_t snap_ns;
};

// Rows 20 ms apart, moved by up to `jitter` of that. The last third comes after a pause; in it some stamps are
// repeated.
std::vector<int64_t> uneven_clock(int64_t start_ns, double jitter) {
  Random random{7};
  std::vector<int64_t> times;
  for (int64_t row = 0; row < 90; ++row) {
    const int64_t pause = row >= 60 ? 300'000'000 : 0;
    times.push_back(start_ns + row * 20'000'000 + pause + static_cast<int64_t>(jitter * 2e7 * random.between(-1, 1)));
  }
  for (const size_t repeated : {70U, 71U, 80U}) times[repeated] = times[repeated - 1];
  return times;
}

// Rows 20 ms apart, except one that is late.
std::vector<int64_t> nearly_even_clock() {
  std::vector<int64_t> times;
  for (int64_t row = 0; row < 60; ++row) times.push_back(1'000'000'000 + row * 20'000'000);
  times[30] += 5'000'000;
  return times;
}

// Rows 20 ms apart, except one gap that int64 cannot count.
std::vector<int64_t> broken_clock() {
  std::vector<int64_t> times;
  for (int64_t row = 0; row < 40; ++row) {
    times.push_back((row < 20 ? -2'000'000'000'000'000'000 : 9'000'000'000'000'000'000) + row * 20'000'000);
  }
  return times;
}

void expect_the_rows_of_the_scalar_rules(const std::vector<int64_t>& deltas) {
  const std::vector<std::vector<int64_t>> episodes = {uneven_clock(1'800'000'000'000'000'000, 0.3),
                                                      uneven_clock(0, 0.3),
                                                      uneven_clock(-4'600'000'000'000'000'000, 0),
                                                      uneven_clock(4'611'686'018'427'387'904 - 900'000'000, 0.1),
                                                      nearly_even_clock(),
                                                      broken_clock(),
                                                      {5, 6, 40'000'000},
                                                      {9}};
  const test::HostClock clock{episodes};
  std::vector<float> values;
  for (const std::vector<int64_t>& times : episodes) {
    for (size_t row = 0; row < times.size(); ++row) values.push_back(static_cast<float>(row));
  }
  std::vector<int64_t> all(episodes.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  const Anchors anchors = Anchors::of_ticks(clock.view(), all);
  const int64_t count = anchors.index().anchors;
  const auto steps = static_cast<int64_t>(deltas.size());
  const MixtureTables mixture{std::vector<int64_t>{count}, {.weights = {std::nullopt}, .shuffle = false}};
  for (const StreamOptions& options :
       std::vector<StreamOptions>{{InterpolationMethod::kLinear, false, -1, -1, 1000},
                                  {InterpolationMethod::kLinear, false, 25'000'000, -1, 0},
                                  {InterpolationMethod::kLinear, false, -1, -1, 4'000'000},
                                  {InterpolationMethod::kPrevious, false, 25'000'000, 5'000'000, 1000},
                                  {InterpolationMethod::kNearest, false, -1, 4'000'000, 1000},
                                  {InterpolationMethod::kNext, false, 25'000'000, 9'000'000, 0},
                                  {InterpolationMethod::kLinear, true, 15'000'000, -1, 1000},
                                  {InterpolationMethod::kPrevious, true, -1, 7'000'000, 4'000'000}}) {
    WindowStream stream{};
    stream.rows = {clock.view(), values.data(), 1, DType::kFloat32};
    stream.delta_ns = deltas;
    stream.methods = {{0, 1, options.method}};
    stream.max_gap_ns = options.max_gap_ns;
    stream.tolerance_ns = options.tolerance_ns;
    stream.causal = options.causal;
    stream.out_features = 1;
    stream.out_dtype = DType::kFloat32;
    stream.age_offset = 0;
    stream.out_offset = 8 * steps * count;
    stream.pad_offset = stream.out_offset + 4 * steps * count;
    DeviceTables tables{Device{}};
    WindowBatch batch{};
    batch.plan = window_plan(std::vector<WindowStreams>{{anchors.index(), {stream}, {}}}, tables);
    batch.plan.snap_ns = options.snap_ns;
    batch.plan.time_offset = batch.plan.episode_offset = batch.plan.source_offset = batch.plan.anchor_offset = -1;
    batch.mixture = mixture.mixture().at_epoch(0, 0);
    batch.count = count;
    const WindowSegment segment = tables_of(batch.plan.first.groups[0]).segments[0];
    for (const Build& build : every_build()) {
      std::vector<unsigned char> memory(static_cast<size_t>((8 + 4 + 1) * steps * count));  // ages, values, is_pad
      batch.memory = memory.data();
      Portion portion(0, count);
      build.kernel(batch, portion);
      for (int64_t i = 0; i < count * steps; ++i) {
        const Anchor anchor = anchors.index().at(i / steps);
        const std::vector<int64_t>& times = episodes[static_cast<size_t>(anchor.episode)];
        const int64_t target = saturating_add(anchor.time_ns, deltas[static_cast<size_t>(i % steps)]);
        const ClockRow<int64_t> row{times.data(), 1};
        const auto rows = static_cast<int64_t>(times.size());
        int64_t hint = 0;
        const WindowTarget<> found = find_target(row, rows, target, options.snap_ns, hint);
        const Pick<double> picked = pick_at(row, rows, found, segment);
        const auto left = static_cast<float>(picked.left);
        const auto right = static_cast<float>(picked.right);
        const float expected = picked.kind == PickKind::kAbsent ? 0.0F
                               : picked.kind == PickKind::kOne  ? left
                                                                : lerp(left, right, static_cast<float>(picked.weight));
        const auto entry = static_cast<size_t>(i);
        ASSERT_EQ(reinterpret_cast<const float*>(memory.data() + stream.out_offset)[entry], expected)
            << build.name << ", " << name_of(options.method) << ", step " << i;
        ASSERT_EQ(memory[static_cast<size_t>(stream.pad_offset) + entry] != 0, !picked.valid)
            << build.name << ", step " << i;
        ASSERT_EQ(reinterpret_cast<const int64_t*>(memory.data())[entry], age_of(row, picked, target))
            << build.name << ", " << name_of(options.method) << ", step " << i;
      }
    }
  }
}

TEST(WindowSamplesBuilds, PickTheRowsOfTheScalarRules) {
  expect_the_rows_of_the_scalar_rules(
      {-40'000'000, -20'000'000, 0, 700, 3'000'000, 20'000'000, 29'000'000, 340'000'000});
}

// In some episodes rows are as far apart as steps, in others they are not.
TEST(WindowSamplesBuilds, PickTheRowsOfTheScalarRulesForStepsOneRowApart) {
  std::vector<int64_t> deltas;
  for (int64_t step = -4; step < 12; ++step) deltas.push_back(step * 20'000'000);
  expect_the_rows_of_the_scalar_rules(deltas);
}

// Any NaN becomes the same NaN, in whole vectors and in the rest of a row.
TEST(WindowSamplesBuilds, WriteEveryNanAlikeInBFloat16) {
  constexpr int64_t kFeatures = 84;
  const test::HostClock clock{{{1'000, 2'000, 3'000}}};
  std::vector<float> values;
  for (int64_t i = 0; i < 3 * kFeatures; ++i) {
    const auto bits = (i % 2 == 0 ? 0x7f800001U : 0xff800001U) + static_cast<uint32_t>(i) * 0x8001U;
    values.push_back(i % 3 == 0 ? std::bit_cast<float>(bits) : static_cast<float>(i));
  }
  const Anchors anchors = Anchors::of_ticks(clock.view(), std::vector<int64_t>{0});
  const MixtureTables mixture{std::vector<int64_t>{3}, {.weights = {std::nullopt}, .shuffle = false}};
  WindowStream stream{};
  stream.rows = {clock.view(), values.data(), kFeatures, DType::kFloat32};
  stream.delta_ns = {0};
  stream.methods = {{0, kFeatures, InterpolationMethod::kLinear}};
  stream.max_gap_ns = stream.tolerance_ns = -1;
  stream.out_features = kFeatures;
  stream.out_dtype = DType::kBFloat16;
  stream.pad_offset = 2 * 3 * kFeatures;
  stream.age_offset = -1;
  DeviceTables tables{Device{}};
  WindowBatch batch{};
  batch.plan = window_plan(std::vector<WindowStreams>{{anchors.index(), {stream}, {}}}, tables);
  batch.plan.time_offset = batch.plan.episode_offset = batch.plan.source_offset = batch.plan.anchor_offset = -1;
  batch.mixture = mixture.mixture().at_epoch(0, 0);
  batch.count = 3;
  for (const Build& build : every_build()) {
    std::vector<uint16_t> memory(3 * kFeatures + 2);  // the values, and 3 bytes of is_pad
    batch.memory = memory.data();
    Portion portion(0, 3);
    build.kernel(batch, portion);
    for (size_t i = 0; i < values.size(); ++i) {
      const auto expected = std::bit_cast<uint16_t>(rounded_once<BFloat16>(values[i]));
      EXPECT_EQ(memory[i], expected) << build.name << ", feature " << i;
    }
  }
}

}  // namespace
}  // namespace robocache
