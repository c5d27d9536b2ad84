#include "robocache/batch/loader.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "robocache/core/error.hpp"
#include "robocache/core/thread_pool.hpp"
#include "robocache/sample/order.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/random_data.hpp"
#include "tests/cpp/reference.hpp"
#include "tests/cpp/temporary_cache.hpp"

namespace robocache {
namespace {

using test::Element;
using test::Random;

using F64 = Element<double, DType::kFloat64>;
using F32 = Element<float, DType::kFloat32>;
using F16 = Element<Float16, DType::kFloat16>;
using BF16 = Element<BFloat16, DType::kBFloat16>;
using I32 = Element<int32_t, DType::kInt32>;
using U8 = Element<uint8_t, DType::kUInt8>;

constexpr int64_t kStart = 1'700'000'000'123'456'789;
constexpr int64_t kMillisecond = 1'000'000;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr unsigned char kUnwritten = 0xa5;

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
std::vector<Moment> all_moments(const Dataset& dataset, const LoaderOptions& options) {
  std::vector<Moment> moments;
  for (const int64_t episode : *options.episodes) {
    const auto e = static_cast<size_t>(episode);
    if (!options.anchor_hz) {
      const Stream& anchor = dataset.stream(options.anchor);
      for (int64_t row = anchor.row_offsets[e]; row < anchor.row_offsets[e + 1]; ++row) {
        moments.push_back({episode, anchor.time_ns[row]});
      }
      continue;
    }
    int64_t start = std::numeric_limits<int64_t>::min();
    int64_t end = std::numeric_limits<int64_t>::max();
    for (const StreamRequest& request : options.streams) {
      const Stream& stream = dataset.stream(request.stream);
      if (stream.row_offsets[e] == stream.row_offsets[e + 1]) continue;
      start = std::max(start, stream.time_ns[stream.row_offsets[e]]);
      end = std::min(end, stream.time_ns[stream.row_offsets[e + 1] - 1]);
    }
    if (start == std::numeric_limits<int64_t>::min()) continue;
    for (int64_t k = 0;; ++k) {
      const int64_t time = start + std::llrint(static_cast<double>(k) * (1e9 / *options.anchor_hz));
      if (time > end) break;
      moments.push_back({episode, time});
    }
  }
  return moments;
}

int64_t nanoseconds(double seconds) { return std::llrint(seconds * 1e9); }

// What a step of a window takes, rows counted from the stream's first.
test::Choice choose_step(const Stream& stream, const StreamRequest& request, const LoaderOptions& options,
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
  ResampleOptions rule;
  rule.method = request.method.value_or(is_floating(stream.dtype) ? InterpolationMethod::kLinear
                                                                  : InterpolationMethod::kPrevious);
  if (request.max_gap_s) rule.max_gap = nanoseconds(std::min(*request.max_gap_s, 1e9));
  test::Choice choice =
      double_work ? test::choose<double>(times, target, rule) : test::choose<float>(times, target, rule);
  choice.left += begin;
  choice.right += begin;
  return choice;
}

struct Affine {
  double scale;
  double shift;
};

template <class Work>
std::optional<Affine> affine(const FeatureStats& stats, size_t feature, Normalize normalize) {
  if (normalize == Normalize::kNone) return std::nullopt;
  if (stats.count[feature] == 0) return Affine{1, 0};
  double centre = stats.mean[feature];
  double spread = stats.std[feature];
  if (normalize == Normalize::kMinMax) {
    spread = (stats.max[feature] - stats.min[feature]) / 2;
    centre = stats.min[feature] + spread;
  } else if (normalize == Normalize::kQ01Q99) {
    spread = (stats.q99[feature] - stats.q01[feature]) / 2;
    centre = stats.q01[feature] + spread;
  }
  if (!std::isfinite(centre)) return Affine{1, 0};
  const double scale = 1 / spread;
  constexpr double kLargest = std::numeric_limits<Work>::max();
  const bool held = scale > 0 && scale <= kLargest && std::abs(centre * scale) <= kLargest;
  return held ? Affine{scale, -centre * scale} : Affine{1, -centre};
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
          if (const auto y = affine<Work>(stream.stats, d, *request.normalize)) {
            x = std::fma(static_cast<Work>(x), static_cast<Work>(y->scale), static_cast<Work>(y->shift));
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
std::vector<unsigned char> reference(const Dataset& dataset, const Loader& loader, const BatchPosition& position) {
  const LoaderOptions& options = loader.options();
  const std::vector<Moment> all = all_moments(dataset, options);
  EXPECT_EQ(loader.anchors(), static_cast<int64_t>(all.size()));
  const Order order = make_order(loader.anchors(), position.seed, position.epoch, options.shuffle);
  std::vector<Moment> moments;
  for (int64_t i = 0; i < loader.samples_at(position.step); ++i) {
    moments.push_back(all[static_cast<size_t>(order.at(position.step * options.batch_size + i))]);
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
std::vector<unsigned char> filled(const Loader& loader, const BatchPosition& position) {
  const test::DeviceArray<uint8_t> memory(std::vector<uint8_t>(loader.batch_bytes(), kUnwritten), DType::kUInt8,
                                          {static_cast<int64_t>(loader.batch_bytes())}, loader.options().device);
  loader.fill(position, memory.view().data, {});
  return memory.read();
}

// Every NaN the same, so that memory can be compared byte by byte.
void unify_nans(const Loader& loader, int64_t step, std::vector<unsigned char>& memory) {
  for (const BatchArray& array : loader.arrays()) {
    with_element(array.dtype, [&](auto element) {
      using T = typename decltype(element)::Type;
      if constexpr (test::kIsFloat<T>) {
        T* const values = reinterpret_cast<T*>(memory.data() + array.offset);
        for (int64_t i = 0; i < loader.view(array, step, nullptr).numel(); ++i) {
          if (std::isnan(test::widened(values[i]))) values[i] = test::rounded<T>(kNan);
        }
      }
    });
  }
}

void expect_same_memory(const Loader& loader, int64_t step, std::vector<unsigned char> got,
                        std::vector<unsigned char> expected, const std::string& what) {
  unify_nans(loader, step, got);
  unify_nans(loader, step, expected);
  ASSERT_EQ(got.size(), expected.size());
  const auto differ = std::mismatch(got.begin(), got.end(), expected.begin()).first;
  if (differ == got.end()) return;
  const auto byte = static_cast<int64_t>(differ - got.begin());
  const BatchArray* array = nullptr;
  for (const BatchArray& candidate : loader.arrays()) {
    if (candidate.offset <= byte && (array == nullptr || candidate.offset > array->offset)) array = &candidate;
  }
  FAIL() << what << ": " << array->name << " " << loader.view(*array, step, nullptr).describe()
         << " differs at element " << (byte - array->offset) / dtype_size(array->dtype);
}

void expect_reference(const Dataset& dataset, const Loader& loader, const BatchPosition& position) {
  expect_same_memory(loader, position.step, filled(loader, position), reference(dataset, loader, position),
                     "step " + std::to_string(position.step));
}

void expect_every_batch(const Dataset& dataset, const Loader& loader, uint64_t seed = 0, int64_t epoch = 0) {
  for (int64_t step = 0; step < loader.steps_per_epoch(); ++step) {
    expect_reference(dataset, loader, {seed, epoch, step});
    if (testing::Test::HasFatalFailure()) return;
  }
}

// ---- Recordings ----

// Rows about every `period_ns`: jitter, a dropout, a repeated stamp.
std::vector<int64_t> jittered(Random& random, int64_t start, int64_t duration_ns, int64_t period_ns) {
  std::vector<int64_t> times;
  for (int64_t t = start + random.below(period_ns); t < start + duration_ns;) {
    times.push_back(t);
    t += random.one_in(12) ? 0 : random.one_in(12) ? 5 * period_ns : period_ns + random.below(period_ns / 3);
  }
  return times;
}

std::string stream_name(DType dtype, int64_t features) {
  return std::string(dtype_name(dtype)) + "." + std::to_string(features);
}

// One stream for each float type and width of a vector, one for each integer; five episodes, in which streams are
// missing or have one row. Written once: making files durable is what takes the time.
const std::shared_ptr<const Dataset>& every_type() {
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

const std::vector<double> kDeltas{0.0, -0.021, 0.0005, 0.4, -0.4, 0.013, 0.013};

class LoaderTest : public test::OnDevice {
 protected:
  static LoaderOptions options() {
    LoaderOptions made;
    made.device = device();
    return made;
  }
};
ROBOCACHE_ON_EACH_DEVICE(LoaderTest);

// ---- Against the reference ----

// 33 streams: more than fit one group of segments.
TEST_P(LoaderTest, EveryTypeWidthMethodAndNormalizationGivesTheReferencesBits) {
  const auto dataset = every_type();
  constexpr Normalize kNormalizations[] = {Normalize::kNone, Normalize::kMeanStd, Normalize::kMinMax,
                                           Normalize::kQ01Q99};
  constexpr InterpolationMethod kMethods[] = {InterpolationMethod::kLinear, InterpolationMethod::kNearest,
                                              InterpolationMethod::kPrevious, InterpolationMethod::kNext,
                                              InterpolationMethod::kLinear};
  size_t turn = 0;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    LoaderOptions asked = options();
    asked.dtype = dtype;
    asked.batch_size = 24;
    asked.anchor = stream_name(DType::kFloat32, 4);
    for (const Stream& stream : dataset->streams()) {
      StreamRequest request{.stream = stream.name, .delta_timestamps = kDeltas};
      ++turn;
      const bool floating = is_floating(stream.dtype);
      if (turn % 3 != 0) request.method = kMethods[floating ? turn % 5 : 1 + turn % 3];
      if (floating) request.normalize = kNormalizations[turn % 4];
      if (turn % 5 == 0) request.max_gap_s = 0.012;
      asked.streams.push_back(request);
    }
    ASSERT_EQ(asked.streams.size(), 33u);
    expect_every_batch(*dataset, Loader(dataset, asked), 7, 3);
  }
}

TEST_P(LoaderTest, AStreamMayHaveATypeOfItsOwn) {
  const auto dataset = every_type();
  LoaderOptions asked = options();
  asked.batch_size = 16;
  for (const DType in : {DType::kFloat64, DType::kFloat16, DType::kInt16}) {
    for (const DType out : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      asked.streams = {{.stream = stream_name(in, 2), .delta_timestamps = kDeltas}};
      asked.streams[0].dtype = is_floating(in) ? out : in;
      const Loader loader(dataset, asked);
      EXPECT_EQ(loader.arrays()[0].dtype, *asked.streams[0].dtype);
      expect_reference(*dataset, loader, {});
    }
  }
}

// Windows of more steps than a group holds, so that one stream is spread over several.
TEST_P(LoaderTest, LongWindows) {
  const auto dataset = every_type();
  LoaderOptions asked = options();
  asked.batch_size = 9;
  std::vector<double> many;
  for (int i = 0; i < 1300; ++i) many.push_back(0.0003 * (i - 650));
  asked.streams = {{.stream = stream_name(DType::kFloat32, 3), .delta_timestamps = kDeltas},
                   {.stream = stream_name(DType::kFloat32, 4), .delta_timestamps = many},
                   {.stream = stream_name(DType::kInt16, 2), .delta_timestamps = {many.begin(), many.begin() + 511}},
                   {.stream = stream_name(DType::kFloat64, 1),
                    .delta_timestamps = {many.begin(), many.begin() + 513},
                    .normalize = Normalize::kMeanStd}};
  const Loader loader(dataset, asked);
  expect_reference(*dataset, loader, {.step = 0});
  expect_reference(*dataset, loader, {.step = loader.steps_per_epoch() - 1});
}

TEST_P(LoaderTest, ManyStreams) {
  Random random(42);
  test::CacheWriter writer;
  LoaderOptions asked = options();
  for (int64_t episode = 0; episode < 2; ++episode) {
    writer.begin_episode();
    for (int64_t i = 0; i < 40; ++i) {
      const std::vector<int64_t> times = jittered(random, kStart, 100 * kMillisecond, (4 + i % 9) * kMillisecond);
      writer.append("stream " + std::to_string(i), F32{}, times,
                    random.tame_values(F32{}, static_cast<int64_t>(times.size())));
    }
    writer.end_episode();
  }
  for (int64_t i = 0; i < 40; ++i) {
    asked.streams.push_back({.stream = "stream " + std::to_string(39 - i),
                             .delta_timestamps = std::vector<double>(static_cast<size_t>(1 + i % 3), 0.001 * i)});
  }
  asked.batch_size = 13;
  const auto dataset = writer.dataset();
  expect_every_batch(*dataset, Loader(dataset, asked));
}

TEST_P(LoaderTest, WideRows) {
  Random random(43);
  test::CacheWriter writer;
  writer.begin_episode();
  const std::vector<int64_t> times = jittered(random, kStart, 60 * kMillisecond, 10 * kMillisecond);
  const auto n = static_cast<int64_t>(times.size());
  writer.append("image", U8{}, times, random.values(U8{}, n * 37 * 41 * 3), {37, 41, 3});
  writer.append("depth", F32{}, times, random.tame_values(F32{}, n * 50 * 30), {50, 30});
  writer.append("odd", F16{}, times, random.values(F16{}, n * 1001), {1001});
  writer.end_episode();
  const auto dataset = writer.dataset();
  LoaderOptions asked = options();
  asked.batch_size = 4;
  asked.dtype = DType::kFloat16;
  asked.streams = {{.stream = "image", .delta_timestamps = {-0.01, 0.0}},
                   {.stream = "depth", .delta_timestamps = {-0.015, 0.005, 1.0}, .normalize = Normalize::kMinMax},
                   {.stream = "odd", .delta_timestamps = {0.002}}};
  expect_every_batch(*dataset, Loader(dataset, asked));
}

TEST_P(LoaderTest, AnchorsAreTheSlowestStreamsOrAnotherOnesOrAClocks) {
  const auto dataset = every_type();
  LoaderOptions asked = options();
  asked.batch_size = 32;
  const std::string slow = stream_name(DType::kBFloat16, 1);
  asked.streams = {{.stream = stream_name(DType::kFloat32, 1), .delta_timestamps = {0.0}},
                   {.stream = slow, .delta_timestamps = {0.0}}};
  const Stream& first = dataset->stream(asked.streams[0].stream);
  const Loader of_slowest(dataset, asked);
  EXPECT_EQ(of_slowest.options().anchor, first.rate_hz < dataset->stream(slow).rate_hz ? first.name : slow);
  expect_every_batch(*dataset, of_slowest);

  asked.anchor = stream_name(DType::kUInt8, 3);  // not itself in the batch
  expect_every_batch(*dataset, Loader(dataset, asked));

  asked.anchor.clear();
  asked.anchor_hz = 130;
  expect_every_batch(*dataset, Loader(dataset, asked));
}

TEST_P(LoaderTest, EpisodesAreThoseAskedFor) {
  const auto dataset = every_type();
  LoaderOptions asked = options();
  asked.batch_size = 50;
  asked.streams = {{.stream = stream_name(DType::kFloat32, 8), .delta_timestamps = {0.0, 0.1}}};
  for (const std::vector<int64_t>& episodes : {std::vector<int64_t>{2}, {4, 0}, {1, 2, 3}}) {
    asked.episodes = episodes;
    for (const bool shuffle : {false, true}) {
      asked.shuffle = shuffle;
      expect_every_batch(*dataset, Loader(dataset, asked), 1, 1);
    }
  }
}

// ---- One rule at a time ----

// A loader of one stream "x" and one anchor at `time`: its steps.
struct Window {
  std::vector<double> values;
  std::vector<uint8_t> is_pad;
};

template <class E>
Window window_at(int64_t time, E element, const std::vector<int64_t>& times,
                 const std::vector<typename E::Type>& values, LoaderOptions asked, StreamRequest request) {
  test::CacheWriter writer;
  writer.begin_episode();
  writer.append("anchor", U8{}, {time}, {0});
  if (!times.empty()) writer.append("x", element, times, values);
  writer.end_episode();
  writer.begin_episode();  // whatever the first one lacks is there
  writer.append("x", element, {0}, {typename E::Type{}});
  writer.end_episode();
  const auto dataset = writer.dataset();
  request.stream = "x";
  asked.anchor = "anchor";
  asked.streams = {request};
  const Loader loader(dataset, asked);
  expect_reference(*dataset, loader, {});
  const std::vector<unsigned char> memory = filled(loader, {});
  Window window;
  const auto steps = request.delta_timestamps.size();
  with_element(loader.arrays()[0].dtype, [&](auto out) {
    using T = typename decltype(out)::Type;
    std::vector<T> got(steps);
    std::memcpy(static_cast<void*>(got.data()), memory.data() + loader.arrays()[0].offset, steps * sizeof(T));
    for (const T value : got) window.values.push_back(test::widened(value));
  });
  const unsigned char* const is_pad = memory.data() + loader.arrays()[1].offset;
  window.is_pad.assign(is_pad, is_pad + steps);
  return window;
}

TEST_P(LoaderTest, OutsideTheRecordingIsTheEdgeSamplePadded) {
  LoaderOptions asked = options();
  asked.snap_s = 0;
  const Window window = window_at(2000, F32{}, {1000, 2000, 3000}, {1, 2, 3}, asked,
                                  {.delta_timestamps = {-2e-6, -1e-6, -5e-7, 0, 5e-7, 1e-6, 2e-6, -1e5, 4e9}});
  EXPECT_EQ(window.values, (std::vector<double>{1, 1, 1.5, 2, 2.5, 3, 3, 1, 3}));
  EXPECT_EQ(window.is_pad, (std::vector<uint8_t>{1, 0, 0, 0, 0, 0, 1, 1, 1}));
}

TEST_P(LoaderTest, AStreamThatIsMissingIsZeroAndPadded) {
  const Window floats = window_at(5, F32{}, {}, {}, options(), {.delta_timestamps = {0, 1}});
  EXPECT_EQ(floats.values, (std::vector<double>{0, 0}));
  EXPECT_EQ(floats.is_pad, (std::vector<uint8_t>{1, 1}));
  const Window whole = window_at(5, I32{}, {}, {}, options(), {.delta_timestamps = {0, 1}});
  EXPECT_EQ(whole.values, (std::vector<double>{0, 0}));
  EXPECT_EQ(whole.is_pad, (std::vector<uint8_t>{1, 1}));
}

TEST_P(LoaderTest, ABracketLongerThanMaxGapIsPaddedEqualIsNot) {
  for (const auto& [max_gap_s, padded] : {std::pair{999e-9, 1}, {1000e-9, 0}, {HUGE_VAL, 0}, {0.0, 1}}) {
    LoaderOptions asked = options();
    asked.snap_s = 0;
    const Window window =
        window_at(1500, F32{}, {1000, 2000}, {1, 2}, asked, {.delta_timestamps = {0, 5e-7}, .max_gap_s = max_gap_s});
    EXPECT_EQ(window.values, (std::vector<double>{1.5, 2}));
    EXPECT_EQ(window.is_pad, (std::vector<uint8_t>{static_cast<uint8_t>(padded), 0})) << max_gap_s;
  }
}

TEST_P(LoaderTest, ATargetCloserThanSnapIsTheSample) {
  const std::vector<int64_t> times{10'000, 20'000, 20'100};
  const std::vector<float> values{1, 2, 3};
  const auto values_at = [&](double snap_s, const std::vector<double>& deltas) {
    LoaderOptions asked = options();
    asked.snap_s = snap_s;
    asked.dtype = DType::kFloat64;
    return window_at(10'000, F32{}, times, values, asked, {.delta_timestamps = deltas}).values;
  };
  // 1 us away is not closer than 1 us; 999 ns are.
  EXPECT_EQ(values_at(1e-6, {999e-9, 1000e-9, 9000e-9, 9001e-9}),
            (std::vector<double>{1, static_cast<float>(1.1F), static_cast<float>(1.9F), 2}));
  EXPECT_EQ(values_at(0, {1e-9, 0}), (std::vector<double>{1.0F + 1e-4F, 1}));
  // Of two within reach the nearer, and midway the earlier.
  EXPECT_EQ(values_at(1e-6, {10'049e-9, 10'050e-9, 10'051e-9}), (std::vector<double>{2, 2, 3}));
  // Outside the recording by less than that is no padding.
  LoaderOptions asked = options();
  EXPECT_EQ(window_at(10'000, F32{}, times, values, asked, {.delta_timestamps = {-999e-9, -1000e-9}}).is_pad,
            (std::vector<uint8_t>{0, 1}));
}

TEST_P(LoaderTest, OfRowsWithOneTimeOnlyTheLastExists) {
  const Window window = window_at(2000, F32{}, {1000, 2000, 2000, 2000, 4000}, {0, 7, 8, 10, 20}, options(),
                                  {.delta_timestamps = {0, -4e-7, 1e-6}});
  EXPECT_EQ(window.values, (std::vector<double>{10, 10, 15}));  // 400 ns before: snapped
  LoaderOptions exact = options();
  exact.snap_s = 0;
  EXPECT_EQ(window_at(2000, F32{}, {1000, 2000, 2000, 2000, 4000}, {0, 7, 8, 10, 20}, exact,
                      {.delta_timestamps = {0, -5e-7, 1e-6}})
                .values,
            (std::vector<double>{10, 5, 15}));
}

// Through float32 each of these would be rounded twice and go the other way.
TEST_P(LoaderTest, Float64IsRoundedOnceToSixteenBits) {
  const double little = 0x1p-40;
  const std::vector<double> values{1 + 0x1p-8 + little,
                                   1 + 0x1p-8 - little,
                                   -(1 + 0x1p-8 + little),
                                   1 + 0x3p-8 - little,
                                   1 + 0x1p-11 + little,
                                   1 + 0x3p-11 - little,
                                   0x1p-25 + 0x1p-60,
                                   -(0x1p-134 + 0x1p-180),
                                   65520 - 0x1p-30,
                                   1e-60,
                                   -1e300,
                                   0x1.fep127 + 0x1p119 - 0x1p80};
  const auto n = static_cast<int64_t>(values.size());
  std::vector<int64_t> times;
  std::vector<double> deltas;
  for (int64_t i = 0; i < n; ++i) {
    times.push_back(i * kMillisecond);
    deltas.push_back(0.001 * static_cast<double>(i));
  }
  LoaderOptions asked = options();
  asked.dtype = DType::kBFloat16;
  EXPECT_EQ(window_at(0, F64{}, times, values, asked, {.delta_timestamps = deltas}).values,
            (std::vector<double>{1 + 0x1p-7, 1, -1 - 0x1p-7, 1 + 0x1p-7, 1, 1, 0x1p-25, -0x1p-133, 65536, 0, -HUGE_VAL,
                                 0x1.fep127}));
  asked.dtype = DType::kFloat16;
  const std::vector<double> halves = window_at(0, F64{}, times, values, asked, {.delta_timestamps = deltas}).values;
  EXPECT_EQ(halves[4], 1 + 0x1p-10);
  EXPECT_EQ(halves[5], 1 + 0x1p-10);
  EXPECT_EQ(halves[6], 0x1p-24);
  EXPECT_EQ(halves[8], 65504);
}

TEST_P(LoaderTest, AConstantFeatureIsCentredNotScaled) {
  for (const Normalize normalize : {Normalize::kMeanStd, Normalize::kMinMax, Normalize::kQ01Q99}) {
    for (const double value : {0.0, 3.0, 0.1, -1e30, 1e-30}) {
      LoaderOptions asked = options();
      asked.dtype = DType::kFloat64;
      // Through window_at's second episode there is also a 0: here only rows of one value.
      test::CacheWriter writer;
      writer.begin_episode();
      writer.append("x", F64{}, {0, 1, 2, 3, 4, 5, 6}, std::vector<double>(7, value));
      writer.end_episode();
      const auto dataset = writer.dataset();
      asked.streams = {{.stream = "x", .delta_timestamps = {0.0}, .normalize = normalize}};
      const Loader loader(dataset, asked);
      double got = kNan;
      std::memcpy(&got, filled(loader, {}).data() + loader.arrays()[0].offset, sizeof(got));
      EXPECT_EQ(got, 0) << value << " by " << static_cast<int>(normalize);
    }
  }
}

TEST_P(LoaderTest, AFeatureOfNothingButNanStaysAndHarmsNoOther) {
  test::CacheWriter writer;
  writer.begin_episode();
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  writer.append("x", F32{}, {0, 1000, 2000}, {nan, 1, 0, nan, 2, nan, nan, 3, 4}, {3});
  writer.end_episode();
  const auto dataset = writer.dataset();
  for (const Normalize normalize : {Normalize::kMeanStd, Normalize::kMinMax, Normalize::kQ01Q99}) {
    LoaderOptions asked = options();
    asked.shuffle = false;
    asked.batch_size = 3;
    asked.streams = {{.stream = "x", .delta_timestamps = {0.0}, .normalize = normalize}};
    const Loader loader(dataset, asked);
    expect_every_batch(*dataset, loader);
    std::vector<float> got(9);
    std::memcpy(got.data(), filled(loader, {}).data() + loader.arrays()[0].offset, 36);
    for (const size_t i : {0, 3, 5, 6}) EXPECT_TRUE(std::isnan(got[i])) << i;
    for (const size_t i : {1, 2, 4, 7, 8}) EXPECT_FALSE(std::isnan(got[i])) << i;
  }
}

// Factors that overflow, or statistics that hold Inf, may not make NaN of numbers.
TEST_P(LoaderTest, NoNormalizationMakesNanOfNumbers) {
  const auto infinity = std::numeric_limits<float>::infinity();
  constexpr auto kGreatest = std::numeric_limits<float>::max();
  test::CacheWriter writer;
  writer.begin_episode();
  writer.append("float32", F32{}, {0, 1000, 2000},
                {1e-44F, infinity, -infinity, kGreatest, 0, 1, 2, -kGreatest, 1e-44F, 2, 3, kGreatest}, {4});
  writer.append("float64", F64{}, {0, 1000, 2000}, {1e-310, HUGE_VAL, 5, 0, 1, 1e308, 1e-310, 2, -1e308}, {3});
  writer.end_episode();
  const auto dataset = writer.dataset();
  for (const Normalize normalize : {Normalize::kMeanStd, Normalize::kMinMax, Normalize::kQ01Q99}) {
    LoaderOptions asked = options();
    asked.shuffle = false;
    asked.batch_size = 3;
    asked.dtype = DType::kFloat64;
    for (const auto& [name, features] : {std::pair<std::string, size_t>{"float32", 4}, {"float64", 3}}) {
      asked.streams = {{.stream = name, .delta_timestamps = {0.0}, .normalize = normalize}};
      const Loader loader(dataset, asked);
      std::vector<double> got(3 * features);
      std::memcpy(got.data(), filled(loader, {}).data() + loader.arrays()[0].offset, got.size() * sizeof(double));
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_FALSE(std::isnan(got[i])) << name << " element " << i << " by " << static_cast<int>(normalize);
      }
    }
  }
}

TEST_P(LoaderTest, NormalizationDoesWhatItsNameSays) {
  test::CacheWriter writer;
  writer.begin_episode();
  std::vector<int64_t> times;
  std::vector<double> values;
  for (int64_t i = 0; i <= 200; ++i) {
    times.push_back(i * kMillisecond);
    values.push_back(static_cast<double>(10 + i % 101));  // 10 to 110
  }
  writer.append("x", F64{}, times, values);
  writer.end_episode();
  const auto dataset = writer.dataset();
  const auto normalized = [&](Normalize normalize) {
    LoaderOptions asked = options();
    asked.shuffle = false;
    asked.dtype = DType::kFloat64;
    asked.batch_size = 201;
    asked.streams = {{.stream = "x", .delta_timestamps = {0.0}, .normalize = normalize}};
    const Loader loader(dataset, asked);
    std::vector<double> got(201);
    std::memcpy(got.data(), filled(loader, {}).data() + loader.arrays()[0].offset, 201 * 8);
    return got;
  };
  const std::vector<double> min_max = normalized(Normalize::kMinMax);
  EXPECT_NEAR(min_max[0], -1, 1e-12);
  EXPECT_NEAR(min_max[50], 0, 1e-12);
  EXPECT_NEAR(min_max[100], 1, 1e-12);
  const std::vector<double> quantiles = normalized(Normalize::kQ01Q99);
  EXPECT_NEAR(quantiles[50], 0, 1e-12);
  EXPECT_LT(quantiles[0], -1);
  EXPECT_GT(quantiles[100], 1);
  const std::vector<double> standard = normalized(Normalize::kMeanStd);
  const double sum = std::accumulate(standard.begin(), standard.end(), 0.0);
  const double squares = std::inner_product(standard.begin(), standard.end(), standard.begin(), 0.0);
  EXPECT_NEAR(sum / 201, 0, 1e-12);
  EXPECT_NEAR(squares / 201, 1, 1e-12);
}

TEST_P(LoaderTest, AStreamMayHaveNoRowsOrNoFeatures) {
  test::CacheWriter writer;
  writer.begin_episode();
  writer.append("x", F32{}, {0, 1000}, {1, 2});
  writer.append("no rows", F32{}, {}, {}, {3});
  writer.append("no features", F32{}, {0, 1000}, {}, {0});
  writer.end_episode();
  const auto dataset = writer.dataset();
  LoaderOptions asked = options();
  asked.anchor = "x";
  asked.batch_size = 2;
  for (const Stream& stream : dataset->streams()) {
    asked.streams.push_back({.stream = stream.name, .delta_timestamps = {0.0, 5e-7}});
  }
  expect_every_batch(*dataset, Loader(dataset, asked));
}

// ---- Batches ----

TEST_P(LoaderTest, ArraysDescribeTheBatch) {
  const auto dataset = every_type();
  LoaderOptions asked = options();
  asked.batch_size = 10;
  asked.dtype = DType::kBFloat16;
  asked.streams = {{.stream = stream_name(DType::kFloat32, 6), .delta_timestamps = {0.0, 0.1, 0.2}},
                   {.stream = stream_name(DType::kInt16, 2), .delta_timestamps = {0.0}},
                   {.stream = stream_name(DType::kFloat64, 1), .delta_timestamps = {0.0, 1.0}}};
  const Loader loader(dataset, asked);
  const std::vector<BatchArray>& arrays = loader.arrays();
  ASSERT_EQ(arrays.size(), 8u);
  const auto expect_array = [&](size_t i, const std::string& name, DType dtype, const std::vector<int64_t>& shape) {
    EXPECT_EQ(arrays[i].name, name);
    EXPECT_EQ(arrays[i].dtype, dtype) << name;
    EXPECT_EQ(arrays[i].shape, shape) << name;
  };
  expect_array(0, "float32.6", DType::kBFloat16, {3, 2, 3});
  expect_array(1, "float32.6_is_pad", DType::kBool, {3});
  expect_array(2, "int16.2", DType::kInt16, {1, 2});
  expect_array(3, "int16.2_is_pad", DType::kBool, {1});
  expect_array(4, "float64.1", DType::kBFloat16, {2});
  expect_array(5, "float64.1_is_pad", DType::kBool, {2});
  expect_array(6, "time_ns", DType::kInt64, {});
  expect_array(7, "episode_index", DType::kInt64, {});
  char* const memory = reinterpret_cast<char*>(uintptr_t{1} << 20);
  uintptr_t end = uintptr_t{1} << 20;
  for (const BatchArray& array : arrays) {
    EXPECT_EQ(array.offset % 256, 0);
    const TensorView view = loader.view(array, 0, memory);
    EXPECT_TRUE(view.is_contiguous());
    EXPECT_EQ(view.device, device());
    EXPECT_EQ(view.shape[0], 10);
    EXPECT_EQ(view.ndim, static_cast<int>(array.shape.size()) + 1);
    EXPECT_GE(view.extent()[0], end) << "no two arrays share memory";
    end = view.extent()[1];
  }
  EXPECT_LE(end, (uintptr_t{1} << 20) + loader.batch_bytes());
}

TEST_P(LoaderTest, TheLastBatchIsWhatIsLeft) {
  test::CacheWriter writer;
  writer.begin_episode();
  writer.append("x", F32{}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, std::vector<float>(11, 1));
  writer.end_episode();
  const auto dataset = writer.dataset();
  LoaderOptions asked = options();
  asked.batch_size = 4;
  asked.streams = {{.stream = "x", .delta_timestamps = {0.0}}};
  const Loader whole(dataset, asked);
  EXPECT_EQ(whole.anchors(), 11);
  EXPECT_EQ(whole.steps_per_epoch(), 3);
  EXPECT_EQ(whole.samples_at(1), 4);
  EXPECT_EQ(whole.samples_at(2), 3);
  EXPECT_EQ(whole.view(whole.arrays()[0], 2, nullptr).shape[0], 3);
  expect_every_batch(*dataset, whole);  // also that nothing past the third sample is written
  asked.drop_last = true;
  const Loader full(dataset, asked);
  EXPECT_EQ(full.steps_per_epoch(), 2);
  expect_every_batch(*dataset, full);
  asked.batch_size = 11;
  EXPECT_EQ(Loader(dataset, asked).steps_per_epoch(), 1);
  asked.drop_last = false;
  asked.batch_size = 1000;
  const Loader large(dataset, asked);
  EXPECT_EQ(large.steps_per_epoch(), 1);
  expect_every_batch(*dataset, large);
}

TEST_P(LoaderTest, AnEpochVisitsEveryAnchorOnce) {
  const auto dataset = every_type();
  LoaderOptions asked = options();
  asked.batch_size = 17;
  asked.streams = {{.stream = stream_name(DType::kFloat32, 2), .delta_timestamps = {0.0}}};
  const Loader loader(dataset, asked);
  std::vector<std::vector<std::pair<int64_t, int64_t>>> epochs;
  for (const int64_t epoch : {0, 1}) {
    epochs.emplace_back();
    for (int64_t step = 0; step < loader.steps_per_epoch(); ++step) {
      const std::vector<unsigned char> memory = filled(loader, {.seed = 5, .epoch = epoch, .step = step});
      const auto* times = reinterpret_cast<const int64_t*>(memory.data() + loader.arrays()[2].offset);
      const auto* episodes = reinterpret_cast<const int64_t*>(memory.data() + loader.arrays()[3].offset);
      for (int64_t i = 0; i < loader.samples_at(step); ++i) epochs.back().emplace_back(episodes[i], times[i]);
    }
  }
  EXPECT_NE(epochs[0], epochs[1]);
  std::vector<std::pair<int64_t, int64_t>> every;
  for (const Moment& moment : all_moments(*dataset, loader.options()))
    every.emplace_back(moment.episode, moment.time_ns);
  for (auto& epoch : epochs) {
    std::sort(epoch.begin(), epoch.end());
    EXPECT_EQ(epoch, every);
  }
}

TEST_P(LoaderTest, APositionAloneResumes) {
  const auto dataset = every_type();
  LoaderOptions asked = options();
  asked.batch_size = 12;
  asked.streams = {{.stream = stream_name(DType::kFloat32, 4), .delta_timestamps = kDeltas},
                   {.stream = stream_name(DType::kInt64, 2), .delta_timestamps = {0.0}}};
  std::vector<std::vector<unsigned char>> run;
  int64_t steps = 0;
  {
    const Loader loader(dataset, asked);
    steps = loader.steps_per_epoch();
    for (const int64_t epoch : {0, 1}) {
      for (int64_t step = 0; step < steps; ++step)
        run.push_back(filled(loader, {.seed = 9, .epoch = epoch, .step = step}));
    }
  }
  const Loader again(dataset, asked);
  for (auto i = static_cast<int64_t>(run.size()) - 1; i >= 0; --i) {  // in another order
    EXPECT_EQ(filled(again, {.seed = 9, .epoch = i / steps, .step = i % steps}), run[static_cast<size_t>(i)]);
  }
  EXPECT_NE(filled(again, {.seed = 10}), run[0]);
}

TEST_P(LoaderTest, KeepsWhatItReads) {
  const auto write = [] {
    test::CacheWriter writer;
    writer.begin_episode();
    writer.append("x", F32{}, {0, 1000, 2000}, {1, 2, 3});
    writer.end_episode();
    return writer.dataset();
  };
  auto dataset = write();
  LoaderOptions asked = options();
  asked.batch_size = 3;
  asked.streams = {{.stream = "x", .delta_timestamps = {0.0, 5e-7}}};
  auto first = std::make_unique<Loader>(dataset, asked);
  const std::vector<unsigned char> expected = filled(*first, {});
  const Loader second(dataset, asked);  // shares the stream with the first
  dataset.reset();
  first.reset();
  EXPECT_EQ(filled(second, {}), expected);
  Loader third = Loader(write(), asked);
  const Loader moved = std::move(third);
  EXPECT_EQ(filled(moved, {}), expected);
}

// ---- Threads ----

LoaderOptions options_of_everything(const Dataset& dataset) {
  LoaderOptions asked;
  asked.batch_size = 150;
  asked.anchor = stream_name(DType::kFloat32, 4);
  for (const Stream& stream : dataset.streams()) {
    asked.streams.push_back({.stream = stream.name, .delta_timestamps = kDeltas});
  }
  return asked;
}

TEST(LoaderThreads, TheirNumberChangesNothing) {
  const auto dataset = every_type();
  const Loader loader(dataset, options_of_everything(*dataset));
  const int before = num_threads();
  set_num_threads(1);
  const std::vector<unsigned char> expected = filled(loader, {.seed = 3});
  for (const int threads : {2, 5}) {
    set_num_threads(threads);
    EXPECT_EQ(filled(loader, {.seed = 3}), expected) << threads;
  }
  set_num_threads(before);
}

TEST(LoaderThreads, SeveralMayFillAtOnce) {
  const auto dataset = every_type();
  const Loader loader(dataset, options_of_everything(*dataset));
  std::vector<std::vector<unsigned char>> expected;
  for (uint64_t seed = 0; seed < 4; ++seed) expected.push_back(filled(loader, {.seed = seed}));
  std::vector<std::thread> threads;
  for (uint64_t first = 0; first < 4; ++first) {
    threads.emplace_back([&, first] {
      for (uint64_t round = 0; round < 8; ++round) {
        const uint64_t seed = (first + round) % 4;
        EXPECT_EQ(filled(loader, {.seed = seed}), expected[seed]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(LoaderThreads, LoadersOfOneDatasetAreMadeAtOnce) {
  const auto dataset = every_type();
  const std::vector<unsigned char> expected = filled(Loader(dataset, options_of_everything(*dataset)), {});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 4; ++round) {
        EXPECT_EQ(filled(Loader(dataset, options_of_everything(*dataset)), {}), expected);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- Refusals ----

class LoaderRefuses : public test::OnDevice {
 protected:
  // That `spoil` makes good options ones that are refused.
  template <class Refusal, class Spoil>
  static void when(const Spoil& spoil, const std::string& start, const std::string& also = "") {
    LoaderOptions asked;
    asked.device = device();
    asked.streams = {{.stream = "float32.4", .delta_timestamps = {0.0}},
                     {.stream = "int16.2", .delta_timestamps = {0.0}}};
    EXPECT_NO_THROW(Loader(every_type(), asked));
    spoil(asked);
    try {
      const Loader loader(every_type(), asked);
      ADD_FAILURE() << "accepted, expected: " << start;
    } catch (const Refusal& refusal) {
      const std::string text = refusal.what();
      EXPECT_TRUE(text.starts_with(start)) << text;
      EXPECT_NE(text.find(also), std::string::npos) << text;
    } catch (const std::exception& other) {
      ADD_FAILURE() << "another type: " << other.what();
    }
  }
};
ROBOCACHE_ON_EACH_DEVICE(LoaderRefuses);

TEST_P(LoaderRefuses, Streams) {
  when<ArgumentError>([](LoaderOptions& o) { o.streams.clear(); }, "delta_timestamps: expected at least one stream");
  when<ArgumentError>([](LoaderOptions& o) { o.streams[0].stream = "no such"; }, "delta_timestamps: ", "no such");
  when<ArgumentError>([](LoaderOptions& o) { o.streams.push_back(o.streams[0]); }, "delta_timestamps: ", "twice");
  when<ArgumentError>([](LoaderOptions& o) { o.streams[0].delta_timestamps.clear(); },
                      "delta_timestamps['float32.4']: expected at least one");
  for (const double bad : {kNan, HUGE_VAL, -HUGE_VAL, 5e9, -5e9}) {
    when<ArgumentError>([&](LoaderOptions& o) { o.streams[0].delta_timestamps = {0.0, bad}; },
                        "delta_timestamps['float32.4']: ");
  }
}

TEST_P(LoaderRefuses, RowsOfMoreDimensionsThanABatchHolds) {
  for (const size_t dimensions : {6, 7}) {
    test::CacheWriter writer;
    writer.begin_episode();
    writer.append("x", U8{}, {0}, {1}, std::vector<int64_t>(dimensions, 1));
    writer.end_episode();
    const auto dataset = writer.dataset();
    LoaderOptions asked;
    asked.device = device();
    asked.streams = {{.stream = "x", .delta_timestamps = {0.0}}};
    if (dimensions == 6) {
      const Loader loader(dataset, asked);
      EXPECT_EQ(loader.view(loader.arrays()[0], 0, nullptr).ndim, kMaxDims);
    } else {
      EXPECT_THROW(Loader(dataset, asked), ArgumentError);
    }
  }
}

TEST_P(LoaderRefuses, Types) {
  when<ArgumentTypeError>([](LoaderOptions& o) { o.streams[1].method = InterpolationMethod::kLinear; },
                          "methods['int16.2']: 'linear' expects a floating stream, got int16");
  when<ArgumentTypeError>([](LoaderOptions& o) { o.streams[1].normalize = Normalize::kMinMax; },
                          "normalize['int16.2']: expected a floating stream, got int16");
  when<ArgumentTypeError>([](LoaderOptions& o) { o.streams[1].dtype = DType::kFloat32; },
                          "dtype['int16.2']: expected int16, got float32");
  when<ArgumentTypeError>([](LoaderOptions& o) { o.streams[0].dtype = DType::kInt32; },
                          "dtype['float32.4']: expected a floating dtype, got int32");
  when<ArgumentError>([](LoaderOptions& o) { o.dtype = DType::kInt64; }, "dtype: expected float64", "got int64");
}

TEST_P(LoaderRefuses, Numbers) {
  for (const int64_t bad : {int64_t{0}, int64_t{-1}, int64_t{1} << 40}) {
    when<ArgumentError>([&](LoaderOptions& o) { o.batch_size = bad; }, "batch_size: ", std::to_string(bad));
  }
  when<ArgumentError>([](LoaderOptions& o) { o.batch_size = 100'000, o.drop_last = true; }, "batch_size: ");
  for (const double bad : {-1e-9, kNan}) {
    when<ArgumentError>([&](LoaderOptions& o) { o.snap_s = bad; }, "snap_s: expected 0 or more");
    when<ArgumentError>([&](LoaderOptions& o) { o.streams[0].max_gap_s = bad; },
                        "max_gap_s['float32.4']: expected 0 or more");
  }
  when<ArgumentError>([](LoaderOptions& o) { o.snap_s = HUGE_VAL; }, "snap_s: ");
}

TEST_P(LoaderRefuses, Anchors) {
  when<ArgumentError>([](LoaderOptions& o) { o.anchor = "no such"; }, "anchor: ", "no such");
  when<ArgumentError>([](LoaderOptions& o) { o.anchor = "int16.2", o.anchor_hz = 10; }, "anchor: ");
  for (const double bad : {0.0, -1.0, kNan, HUGE_VAL, 1e300, 1e-300}) {
    when<ArgumentError>([&](LoaderOptions& o) { o.anchor_hz = bad; }, "anchor_hz: ");
  }
  when<ArgumentError>([](LoaderOptions& o) { o.episodes = std::vector<int64_t>{}; }, "episodes: ");
  when<ArgumentError>([](LoaderOptions& o) { o.episodes = std::vector<int64_t>{0, 5}; },
                      "episodes: expected indices in [0, 5), got 5");
  when<ArgumentError>([](LoaderOptions& o) { o.episodes = std::vector<int64_t>{-1}; }, "episodes: ", "got -1");
}

TEST_P(LoaderRefuses, StepsOutsideTheEpoch) {
  LoaderOptions asked;
  asked.device = device();
  asked.streams = {{.stream = "float32.4", .delta_timestamps = {0.0}}};
  const Loader loader(every_type(), asked);
  for (const int64_t step : {int64_t{-1}, loader.steps_per_epoch(), std::numeric_limits<int64_t>::max()}) {
    try {
      loader.fill({.step = step}, nullptr, {});
      ADD_FAILURE() << step;
    } catch (const ArgumentError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("step: ")) << error.what();
    }
  }
}

TEST_P(LoaderRefuses, DevicesThatAreNotThere) {
  when<DeviceError>([](LoaderOptions& o) { o.device = {DeviceType::kCuda, 99}; },
                    cuda_device_count() == 0 ? "CUDA is not available: " : "device: ");
}

TEST(NormalizeNames, ComeBackOrAreRefusedWithTheKnownOnes) {
  EXPECT_EQ(normalize_from_name("mean_std"), Normalize::kMeanStd);
  EXPECT_EQ(normalize_from_name("min_max"), Normalize::kMinMax);
  EXPECT_EQ(normalize_from_name("q01_q99"), Normalize::kQ01Q99);
  try {
    normalize_from_name("zscore");
    FAIL();
  } catch (const ArgumentError& error) {
    EXPECT_STREQ(error.what(), "normalize: expected 'mean_std', 'min_max' or 'q01_q99', got 'zscore'");
  }
}

}  // namespace
}  // namespace robocache
