#include "robocache/batch/residency.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "robocache/core/backend.hpp"
#include "robocache/core/error.hpp"
#include "robocache/core/host_memory.hpp"
#include "tests/cpp/expect_refused.hpp"
#include "tests/cpp/random_data.hpp"
#include "tests/cpp/temporary_cache.hpp"

namespace robocache::test {
namespace {

constexpr Device kCuda{DeviceType::kCuda, 1};
constexpr Device kCpu{};
// Short names for the tables of expected tiers.
constexpr Tier X = Tier::kDecoded;  // pixels
constexpr Tier D = Tier::kDevice;
constexpr Tier P = Tier::kPinned;
constexpr Tier M = Tier::kMapped;

std::vector<Tier> tiers(const std::vector<Residency>& decided) {
  std::vector<Tier> result;
  for (const Residency& residency : decided) result.push_back(residency.tier);
  return result;
}

// Returns the tiers of keys "a", "b", ... of these sizes, all automatic.
std::vector<Tier> automatic_tiers(const std::vector<int64_t>& bytes, Device device, MemoryBytes budget,
                                  MemoryBytes taken_bytes = {}) {
  std::vector<ResidencyRequest> requests;
  for (size_t i = 0; i < bytes.size(); ++i) requests.push_back({std::string(1, static_cast<char>('a' + i)), bytes[i]});
  const std::vector<Residency> decided = decide_residency(requests, device, budget, taken_bytes);
  for (const Residency& residency : decided) EXPECT_TRUE(residency.automatic);
  return tiers(decided);
}

TEST(DecideResidency, FillsTheDeviceThenPinnedMemory) {
  EXPECT_EQ(automatic_tiers({}, kCuda, {0, 0}), (std::vector<Tier>{}));
  EXPECT_EQ(automatic_tiers({60, 40}, kCuda, {100, 0}), (std::vector{D, D}));
  EXPECT_EQ(automatic_tiers({0, 0}, kCuda, {0, 0}), (std::vector{D, D}));
  // Streams of equal size stay in order.
  EXPECT_EQ(automatic_tiers({30, 30, 30, 30}, kCuda, {60, 30}), (std::vector{D, D, P, M}));
  // Clocks and tables come before any stream.
  EXPECT_EQ(automatic_tiers({60, 40}, kCuda, {100, 60}, {1, 0}), (std::vector{P, D}));
  EXPECT_EQ(automatic_tiers({60, 40}, kCuda, {100, 60}, {1, 1}), (std::vector{M, D}));
  EXPECT_EQ(automatic_tiers({1, 0}, kCuda, {100, 100}, {101, 101}), (std::vector{M, D}));
}

TEST(DecideResidency, RequestedTiersComeFirst) {
  const std::vector<ResidencyRequest> requests{{"a", 50}, {"b", 80, D}, {"c", 10, M}, {"d", 70, P}, {"e", 15}};
  const auto decided = decide_residency(requests, kCuda, {100, 100}, {});
  EXPECT_EQ(tiers(decided), (std::vector{M, D, M, P, D}));
  EXPECT_TRUE(decided[0].automatic);
  EXPECT_FALSE(decided[1].automatic);
  EXPECT_FALSE(decided[2].automatic);
  EXPECT_EQ(tiers(decide_residency(requests, kCuda, {100, 120}, {})), (std::vector{P, D, M, P, D}));
}

TEST(DecideResidency, PixelsTakeTheRestOfTheBudget) {
  const auto camera = [](int64_t encoded_bytes, int64_t decoded_size) {
    return ResidencyRequest{.key = "camera", .bytes = encoded_bytes, .tier = {}, .decoded_bytes = decoded_size};
  };
  const auto tiers_of = [](const std::vector<ResidencyRequest>& requests, Device device, MemoryBytes budget) {
    return tiers(decide_residency(requests, device, budget, {}));
  };
  const ResidencyRequest state{"state", 40};
  EXPECT_EQ(tiers_of({camera(10, 60), state}, kCuda, {100, 0}), (std::vector{X, D}));
  EXPECT_EQ(tiers_of({camera(10, 61), state}, kCuda, {100, 0}), (std::vector{D, D}));
  EXPECT_EQ(tiers_of({camera(10, 60), state}, kCpu, {0, 100}), (std::vector{X, D}));
  EXPECT_EQ(tiers_of({camera(10, 61), state}, kCpu, {100, 100}), (std::vector{D, D}));
  // The fewest pixels come first, whatever their encoded size. Pixels never take what other streams need.
  EXPECT_EQ(tiers_of({camera(5, 90), camera(10, 80)}, kCuda, {100, 0}), (std::vector{D, X}));
  EXPECT_EQ(tiers_of({camera(5, 90), camera(10, 80)}, kCuda, {170, 0}), (std::vector{X, X}));
  EXPECT_EQ(tiers_of({camera(60, 70), {"wide", 90}}, kCuda, {130, 90}), (std::vector{X, P}));
  // Pixels may fit beside a stream that stays in its files, and can be requested by name.
  ResidencyRequest png_camera = camera(50, 60);
  png_camera.stays_in_files = true;
  EXPECT_EQ(tiers_of({png_camera}, kCuda, {60, 0}), (std::vector{X}));
  EXPECT_EQ(tiers_of({png_camera}, kCuda, {59, 100}), (std::vector{M}));
  png_camera.tier = X;
  EXPECT_EQ(tiers_of({png_camera}, kCuda, {60, 0}), (std::vector{X}));
  expect_refused<DeviceError>([&] { tiers_of({png_camera}, kCuda, {59, 100}); },
                              "memory.residency: 'camera' as 'decoded' needs 60 bytes of cuda:1");
  EXPECT_EQ(decide_residency(std::vector{camera(10, 61)}, kCuda, {60, 0}, {})[0].why,
            "a copy in the device's memory; pixels, 61 bytes, over budget (60 bytes of cuda:1)");
}

class ResidencyOnCuda : public testing::Test {
 protected:
  void SetUp() override { skip_unless_usable({DeviceType::kCuda, 0}); }
};

TEST_F(ResidencyOnCuda, TheDevicesBudgetIsAShareOfItsFreeMemory) {
  CudaDeviceInfo info{};
  check_cuda(cuda_backend().device_info(0, &info), "device_info");
  const int64_t half = budget_bytes({}, {DeviceType::kCuda, 0}, {}).device;
  EXPECT_NEAR(static_cast<double>(half), static_cast<double>(info.memory_free_bytes) / 2, 1e9);
  EXPECT_EQ(budget_bytes({int64_t{9}, 0.5}, {DeviceType::kCuda, 0}, {}).device, 9);
  constexpr int64_t kPresent = int64_t{1} << 50;
  EXPECT_GT(budget_bytes({1.0, 0.5}, {DeviceType::kCuda, 0}, {kPresent, 0}).device, kPresent);
}

// ---- Loading ----

using F32 = Element<float, DType::kFloat32>;

std::shared_ptr<const Dataset> dataset_of_8_mib() {
  CacheWriter writer;
  constexpr int64_t kRows = 2048;
  std::vector<int64_t> times(kRows);
  for (size_t i = 0; i < times.size(); ++i) times[i] = static_cast<int64_t>(i);
  writer.begin_episode();
  writer.append("wide", F32{}, times, std::vector<float>(kRows * 1024, 1.5F), {1024});
  writer.end_episode();
  return writer.dataset();
}

class LoadStreams : public OnDevice {};
ROBOCACHE_ON_EACH_DEVICE(LoadStreams);

TEST_P(LoadStreams, LoadsIntoTheDecidedTier) {
  const auto dataset = dataset_of_8_mib();
  const std::vector<DatasetStream> streams{{dataset, 0}, {dataset_of_8_mib(), 0}};
  for (const Tier tier : {D, P, M}) {
    Residency residency{tier, true, "why"};
    const auto loaded = load_streams(streams, device(), residency);
    ASSERT_EQ(loaded.size(), 2u);
    EXPECT_EQ(loaded[0], ResidentStream::get(dataset, 0, device(), tier));
    EXPECT_NE(loaded[0], loaded[1]);
    EXPECT_EQ(residency.tier, tier);
    EXPECT_EQ(residency.why, "why");
  }
}

// The budget allows the device, but the allocation fails.
TEST_F(ResidencyOnCuda, AStreamMovesDownIfAnAllocationFails) {
  const Device device{DeviceType::kCuda, 0};
  const std::vector<DatasetStream> streams{{dataset_of_8_mib(), 0}};
  const auto clock = ResidentClock::get(streams[0].dataset, 0, device);  // the clock is in memory already
  std::vector<DeviceBuffer> everything;
  for (size_t bytes = size_t{1} << 34; bytes >= size_t{1} << 20;) {
    try {
      everything.emplace_back(device, bytes);
    } catch (const OutOfMemory&) {
      bytes /= 2;
    }
  }
  Residency residency{D, true, "it fits"};
  EXPECT_EQ(load_streams(streams, device, residency)[0]->tier(), P);
  EXPECT_EQ(residency.tier, P);
  EXPECT_TRUE(residency.why.starts_with("stream 'wide': needs 8388608 bytes, free are ")) << residency.why;
  EXPECT_TRUE(residency.why.ends_with(": a copy in pinned host memory")) << residency.why;
  Residency by_name{D, false, "asked for"};
  expect_refused<OutOfMemory>([&] { load_streams(streams, device, by_name); },
                              "stream 'wide': needs 8388608 bytes, free are ", " on cuda:0 and ");
}

}  // namespace
}  // namespace robocache::test
