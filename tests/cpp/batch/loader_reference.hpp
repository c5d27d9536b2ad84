// A recording of every element type, and what a loader's batches must be by the reference, byte for byte.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "robocache/batch/loader.hpp"
#include "robocache/sample/order.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/not_finite.hpp"
#include "tests/cpp/random_data.hpp"
#include "tests/cpp/reference.hpp"
#include "tests/cpp/temporary_cache.hpp"

namespace robocache::test {

using F64 = Element<double, DType::kFloat64>;
using F32 = Element<float, DType::kFloat32>;
using F16 = Element<Float16, DType::kFloat16>;
using BF16 = Element<BFloat16, DType::kBFloat16>;
using I32 = Element<int32_t, DType::kInt32>;
using U8 = Element<uint8_t, DType::kUInt8>;

inline constexpr int64_t kStart = 1'700'000'000'123'456'789;
inline constexpr int64_t kMillisecond = 1'000'000;
inline constexpr unsigned char kUnwritten = 0xa5;

// ---- A batch by the reference ----

template <class Visit>
void with_element(DType dtype, const Visit& visit) {
  const auto check = [&](auto element) {
    if (decltype(element)::kDType == dtype) visit(element);
  };
  test::for_each_float(check);
  test::for_each_integer(check);
}

struct Moment {
  int64_t episode;
  int64_t time_ns;
};

// Every anchor of a loader, in the order of the recording.
inline std::vector<Moment> all_moments(const Dataset& dataset, const LoaderOptions& options) {
  std::vector<Moment> moments;
  for (const int64_t episode : *options.sources[0].episodes) {
    const auto e = static_cast<size_t>(episode);
    if (!options.anchor_hz) {
      const Stream& anchor = dataset.stream(options.anchor);
      for (int64_t row = anchor.row_offsets[e]; row < anchor.row_offsets[e + 1]; ++row) {
        moments.push_back({episode, anchor.time_ns[row]});
      }
      continue;
    }
    std::optional<int64_t> start;
    std::optional<int64_t> end;
    for (const StreamRequest& request : options.streams) {
      const Stream& stream = dataset.stream(request.stream);
      if (stream.row_offsets[e] == stream.row_offsets[e + 1]) continue;
      const int64_t first = stream.time_ns[stream.row_offsets[e]];
      const int64_t last = stream.time_ns[stream.row_offsets[e + 1] - 1];
      start = std::max(start.value_or(first), first);
      end = std::min(end.value_or(last), last);
    }
    if (!start) continue;
    // k seconds / hz to the nearest ns in whole numbers: hz is one, and odd multiples of half a ns do not occur.
    const auto hz = static_cast<int64_t>(*options.anchor_hz);
    EXPECT_EQ(static_cast<double>(hz), *options.anchor_hz);
    for (int64_t k = 0;; ++k) {
      const int64_t time = *start + (2 * k * 1'000'000'000 + hz) / (2 * hz);
      if (time > *end) break;
      moments.push_back({episode, time});
    }
  }
  return moments;
}

inline int64_t nanoseconds(double seconds) { return std::llrint(seconds * 1e9); }

// What a step of a window takes, rows counted from the stream's first.
inline test::Choice choose_step(const Stream& stream, const StreamRequest& request, const LoaderOptions& options,
                                const Moment& moment, double delta, bool double_work) {
  const auto e = static_cast<size_t>(moment.episode);
  const int64_t begin = stream.row_offsets[e];
  const std::span<const int64_t> times(stream.time_ns + begin, static_cast<size_t>(stream.row_offsets[e + 1] - begin));
  int64_t target = moment.time_ns + nanoseconds(delta);
  int64_t nearest = target;
  int64_t distance = std::numeric_limits<int64_t>::max();
  for (const int64_t time : times) {
    if (std::abs(time - target) < distance) {
      distance = std::abs(time - target);
      nearest = time;
    }
  }
  if (distance < nanoseconds(options.snap_s)) target = nearest;
  InterpolationOptions rule;
  rule.method = request.method.value_or(is_floating(stream.dtype) ? InterpolationMethod::kLinear
                                                                  : InterpolationMethod::kPrevious);
  if (request.max_gap_s) rule.max_gap = nanoseconds(std::min(*request.max_gap_s, 1e9));
  test::Choice choice =
      double_work ? test::choose<double>(times, target, rule) : test::choose<float>(times, target, rule);
  choice.left += begin;
  choice.right += begin;
  return choice;
}

template <class In, class Out>
void expect_window(const Stream& stream, const StreamRequest& request, const LoaderOptions& options,
                   const std::vector<Moment>& moments, typename Out::Type* out, bool* is_pad) {
  using T = typename In::Type;
  using Work = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const auto* values = static_cast<const T*>(stream.values);
  const auto features = static_cast<size_t>(stream.features);
  for (const Moment& moment : moments) {
    for (const double delta : request.delta_timestamps) {
      const test::Choice choice = choose_step(stream, request, options, moment, delta, std::is_same_v<Work, double>);
      *is_pad++ = !choice.valid;
      for (size_t d = 0; d < features; ++d, ++out) {
        const T left = values[static_cast<size_t>(choice.left) * features + d];
        const T right = values[static_cast<size_t>(choice.right) * features + d];
        if (choice.kind == test::Choice::kNothing) {
          *out = typename Out::Type{};
        } else if constexpr (test::kIsFloat<T>) {
          double x = test::widened(left);
          if (choice.kind == test::Choice::kMixture) x = test::mixed<Work>(x, test::widened(right), choice.weight);
          if (*request.normalize != Normalize::kNone) {  // normalisation_test.cpp has affine's own oracle
            const Affine y = affine(stream.stats, d, *request.normalize, std::is_same_v<Work, double>);
            x = std::fma(static_cast<Work>(x), static_cast<Work>(y.scale), static_cast<Work>(y.shift));
          }
          *out = test::rounded<typename Out::Type>(x);
        } else {
          *out = left;
        }
      }
    }
  }
}

// The batch's memory as it must be, where `memory` was full of kUnwritten.
inline std::vector<unsigned char> reference(const Dataset& dataset, const Loader& loader,
                                            const BatchPosition& position) {
  const LoaderOptions& options = loader.options();
  const std::vector<Moment> all = all_moments(dataset, options);
  EXPECT_EQ(loader.anchors(), static_cast<int64_t>(all.size()));
  const Order order =
      Order::of(loader.anchors(), options.shuffle).keyed(position.seed, static_cast<uint64_t>(position.epoch));
  std::vector<Moment> moments;
  std::vector<int64_t> anchors;
  for (int64_t i = 0; i < loader.samples_at(position); ++i) {
    anchors.push_back(order.at(position.samples + i));
    moments.push_back(all[static_cast<size_t>(anchors.back())]);
  }
  std::vector<unsigned char> memory(loader.batch_bytes(), kUnwritten);
  const auto at = [&](const std::string& name) -> unsigned char* {
    for (const BatchArray& array : loader.arrays()) {
      if (array.name == name) return memory.data() + array.offset;
    }
    ADD_FAILURE() << "no array " << name;
    return memory.data();
  };
  for (size_t i = 0; i < moments.size(); ++i) {
    std::memcpy(at("time_ns") + 8 * i, &moments[i].time_ns, 8);
    std::memcpy(at("episode_index") + 8 * i, &moments[i].episode, 8);
    std::memcpy(at("anchor_index") + 8 * i, &anchors[i], 8);
  }
  for (const StreamRequest& request : options.streams) {
    const Stream& stream = dataset.stream(request.stream);
    auto* is_pad = reinterpret_cast<bool*>(at(request.stream + "_is_pad"));
    with_element(stream.dtype, [&](auto in) {
      using In = decltype(in);
      const auto fill = [&](auto out) {
        using Out = decltype(out);
        auto* to = reinterpret_cast<typename Out::Type*>(at(request.stream));
        expect_window<In, Out>(stream, request, options, moments, to, is_pad);
      };
      if constexpr (test::kIsFloat<typename In::Type>) {
        test::for_each_float([&](auto out) {
          if (decltype(out)::kDType == request.dtype.value_or(options.dtype)) fill(out);
        });
      } else {
        fill(in);
      }
    });
  }
  return memory;
}

// The batch's memory after a fill.
inline std::vector<unsigned char> filled(const Loader& loader, const BatchPosition& position) {
  const test::DeviceArray<uint8_t> memory(std::vector<uint8_t>(loader.batch_bytes(), kUnwritten), DType::kUInt8,
                                          {static_cast<int64_t>(loader.batch_bytes())}, loader.options().device);
  loader.fill(position, memory.view().data, {});
  return memory.read();
}

// Every NaN the same, so that memory can be compared byte by byte.
inline void unify_nans(const Loader& loader, int64_t samples, std::vector<unsigned char>& memory) {
  for (const BatchArray& array : loader.arrays()) {
    with_element(array.dtype, [&](auto element) {
      using T = typename decltype(element)::Type;
      if constexpr (test::kIsFloat<T>) {
        T* const values = reinterpret_cast<T*>(memory.data() + array.offset);
        for (int64_t i = 0; i < loader.view(array, samples, nullptr).numel(); ++i) {
          if (std::isnan(test::widened(values[i]))) values[i] = test::rounded<T>(kNan);
        }
      }
    });
  }
}

inline void expect_same_memory(const Loader& loader, int64_t samples, std::vector<unsigned char> got,
                               std::vector<unsigned char> expected, const std::string& what) {
  unify_nans(loader, samples, got);
  unify_nans(loader, samples, expected);
  ASSERT_EQ(got.size(), expected.size());
  const auto differ = std::mismatch(got.begin(), got.end(), expected.begin()).first;
  if (differ == got.end()) return;
  const auto byte = static_cast<int64_t>(differ - got.begin());
  const BatchArray* array = nullptr;
  for (const BatchArray& candidate : loader.arrays()) {
    if (candidate.offset <= byte && (array == nullptr || candidate.offset > array->offset)) array = &candidate;
  }
  FAIL() << what << ": " << array->name << " " << loader.view(*array, samples, nullptr).describe()
         << " differs at element " << (byte - array->offset) / dtype_size(array->dtype);
}

inline void expect_reference(const Dataset& dataset, const Loader& loader, const BatchPosition& position) {
  expect_same_memory(loader, loader.samples_at(position), filled(loader, position),
                     reference(dataset, loader, position), "from " + std::to_string(position.samples));
}

inline void expect_every_batch(const Dataset& dataset, const Loader& loader, uint64_t seed = 0, int64_t epoch = 0) {
  BatchPosition position{seed, epoch, 0};
  for (; loader.samples_at(position) > 0; position = loader.after(position)) {
    expect_reference(dataset, loader, position);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// ---- Recordings ----

// Rows about every `period_ns`: jitter, a dropout, a repeated stamp.
inline std::vector<int64_t> jittered(Random& random, int64_t start, int64_t duration_ns, int64_t period_ns) {
  std::vector<int64_t> times;
  for (int64_t t = start + random.below(period_ns); t < start + duration_ns;) {
    times.push_back(t);
    t += random.one_in(12) ? 0 : random.one_in(12) ? 5 * period_ns : period_ns + random.below(period_ns / 3);
  }
  return times;
}

inline std::string stream_name(DType dtype, int64_t features) {
  return std::string(dtype_name(dtype)) + "." + std::to_string(features);
}

// One stream for each float type and width of a vector, one for each integer; five episodes, in which streams are
// missing or have one row. Written once: making files durable is what takes the time.
inline const std::shared_ptr<const Dataset>& every_type() {
  static const std::shared_ptr<const Dataset> made = [] {
    Random random(41);
    test::CacheWriter writer;
    for (int64_t episode = 0; episode < 5; ++episode) {
      const int64_t start = kStart + episode * 10'000 * kMillisecond;
      writer.begin_episode();
      int64_t number = 0;
      const auto append = [&](auto element, int64_t features, const std::vector<int64_t>& row_shape) {
        ++number;
        if ((number + episode) % 7 == 3) return;
        std::vector<int64_t> times = jittered(random, start, 300 * kMillisecond, (3 + number % 17) * kMillisecond);
        if ((number + episode) % 7 == 5) times.resize(1);
        const auto n = static_cast<int64_t>(times.size());
        const bool wild = number % 4 == 1;  // with Inf and numbers of any size, where normalising is hardly possible
        const auto values = wild ? random.values(element, n * features) : random.tame_values(element, n * features);
        writer.append(stream_name(element.kDType, features), element, times, values, row_shape);
      };
      test::for_each_float([&](auto element) {
        append(element, 1, {});
        for (const int64_t features : {2, 3, 4, 8}) append(element, features, {features});
        append(element, 6, {2, 3});
      });
      test::for_each_integer([&](auto element) {
        const int64_t features = dtype_size(element.kDType) == 1 ? 3 : 2;
        append(element, features, {features});
      });
      writer.end_episode();
    }
    return writer.dataset();
  }();
  return made;
}

inline const std::vector<double> kDeltas{0.0, -0.021, 0.0005, 0.4, -0.4, 0.013, 0.013};

// Options that are for the device of the test.
class OnDeviceOfLoader : public OnDevice {
 protected:
  static LoaderOptions options() {
    LoaderOptions made;
    made.device = device();
    return made;
  }
};

}  // namespace robocache::test
