#include "robocache/batch/loader.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/cpp/batch/loader_reference.hpp"

namespace robocache::test {
namespace {

class LoaderTargets : public OnDeviceOfLoader {};
ROBOCACHE_ON_EACH_DEVICE(LoaderTargets);

// A loader of one stream "x" and one anchor at `time`: its steps.
struct Window {
  std::vector<double> values;
  std::vector<uint8_t> is_pad;
};

template <class E>
Window window_at(int64_t time, E element, const std::vector<int64_t>& times,
                 const std::vector<typename E::Type>& values, LoaderOptions asked, StreamRequest request) {
  CacheWriter writer;
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
    for (const T value : got) window.values.push_back(widened(value));
  });
  const unsigned char* const is_pad = memory.data() + loader.arrays()[1].offset;
  window.is_pad.assign(is_pad, is_pad + steps);
  return window;
}

TEST_P(LoaderTargets, OutsideTheRecordingIsTheEdgeSamplePadded) {
  LoaderOptions asked = options();
  asked.snap_s = 0;
  const Window window = window_at(2000, F32{}, {1000, 2000, 3000}, {1, 2, 3}, asked,
                                  {.delta_timestamps = {-2e-6, -1e-6, -5e-7, 0, 5e-7, 1e-6, 2e-6, -1e5, 4e9}});
  EXPECT_EQ(window.values, (std::vector<double>{1, 1, 1.5, 2, 2.5, 3, 3, 1, 3}));
  EXPECT_EQ(window.is_pad, (std::vector<uint8_t>{1, 0, 0, 0, 0, 0, 1, 1, 1}));
}

TEST_P(LoaderTargets, AStreamThatIsMissingIsZeroAndPadded) {
  const Window floats = window_at(5, F32{}, {}, {}, options(), {.delta_timestamps = {0, 1}});
  EXPECT_EQ(floats.values, (std::vector<double>{0, 0}));
  EXPECT_EQ(floats.is_pad, (std::vector<uint8_t>{1, 1}));
  const Window whole = window_at(5, I32{}, {}, {}, options(), {.delta_timestamps = {0, 1}});
  EXPECT_EQ(whole.values, (std::vector<double>{0, 0}));
  EXPECT_EQ(whole.is_pad, (std::vector<uint8_t>{1, 1}));
}

TEST_P(LoaderTargets, ABracketLongerThanMaxGapIsPaddedEqualIsNot) {
  for (const auto& [max_gap_s, padded] : {std::pair{999e-9, 1}, {1000e-9, 0}, {HUGE_VAL, 0}, {0.0, 1}}) {
    LoaderOptions asked = options();
    asked.snap_s = 0;
    const Window window =
        window_at(1500, F32{}, {1000, 2000}, {1, 2}, asked, {.delta_timestamps = {0, 5e-7}, .max_gap_s = max_gap_s});
    EXPECT_EQ(window.values, (std::vector<double>{1.5, 2}));
    EXPECT_EQ(window.is_pad, (std::vector<uint8_t>{static_cast<uint8_t>(padded), 0})) << max_gap_s;
  }
}

TEST_P(LoaderTargets, ATargetCloserThanSnapIsTheSample) {
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

TEST_P(LoaderTargets, OfRowsWithOneTimeOnlyTheLastExists) {
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
TEST_P(LoaderTargets, Float64IsRoundedOnceToSixteenBits) {
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

}  // namespace
}  // namespace robocache::test
