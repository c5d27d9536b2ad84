#include "robocache/source/resident.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "robocache/source/read_rows.hpp"
#include "tests/cpp/cache/files.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/expect_refused.hpp"
#include "tests/cpp/random_data.hpp"
#include "tests/cpp/temporary_cache.hpp"

namespace robocache::test {
namespace {

using F32 = Element<float, DType::kFloat32>;

constexpr Tier kTiers[] = {Tier::kDevice, Tier::kPinned, Tier::kMapped};

// A dataset whose streams "a" and "b" have one clock. "c" has the same times in other episodes, "d" has other times,
// and "none" has no rows. The files last as long as `writer`.
std::shared_ptr<const Dataset> write_dataset(CacheWriter& writer) {
  writer.begin_episode();
  writer.append("a", F32{}, {10, 20, 30}, {1, 2, 3});
  writer.append("b", F32{}, {10, 20, 30}, {4, 5, 6});
  writer.append("c", F32{}, {10, 20}, {7, 8});
  writer.append("d", F32{}, {10, 20, 31}, {1, 1, 1});
  writer.append("none", F32{}, {}, {});
  writer.end_episode();
  writer.begin_episode();
  writer.append("c", F32{}, {30}, {9});
  writer.append("none", F32{}, {}, {});
  writer.end_episode();
  return writer.dataset();
}

// Returns a dataset whose files are deleted, but still open.
std::shared_ptr<const Dataset> write_dataset() {
  CacheWriter writer;
  return write_dataset(writer);
}

// Returns the rows of a stream in any tier.
std::vector<float> values_of(const ResidentStream& resident, size_t count, Device device) {
  std::vector<float> values(count);
  const StreamRows rows = resident.rows();
  const size_t bytes = count * sizeof(float);
  if (rows.file.descriptor >= 0) {
    EXPECT_EQ(rows.values, nullptr);
    read_rows(rows.file, 0, bytes, values.data());
  } else if (device.is_cuda() && resident.tier() != Tier::kMapped) {
    check_cuda(cuda_backend().copy_to_host(device.index, values.data(), rows.values, bytes, nullptr), "read");
    check_cuda(cuda_backend().synchronize(device.index, nullptr), "read");
  } else if (bytes > 0) {
    std::memcpy(values.data(), rows.values, bytes);
  }
  return values;
}

class Resident : public OnDevice {};
ROBOCACHE_ON_EACH_DEVICE(Resident);

// The stream is longer than one piece of a copy.
TEST_P(Resident, LongStreamsAreCopiedCompletely) {
  CacheWriter writer;
  constexpr int64_t kRows = 90'000;
  constexpr int64_t kFeatures = 200;
  std::vector<int64_t> times(kRows);
  std::vector<float> values(kRows * kFeatures);
  for (size_t i = 0; i < times.size(); ++i) times[i] = static_cast<int64_t>(i) * 1000;
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 16'777'213);
  writer.begin_episode();
  writer.append("long", F32{}, times, values, {kFeatures});
  writer.end_episode();
  const auto dataset = writer.dataset();
  EXPECT_EQ(ResidentStream::bytes(*dataset, 0), kRows * kFeatures * 4);
  EXPECT_EQ(ResidentClock::bytes(*dataset, 0), kRows * 8 + 32);
  for (const Tier tier : kTiers) {
    const auto stream = ResidentStream::get(dataset, 0, device(), tier);
    const std::vector<float> actual = values_of(*stream, values.size(), device());
    EXPECT_EQ(std::memcmp(actual.data(), values.data(), values.size() * sizeof(float)), 0) << name_of(tier);
  }
}

TEST_P(Resident, ATierIsLoadedOnceWhileItLives) {
  CacheWriter writer;
  const auto dataset = write_dataset(writer);
  const auto get = [&](Tier tier) { return ResidentStream::get(dataset, 0, device(), tier); };
  const auto on_device = get(Tier::kDevice);
  const auto pinned = get(Tier::kPinned);
  const auto mapped = get(Tier::kMapped);
  EXPECT_EQ(get(Tier::kDevice), on_device);
  EXPECT_EQ(get(Tier::kPinned), pinned);
  EXPECT_EQ(get(Tier::kMapped), mapped);
  EXPECT_NE(mapped, on_device);
  EXPECT_EQ(on_device->tier(), Tier::kDevice);
  EXPECT_EQ(pinned->tier(), device().is_cuda() ? Tier::kPinned : Tier::kDevice);
  EXPECT_EQ(mapped->tier(), Tier::kMapped);
  EXPECT_EQ(pinned == on_device, !device().is_cuda());
  // The clock is in the memory of the reader: a kernel, or the host.
  EXPECT_EQ(on_device->rows().clock, on_device->clock().on_device());
  EXPECT_EQ(pinned->rows().clock, on_device->rows().clock);
  EXPECT_EQ(mapped->rows().clock, on_device->clock().on_host());
}

TEST_P(Resident, PresentBytesAreThoseOfLivingStreams) {
  CacheWriter writer;
  const auto dataset = write_dataset(writer);
  const auto present_bytes = [&](Tier tier) { return ResidentStream::bytes_present(*dataset, 0, device(), tier); };
  const auto present_clock_bytes = [&](int64_t stream, Device where) {
    return ResidentClock::bytes_present(*dataset, stream, where);
  };
  for (const Tier tier : kTiers) {
    EXPECT_EQ(present_bytes(tier), 0) << name_of(tier);
    EXPECT_EQ(present_clock_bytes(0, device()), 0);
    auto stream_in_tier = ResidentStream::get(dataset, 0, device(), tier);
    for (const Tier other : kTiers) {
      const bool is_same_copy =
          other == tier || (!device().is_cuda() && tier != Tier::kMapped && other != Tier::kMapped);
      EXPECT_EQ(present_bytes(other), is_same_copy && tier != Tier::kMapped ? 12 : 0)
          << name_of(tier) << ' ' << name_of(other);
    }
    EXPECT_EQ(ResidentStream::bytes_present(*dataset, 1, device(), tier), 0);
    const int64_t clock = ResidentClock::bytes(*dataset, 0);
    EXPECT_EQ(present_clock_bytes(0, {}), clock);
    EXPECT_EQ(present_clock_bytes(dataset->index_of("b"), {}), clock);  // b has the same clock
    EXPECT_EQ(present_clock_bytes(dataset->index_of("d"), {}), 0);
    EXPECT_EQ(present_clock_bytes(0, device()), device().is_cuda() && tier == Tier::kMapped ? 0 : clock);
    EXPECT_EQ(ResidentStream::bytes_present(*write_dataset(), 0, device(), tier), 0);  // of another dataset
    stream_in_tier.reset();
  }
}

TEST_P(Resident, StreamsWithTheSameTimesAndEpisodesShareOneClock) {
  const auto dataset = write_dataset();
  const auto get = [&](const char* name) {
    return ResidentStream::get(dataset, dataset->index_of(name), device(), Tier::kDevice);
  };
  const auto a = get("a");
  const auto b = get("b");
  EXPECT_EQ(a->rows().clock, b->rows().clock);
  EXPECT_EQ(&a->clock(), &b->clock());
  EXPECT_NE(a->rows().values, b->rows().values);
  for (const char* other : {"c", "d", "none"}) EXPECT_FALSE(get(other)->rows().clock == a->rows().clock) << other;
  EXPECT_EQ(get("b"), b);  // the same object, while it lives
  // Another dataset with the same content has its own clock.
  const auto other_dataset = write_dataset();
  EXPECT_NE(&ResidentStream::get(other_dataset, 0, device(), Tier::kDevice)->clock(), &a->clock());
}

TEST_P(Resident, AClockAloneEqualsThatOfItsStream) {
  const auto dataset = write_dataset();
  const auto clock = ResidentClock::get(dataset, dataset->index_of("b"), device());
  EXPECT_EQ(&ResidentStream::get(dataset, dataset->index_of("a"), device(), Tier::kPinned)->clock(), clock.get());
  EXPECT_EQ(ResidentClock::get(dataset, 0, {})->on_host(), clock->on_host());  // kept once for all devices
}

TEST_P(Resident, EpisodesHaveTheirRowsAndRate) {
  const auto dataset = write_dataset();
  const auto clock = ResidentClock::get(dataset, dataset->index_of("c"), device());
  const StreamClock c = clock->on_host();
  EXPECT_EQ(c.episodes[0].begin, 0);
  EXPECT_EQ(c.episodes[0].rows, 2);
  EXPECT_EQ(c.episodes[0].first_ns, 10);
  EXPECT_EQ(c.episodes[0].rows_per_ns, 0.1);
  EXPECT_EQ(c.episodes[1].begin, 2);
  EXPECT_EQ(c.episodes[1].rows, 1);
  EXPECT_EQ(c.episodes[1].first_ns, 30);
  EXPECT_EQ(c.episodes[1].rows_per_ns, 0);
  EXPECT_EQ(c.time_ns[2], 30);
  const auto none = ResidentClock::get(dataset, dataset->index_of("none"), device());
  EXPECT_EQ(none->on_host().episodes[1].rows, 0);
}

// ---- Files that change under an open dataset ----

TEST_P(Resident, AFileCutShortIsRefusedWhenItIsCopied) {
  CacheWriter writer;
  const auto dataset = write_dataset(writer);
  const std::string folder = dataset->path() + "/streams/";
  constexpr int kHeader = 128;
  std::filesystem::resize_file(folder + "b/values.npy", kHeader + 4);
  std::filesystem::resize_file(folder + "d/time_ns.npy", kHeader + 8);
  for (const Tier tier : {Tier::kDevice, Tier::kPinned}) {
    expect_refused<FileError>([&] { ResidentStream::get(dataset, dataset->index_of("b"), device(), tier); },
                              folder + "b/values.npy: at byte 132: expected 8 more bytes, got the end");
  }
  for (const Tier tier : kTiers) {
    expect_refused<FileError>([&] { ResidentStream::get(dataset, dataset->index_of("d"), device(), tier); },
                              folder + "d/time_ns.npy: at byte 136: expected 16 more bytes");
  }
}

// ---- Ranks of one host ----

class ResidentOfRanks : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    setenv("LOCAL_WORLD_SIZE", "2", 1);
  }
  void TearDown() override { unsetenv("LOCAL_WORLD_SIZE"); }
};
ROBOCACHE_ON_EACH_DEVICE(ResidentOfRanks);

