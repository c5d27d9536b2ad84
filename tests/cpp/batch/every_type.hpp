// A recording with streams of every element type, and the memory of its batches.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "robocache/batch/loader.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/random_data.hpp"
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

// Returns the memory of the batch at `position`, which the loader has filled.
inline std::vector<unsigned char> filled(const Loader& loader, const BatchPosition& position) {
  const test::DeviceArray<uint8_t> memory(std::vector<uint8_t>(loader.batch_bytes(), kUnwritten), DType::kUInt8,
                                          {static_cast<int64_t>(loader.batch_bytes())}, loader.options().device);
  loader.fill(position, memory.view().data, {});
  return memory.read();
}

// Times about every `period_ns`, with jitter, a dropout and a repeated stamp.
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

// A recording with a stream for each float type and vector width, and one for each integer type. In each of its five
// episodes some streams are missing or have one row. It is written once for all tests, because making files durable
// takes most of the time.
inline const std::shared_ptr<const Dataset>& every_type() {
  static const std::shared_ptr<const Dataset> dataset = [] {
    Random random(41);
    test::CacheWriter writer;
    for (int64_t episode = 0; episode < 5; ++episode) {
      const int64_t start = kStart + episode * 10'000 * kMillisecond;
      writer.begin_episode();
      int64_t stream_number = 0;
      const auto append = [&](auto element, int64_t features, const std::vector<int64_t>& row_shape) {
        ++stream_number;
        if ((stream_number + episode) % 7 == 3) return;
        std::vector<int64_t> times =
            jittered(random, start, 300 * kMillisecond, (3 + stream_number % 17) * kMillisecond);
        if ((stream_number + episode) % 7 == 5) times.resize(1);
        const auto n = static_cast<int64_t>(times.size());
        // Some streams also hold infinities and numbers of any size, which can hardly be normalised.
        const bool any_size = stream_number % 4 == 1;
        const auto values =
            any_size ? random.values(element, n * features) : random.everyday_values(element, n * features);
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
  return dataset;
}

inline const std::vector<double> kDeltas{0.0, -0.021, 0.0005, 0.4, -0.4, 0.013, 0.013};

// A test whose loader runs on the test's device.
class OnDeviceOfLoader : public OnDevice {
 protected:
  static LoaderOptions options() {
    LoaderOptions options;
    options.device = device();
    return options;
  }
};

}  // namespace robocache::test
