#include "robocache/align/window_batch_cpu.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "robocache/align/window_batch.hpp"
#include "robocache/cache/residency.hpp"
#include "robocache/sample/anchors.hpp"
#include "robocache/sample/order.hpp"
#include "tests/cpp/random_data.hpp"
#include "tests/cpp/temporary_cache.hpp"

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

constexpr int64_t kSteps = 5;
constexpr DType kFloats[] = {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// A plan made by hand: each stream of a cache once to each type it can become, normalised every other time.
class EveryConversion {
 public:
  EveryConversion() : dataset_(write()) {
    std::vector<int64_t> episodes{0, 1};
    anchors_ = std::make_unique<Anchors>(Anchors::of_stream(*dataset_, 0, episodes));
    for (size_t i = 0; i < dataset_->streams().size(); ++i) {
      const Stream& stream = dataset_->streams()[i];
      resident_.push_back(ResidentStream::get(dataset_, static_cast<int64_t>(i), {}));
      if (is_floating(stream.dtype)) {
        for (const DType out : kFloats) add(stream, out);
      } else {
        add(stream, stream.dtype);
      }
    }
    plan_.anchors = anchors_->index();
    plan_.segments = segments_.data();
    plan_.groups = groups_.data();
    plan_.group_count = static_cast<int32_t>(groups_.size());
    plan_.snap_ns = 1000;
    plan_.time_offset = bytes_;
    plan_.episode_offset = bytes_ + 8 * count();
    bytes_ += 16 * count();
  }

  int64_t count() const { return anchors_->index().anchors; }

  // The memory that `samples` leaves, which held 0x5a in every byte.
  std::vector<unsigned char> filled(WindowSamples* samples, int64_t begin, int64_t end) const {
    std::vector<unsigned char> memory(static_cast<size_t>(bytes_), 0x5a);
    WindowBatch batch{};
    batch.plan = plan_;
    batch.order = make_order(count(), 1, 2);
    batch.count = count();
    batch.memory = memory.data();
    samples(batch, begin, end);
    return memory;
  }

 private:
  // Rows of 19 features: whole vectors and a rest in each build.
  static std::shared_ptr<const Dataset> write() {
    Random random(61);
    test::CacheWriter writer;
    for (int64_t episode = 0; episode < 2; ++episode) {
      writer.begin_episode();
      const auto append = [&](auto element) {
        using T = typename decltype(element)::Type;
        const auto times = random.clock<int64_t>(20);
        auto values = random.tame_values(element, 20 * 19);
        // A NaN's payload may be another in each build.
        if constexpr (test::kIsFloat<T>) {
          for (T& value : values) value = std::isnan(test::widened(value)) ? T{} : value;
        }
        writer.append(std::string(dtype_name(element.kDType)), element, times, values, {19});
      };
      test::for_each_float(append);
      test::for_each_integer(append);
      writer.end_episode();
    }
    return writer.dataset();
  }

  void add(const Stream& stream, DType out) {
    WindowSegment segment{};
    const ResidentStream& rows = *resident_.back();
    segment.time_ns = rows.time_ns();
    segment.values = rows.values();
    segment.episodes = rows.episodes();
    segment.delta_ns = kDeltas;
    if (segments_.size() % 2 == 0 && is_floating(stream.dtype)) {
      const bool wide = stream.dtype == DType::kFloat64;
      segment.scale = wide ? static_cast<const void*>(wide_factors_.data()) : narrow_factors_.data();
      segment.shift = segment.scale;
    }
    segment.features = stream.features;
    segment.max_gap_ns = 600'000'000;
    segment.out_offset = bytes_;
    segment.out_sample = kSteps * stream.features * dtype_size(out);
    bytes_ += (segment.out_sample * count() + 7) / 8 * 8;
    segment.pad_offset = bytes_;
    segment.pad_sample = kSteps;
    bytes_ += (kSteps * count() + 7) / 8 * 8;
    segment.steps = kSteps;
    segment.vector = 1;
    segment.value_dtype = stream.dtype;
    segment.out_dtype = out;
    segment.method = is_floating(stream.dtype) ? InterpolationMethod::kLinear : InterpolationMethod::kPrevious;
    if (groups_.empty() || groups_.back().segment_end - groups_.back().segment_begin == kMaxGroupSegments) {
      const auto next = static_cast<int32_t>(segments_.size());
      groups_.push_back({next, next, 0, 0});
    }
    segment.pick_begin = groups_.back().picks;
    segment.item_begin = groups_.back().items;
    groups_.back().picks += static_cast<int32_t>(kSteps);
    groups_.back().items += static_cast<int32_t>(kSteps * stream.features);
    ++groups_.back().segment_end;
    segments_.push_back(segment);
  }

  static constexpr int64_t kDeltas[kSteps] = {0, 100'000'000, -250'000'000, 700, 9'000'000'000};

  std::shared_ptr<const Dataset> dataset_;
  std::unique_ptr<Anchors> anchors_;
  std::vector<std::shared_ptr<const ResidentStream>> resident_;
  std::vector<float> narrow_factors_ = std::vector<float>(19, 1.0F / 3);
  std::vector<double> wide_factors_ = std::vector<double>(19, 1.0 / 3);
  std::vector<WindowSegment> segments_;
  std::vector<WindowGroup> groups_;
  WindowPlan plan_{};
  int64_t bytes_ = 0;
};

TEST(WindowSamplesBuilds, GiveTheSameBitsForEveryConversion) {
  if (vector_builds().empty()) GTEST_SKIP() << "this processor runs the baseline alone";
  const EveryConversion batch;
  const std::vector<unsigned char> expected = batch.filled(baseline::window_samples, 0, batch.count());
  EXPECT_NE(expected, batch.filled(baseline::window_samples, 0, 0));
  for (const Build& build : vector_builds()) {
    EXPECT_EQ(batch.filled(build.samples, 0, batch.count()), expected) << build.name;
  }
}

TEST(WindowSamplesBuilds, FillTheirSamplesAndNoOther) {
  const EveryConversion batch;
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