TEST(LocalWorldSize, IsReadFromTheEnvironment) {
  for (const auto& [text, ranks] : {std::pair{"1", 1}, {"8", 8}, {"0", 1}, {"-3", 1}, {"many", 1}}) {
    setenv("LOCAL_WORLD_SIZE", text, 1);
    EXPECT_EQ(local_world_size(), ranks) << text;
  }
  unsetenv("LOCAL_WORLD_SIZE");
  EXPECT_EQ(local_world_size(), 1);
}

TEST_P(ResidentOfRanks, ShareOneCopyInHostMemory) {
  CacheWriter writer;
  const auto dataset = write_dataset(writer);
  const int64_t b = dataset->index_of("b");
  const auto present_bytes = [&] { return ResidentStream::bytes_present(*dataset, b, device(), Tier::kPinned); };
  EXPECT_EQ(present_bytes(), 0);
  auto first_rank = ResidentStream::get(dataset, b, device(), Tier::kPinned);
  EXPECT_EQ(first_rank->note(), "one copy for all ranks of this host");
  EXPECT_EQ(present_bytes(), 12);  // while the copy lives
  // Another rank, which has not loaded it yet, sees it.
  EXPECT_GE(ResidentStream::bytes_present(*Dataset::open(dataset->path()), b, device(), Tier::kPinned), 12);
  // Opens it as another rank does.
  const auto opened_again = Dataset::open(dataset->path());
  const auto second_rank = ResidentStream::get(opened_again, b, device(), Tier::kPinned);
  EXPECT_NE(second_rank, first_rank);
  EXPECT_EQ(second_rank->note(), first_rank->note());
  EXPECT_EQ(values_of(*first_rank, 3, device()), (std::vector<float>{4, 5, 6}));
  EXPECT_EQ(values_of(*second_rank, 3, device()), (std::vector<float>{4, 5, 6}));
  first_rank.reset();
  EXPECT_GE(present_bytes(), 12);  // the other rank's copy, in whole pages
  EXPECT_EQ(values_of(*second_rank, 3, device()), (std::vector<float>{4, 5, 6}));
  if (device().is_cuda()) {
    EXPECT_EQ(ResidentStream::get(dataset, b, device(), Tier::kDevice)->note(), "");
  }
  // Two files without a name cannot be recognised as the same.
  const auto removed = write_dataset();
  EXPECT_EQ(values_of(*ResidentStream::get(removed, b, device(), Tier::kPinned), 3, device()),
            (std::vector<float>{4, 5, 6}));
}

TEST_P(ResidentOfRanks, AnEmptyStreamNeedsNoCopy) {
  CacheWriter writer;
  const auto dataset = write_dataset(writer);
  EXPECT_EQ(ResidentStream::get(dataset, dataset->index_of("none"), device(), Tier::kPinned)->note(), "");
}

#ifndef __SANITIZE_THREAD__  // ThreadSanitizer does not follow threads that start after a fork.

TEST(ResidentOfProcesses, ShareOneMemory) {
  setenv("LOCAL_WORLD_SIZE", "2", 1);
  CacheWriter writer;
  const auto dataset = write_dataset(writer);
  const int64_t b = dataset->index_of("b");
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    const auto opened = Dataset::open(dataset->path());
    for (;;) {
      const auto second_rank = ResidentStream::get(opened, b, {}, Tier::kPinned);
      auto* const values = static_cast<float*>(const_cast<void*>(second_rank->rows().values));
      if (values[1] == 5 && values[0] == 4) values[2] = 66;  // only this test writes there
      if (values[0] == 44) _exit(0);
      usleep(1000);
    }
  }
  const auto first_rank = ResidentStream::get(dataset, b, {}, Tier::kPinned);
  auto* const values = static_cast<volatile float*>(const_cast<void*>(first_rank->rows().values));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (values[2] != 66 && std::chrono::steady_clock::now() < deadline) usleep(1000);
  EXPECT_EQ(values[2], 66);
  values[0] = 44;
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  unsetenv("LOCAL_WORLD_SIZE");
}

#endif

}  // namespace
}  // namespace robocache::test
