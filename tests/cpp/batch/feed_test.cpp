#include "robocache/batch/feed.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "robocache/core/backend.hpp"
#include "robocache/core/error.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/expect_refused.hpp"
#include "tests/cpp/in_a_child.hpp"
#include "tests/cpp/random_data.hpp"
#include "tests/cpp/temporary_cache.hpp"
#include "tests/cpp/threads.hpp"
#include "tests/cpp/trials.hpp"

namespace robocache::test {

using F64 = Element<double, DType::kFloat64>;
using F32 = Element<float, DType::kFloat32>;
using U8 = Element<uint8_t, DType::kUInt8>;

namespace {

constexpr Tier kInMemory = Tier::kDevice;

// The device and the tiers of the streams.
struct Placements {
  const char* name;
  DeviceType device;
  Tier state;
  Tier force;
  Tier button;
};

// Keeps the files of the recording: three streams on their own clocks in three episodes, of which one lacks "force".
CacheWriter& writer() {
  static CacheWriter writer;
  return writer;
}

const std::shared_ptr<const Dataset>& recording() {
  static const std::shared_ptr<const Dataset> dataset = [] {
    Random random(61);
    for (int64_t episode = 0; episode < 3; ++episode) {
      const auto times_of = [&](int64_t rows, int64_t period_ns) {
        std::vector<int64_t> stamps;
        for (int64_t i = 0; i < rows; ++i) {
          stamps.push_back(episode * 1'000'000'000 + i * period_ns + random.below(999));
        }
        return stamps;
      };
      // No NaN, because bytes are compared and devices give a NaN different payloads.
      const auto numbers_of = [&](auto element, int64_t count) {
        auto values = random.everyday_values(element, count);
        for (auto& value : values) value = std::isnan(value) ? 0 : value;
        return values;
      };
      writer().begin_episode();
      writer().append("state", F32{}, times_of(40, 20'000), numbers_of(F32{}, 40 * 3), {3});
      if (episode != 1) writer().append("force", F64{}, times_of(90, 9'000), numbers_of(F64{}, 90 * 2), {2});
      writer().append("button", U8{}, times_of(17, 50'000), random.values(U8{}, 17));
      writer().end_episode();
    }
    return writer().dataset();
  }();
  return dataset;
}

using Bytes = std::vector<unsigned char>;
using Arrays = std::map<std::string, Bytes>;  // the arrays of a batch by name

Bytes on_host(const void* memory, size_t bytes, Device device) {
  Bytes copy(bytes);
  if (device.is_cuda()) {
    check_cuda(cuda_backend().copy_to_host(device.index, copy.data(), memory, bytes, nullptr), "read");
    check_cuda(cuda_backend().synchronize(device.index, nullptr), "read");
  } else {
    std::memcpy(copy.data(), memory, bytes);
  }
  return copy;
}

Arrays arrays_of(const Loader& loader, int64_t samples, const void* memory) {
  const Bytes batch = on_host(memory, loader.batch_bytes(), loader.options().device);
  Arrays arrays;
  for (const BatchArray& array : loader.arrays()) {
    const auto bytes = static_cast<size_t>(loader.view(array, samples, nullptr).numel() * dtype_size(array.dtype));
    const unsigned char* const first = batch.data() + array.offset;
    arrays[array.name] = Bytes(first, first + bytes);
  }
  return arrays;
}

// Allocates the memory of batches and counts it. Memory that is returned is overwritten and kept, so that a later write
// to it is found.
class Memories {
 public:
  explicit Memories(Device device) : device_(device) {}

  Feed::Allocate allocate() {
    return [this](size_t bytes) -> std::shared_ptr<void> {
      if (fails_at_ == ++allocations_) throw std::bad_alloc();
      auto buffer = std::make_shared<DeviceBuffer>(device_, bytes);
      fill(*buffer);
      ++living_;
      return {buffer->data(), [this, buffer](void*) {
                --living_;
                fill(*buffer);
                returned_.push_back(buffer);
              }};
    };
  }

  void fail_at(int64_t allocation) { fails_at_ = allocation; }
  int64_t allocations() const { return allocations_; }
  int64_t living() const { return living_; }

  void expect_untouched() const {
    for (const auto& buffer : returned_) {
      const Bytes content = on_host(buffer->data(), buffer->bytes(), device_);
      EXPECT_TRUE(content == Bytes(content.size(), kReturned));
    }
  }

 private:
  static constexpr unsigned char kReturned = 0xa5;

  void fill(DeviceBuffer& buffer) const {
    if (device_.is_cuda()) {
      const Bytes marks(buffer.bytes(), kReturned);
      buffer.fill_from_host(marks.data(), marks.size());
    } else {
      std::memset(buffer.data(), kReturned, buffer.bytes());
    }
  }

  Device device_;
  int64_t fails_at_ = 0;
  int64_t allocations_ = 0;
  int64_t living_ = 0;
  std::vector<std::shared_ptr<DeviceBuffer>> returned_;
};

class FeedTest : public testing::TestWithParam<Placements> {
 protected:
  void SetUp() override { skip_unless_usable(device()); }

  static Device device() { return {GetParam().device, 0}; }

  static LoaderOptions options() {
    LoaderOptions options;
    options.device = device();
    options.batch_size = 7;
    options.return_age = true;
    options.anchor = "state";
    options.streams = {
        {.stream = "state", .delta_timestamps = {-3e-5, 0.0, 1e-5}, .normalize = Normalize::kMeanStd},
        {.stream = "force", .delta_timestamps = {0.0, 2e-5}, .dtype = DType::kFloat64},
        {.stream = "button", .delta_timestamps = {0.0}, .one_step = true},
    };
    options.streams[0].residency = GetParam().state;
    options.streams[1].residency = GetParam().force;
    options.streams[2].residency = GetParam().button;
    return options;
  }

  // The same options for a loader on the CPU with all streams in memory.
  static LoaderOptions in_memory_options(LoaderOptions options) {
    options.device = {};
    for (StreamRequest& request : options.streams) request.residency = kInMemory;
    return options;
  }

  static std::shared_ptr<const Loader> make_loader(const LoaderOptions& loader_options = options()) {
    return std::make_shared<const Loader>(recording(), loader_options);
  }

  // Returns the batch as a loader on the CPU makes it, without a feed and with all streams in memory.
  static Arrays expected(const BatchPosition& position, const LoaderOptions& loader_options = options()) {
    const Loader loader(recording(), in_memory_options(loader_options));
    DeviceBuffer memory({}, loader.batch_bytes());
    loader.fill(position, memory.data(), {});
    return arrays_of(loader, loader.samples_at(position), memory.data());
  }

  // Returns the position of the next batch, which may be in the next epoch, with the same weights.
  static BatchPosition next_position(const Loader& loader, const BatchPosition& position) {
    const BatchPosition next = loader.after(position);
    if (loader.samples_at(next) > 0) return next;
    return {position.seed, position.epoch + 1, 0, position.weights};
  }

  // Calls use(feed, memories, prefetch, reuse) for feeds of each prefetch, with and without reuse. Once a feed is
  // destroyed, none of its memory may be alive or written to.
  template <class Use>
  static void with_feeds(const std::shared_ptr<const Loader>& loader, std::initializer_list<int64_t> prefetches,
                         const Use& use) {
    for (const int64_t prefetch : prefetches) {
      for (const bool reuse : {false, true}) {
        SCOPED_TRACE(std::to_string(prefetch) + (reuse ? " reused" : ""));
        Memories memories(device());
        {
          Feed feed(loader, {.prefetch = prefetch, .reuse = reuse});
          use(feed, memories, prefetch, reuse);
          if (HasFatalFailure()) return;
        }
        EXPECT_EQ(memories.living(), 0);
        memories.expect_untouched();
      }
    }
  }

  // The most batches that a feed holds: without reuse besides those of the caller, with reuse including the caller's.
  static int64_t most_memories(int64_t prefetch) { return prefetch + 2; }
};

INSTANTIATE_TEST_SUITE_P(
    EachPlacement, FeedTest,
    testing::Values(Placements{"cpu", DeviceType::kCpu, kInMemory, kInMemory, kInMemory},
                    Placements{"cpu_mapped", DeviceType::kCpu, Tier::kMapped, Tier::kMapped, Tier::kMapped},
                    Placements{"cuda", DeviceType::kCuda, kInMemory, kInMemory, kInMemory},
                    Placements{"cuda_every_tier", DeviceType::kCuda, Tier::kMapped, Tier::kPinned, Tier::kDevice},
                    Placements{"cuda_one_mapped", DeviceType::kCuda, kInMemory, kInMemory, Tier::kMapped},
                    Placements{"cuda_mapped", DeviceType::kCuda, Tier::kMapped, Tier::kMapped, Tier::kMapped}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(FeedTest, EqualsFillAcrossEpochs) {
  for (const bool drop_last : {false, true}) {
    LoaderOptions loader_options = options();
    loader_options.drop_last = drop_last;
    for (int64_t prefetch = 0; prefetch <= 3; ++prefetch) {
      for (const bool reuse : {false, true}) {
        SCOPED_TRACE(std::to_string(prefetch) + (reuse ? " reused" : "") + (drop_last ? " drop_last" : ""));
        Memories memories(device());
        const auto loader = make_loader(loader_options);
        std::vector<FedBatch> kept;
        std::vector<Arrays> kept_arrays;
        {
          Feed feed(loader, {.prefetch = prefetch, .reuse = reuse});
          BatchPosition position{.seed = 5, .epoch = 2, .samples = 4};
          for (; position.epoch < 5; position = next_position(*loader, position)) {
            const auto batch = feed.next(position, memories.allocate(), {});
            ASSERT_TRUE(batch);
            ASSERT_EQ(batch->samples, loader->samples_at(position));
            const Arrays arrays = arrays_of(*loader, batch->samples, batch->memory.get());
            ASSERT_EQ(arrays, expected(position, loader_options)) << position.epoch << ' ' << position.samples;
            // Meanwhile the feed makes the next batches, in other memory.
            if (position.samples % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            EXPECT_EQ(arrays_of(*loader, batch->samples, batch->memory.get()), arrays);
            if (reuse) {
              EXPECT_EQ(feed.memory(batch->slot), batch->memory);
            } else {
              kept.push_back(*batch);
              kept_arrays.push_back(arrays);
            }
          }
          position = {.seed = 5, .epoch = 4, .samples = loader->samples()};
          EXPECT_FALSE(feed.next(position, memories.allocate(), {}));
          if (reuse) {
            EXPECT_LE(memories.allocations(), most_memories(prefetch));
          }
          EXPECT_LE(memories.living() - static_cast<int64_t>(kept.size()), most_memories(prefetch));
        }
        for (size_t i = 0; i < kept.size(); ++i) {
          EXPECT_EQ(arrays_of(*loader, kept[i].samples, kept[i].memory.get()), kept_arrays[i]) << i;
        }
        kept.clear();
        EXPECT_EQ(memories.living(), 0);
        memories.expect_untouched();
      }
    }
  }
}

TEST_P(FeedTest, TakesPositionsInAnyOrder) {
  Random random(62);
  const auto loader = make_loader();
  with_feeds(loader, {0, 1, 3}, [&](Feed& feed, Memories& memories, int64_t prefetch, bool reuse) {
    BatchPosition position;
    for (int step = 0; step < 60; ++step) {
      if (random.one_in(3)) position.samples = random.below(loader->samples());
      if (random.one_in(7)) position.epoch = random.below(4);
      if (random.one_in(7)) position.seed = random.bits() >> 1;
      const auto batch = feed.next(position, memories.allocate(), {});
      ASSERT_TRUE(batch);
      ASSERT_EQ(arrays_of(*loader, batch->samples, batch->memory.get()), expected(position)) << step;
      if (random.one_in(9)) {
        EXPECT_FALSE(feed.next({position.seed, position.epoch, loader->samples()}, memories.allocate(), {}));
      }
      if (!random.one_in(5)) position = next_position(*loader, position);  // else asks for the same position again
    }
    if (reuse) {
      EXPECT_LE(memories.allocations(), most_memories(prefetch));
    }
  });
}

// A batch takes about a millisecond, so some are being made whenever the weights change.
TEST_P(FeedTest, BatchesAheadWithOldWeightsAreMadeAgain) {
  const auto mixture_of = [](LoaderOptions loader_options) {
    loader_options.mixture = true;
    loader_options.sources = {{.dataset = recording(), .name = "a", .weight = 1},
                              {.dataset = recording(), .name = "b", .weight = 3}};
    return std::make_shared<const Loader>(loader_options);
  };
  const auto without_feed = mixture_of(in_memory_options(options()));
  for (int64_t prefetch = 0; prefetch <= 3; ++prefetch) {
    Memories memories(device());
    const auto loader = mixture_of(options());
    Feed feed(loader, {.prefetch = prefetch});
    BatchPosition position{.seed = 5, .epoch = 2, .samples = 4};
    BatchPosition expected_position = position;  // its weights belong to the other loader
    for (int64_t step = 0; position.epoch < 4; ++step) {
      if (step % 3 == 1) {
        const auto b = static_cast<double>(step % 4);
        position.weights = loader->change_weights(position, {{"b", b}, {"a", 1}});
        expected_position.weights = without_feed->change_weights(expected_position, {{"a", 1}, {"b", b}});
      }
      const auto batch = feed.next(position, memories.allocate(), {});
      ASSERT_TRUE(batch);
      const DeviceBuffer memory({}, without_feed->batch_bytes());
      without_feed->fill(expected_position, memory.data(), {});
      ASSERT_EQ(arrays_of(*loader, batch->samples, batch->memory.get()),
                arrays_of(*without_feed, batch->samples, memory.data()))
          << step;
      position = next_position(*loader, position);
      expected_position = next_position(*without_feed, expected_position);
    }
  }
}

TEST_P(FeedTest, FinishesWorkBeforeItsMemoryIsFreed) {
  LoaderOptions loader_options = options();
  loader_options.batch_size = 119;
  loader_options.streams[1].delta_timestamps.resize(400, 1e-6);
  const auto loader = make_loader(loader_options);
  const Arrays expected_arrays = expected({}, loader_options);
  for (int round = 0; round < 40; round += kSanitized ? 5 : 1) {
    with_feeds(loader, {3}, [&](Feed& feed, Memories& memories, int64_t, bool) {
      const auto batch = feed.next({}, memories.allocate(), {});
      ASSERT_EQ(arrays_of(*loader, batch->samples, batch->memory.get()), expected_arrays);
      if (round % 3 == 1) feed.next({.epoch = 1, .samples = 3}, memories.allocate(), {});
      if (round % 2 == 1) std::this_thread::sleep_for(std::chrono::microseconds(50 * round));
    });
  }
}

TEST_P(FeedTest, ContinuesAfterAFailedAllocation) {
  const auto loader = make_loader();
  for (int64_t failing = 1; failing <= 6; ++failing) {
    with_feeds(loader, {2}, [&](Feed& feed, Memories& memories, int64_t prefetch, bool reuse) {
      memories.fail_at(failing);
      BatchPosition position;
      for (int step = 0; step < 12;) {
        try {
          const auto batch = feed.next(position, memories.allocate(), {});
          ASSERT_EQ(arrays_of(*loader, batch->samples, batch->memory.get()), expected(position)) << step;
          position = next_position(*loader, position);
          ++step;
        } catch (const std::bad_alloc&) {
          memories.fail_at(0);
        }
      }
      EXPECT_LE(memories.living(), most_memories(prefetch));
      if (reuse) {
        EXPECT_LE(memories.allocations(), most_memories(prefetch) + 1);
      }
    });
  }
}

// The last batch of each loop stays valid while other loops take batches.
TEST_P(FeedTest, LoopsInTurnsKeepTheirLastBatches) {
  Random random(63);
  const auto loader = make_loader();
  with_feeds(loader, {0, 2}, [&](Feed& feed, Memories& memories, int64_t prefetch, bool reuse) {
    constexpr int64_t kLoops = 3;
    std::vector<std::optional<FedBatch>> last(kLoops);
    std::vector<BatchPosition> positions;
    for (int64_t loop = 0; loop < kLoops; ++loop) positions.push_back({.seed = 5, .epoch = loop});
    std::vector<BatchPosition> last_positions = positions;
    for (int step = 0; step < 90; ++step) {
      const int64_t loop = random.below(kLoops);
      const auto i = static_cast<size_t>(loop);
      last[i] = feed.next(positions[i], memories.allocate(), {}, {}, loop);
      ASSERT_TRUE(last[i]);
      last_positions[i] = positions[i];
      positions[i] = next_position(*loader, positions[i]);
      for (size_t other = 0; other < last.size(); ++other) {
        if (!last[other]) continue;
        ASSERT_EQ(arrays_of(*loader, last[other]->samples, last[other]->memory.get()), expected(last_positions[other]))
            << step;
      }
    }
    if (reuse) {
      EXPECT_LE(memories.allocations(), most_memories(prefetch) + kLoops - 1);
    }
  });
  Feed feed(loader, {.prefetch = 0, .reuse = true});
  Memories memories(device());
  expect_refused<ArgumentError>([&] { feed.next({}, memories.allocate(), {}, {}, -1); }, "loop: ");
}

TEST_P(FeedTest, ARangeForCoversTheRestOfAnEpoch) {
  for (const bool drop_last : {false, true}) {
    LoaderOptions loader_options = options();
    loader_options.drop_last = drop_last;
    const auto loader = make_loader(loader_options);
    Feed feed(loader, {.prefetch = 2});
    std::vector<Batch> kept;
    for (const Batch& batch : feed.epoch({.seed = 5, .epoch = 1, .samples = 3})) kept.push_back(batch);
    BatchPosition position{.seed = 5, .epoch = 1, .samples = 3};
    for (const Batch& batch : kept) {
      EXPECT_EQ(batch.position, position);
      EXPECT_EQ(batch.samples(), loader->samples_at(position));
      EXPECT_EQ(arrays_of(*loader, batch.samples(), batch.fed.memory.get()), expected(position, loader_options));
      const TensorView state = batch["state"];
      EXPECT_EQ(state.shape[0], batch.samples());
      EXPECT_EQ(state.shape[1], 3);
      position = loader->after(position);
    }
    EXPECT_EQ(loader->samples_at(position), 0);
    expect_refused<ArgumentError>([&] { (void)kept.front()["stat"]; }, "name: expected one of ", "state");
    for (const Batch& batch : feed.epoch({.samples = loader->samples()})) ADD_FAILURE() << batch.samples();
  }
}

TEST_P(FeedTest, AnInterruptedWaitLosesNoBatch) {
  struct Interrupt {};
  LoaderOptions loader_options = options();
  loader_options.batch_size = 120;  // the whole epoch
  // A wait checks for signals every few milliseconds. On one thread a batch takes several times as long on any machine.
  const Threads one_thread(1);
  loader_options.streams[0].delta_timestamps.resize(kSanitized ? 10'000 : 20'000, 1e-6);
  // On CUDA, mapped rows make the caller wait.
  loader_options.streams[0].residency = device().is_cuda() ? Tier::kMapped : GetParam().state;
  const auto loader = make_loader(loader_options);
  const Arrays expected_arrays = expected({.epoch = 1}, loader_options);
  Memories memories(device());
  Feed feed(loader, {.prefetch = 1, .reuse = true});
  int interrupts = 0;
  for (int tries = 0; tries < 40 && interrupts < 4; ++tries) {
    const auto start = std::chrono::steady_clock::now();
    auto batch = feed.next({}, memories.allocate(), {});
    const auto batch_time = std::chrono::steady_clock::now() - start;
    // The caller waits only while the feed's thread makes the next batch. On a busy machine the thread wakes late, and
    // on many cores it finishes early. So the tries start after different fractions of a batch's time, in eighths.
    std::this_thread::sleep_for(batch_time * (tries % 16) / 8);
    try {
      batch = feed.next({.epoch = 1}, memories.allocate(), {}, [] { throw Interrupt(); });
    } catch (const Interrupt&) {
      // After every other interrupt the first batch is asked for again; otherwise the wait goes on.
      if (++interrupts % 2 == 0) continue;
      batch = feed.next({.epoch = 1}, memories.allocate(), {});
    }
    ASSERT_EQ(arrays_of(*loader, batch->samples, batch->memory.get()), expected_arrays);
  }
  EXPECT_LE(memories.allocations(), most_memories(1));
  if (interrupts == 0 && device().is_cuda()) GTEST_SKIP() << "NOT TESTED: no wait on this host could be interrupted";
  EXPECT_GT(interrupts, 0);
}

// With reuse, copies into a batch's memory wait for work that was queued earlier and reads the old batch there.
TEST_P(FeedTest, CopiesWaitForReadersOfTheMemory) {
  if (!device().is_cuda()) GTEST_SKIP() << "nothing is queued on the CPU";
  const auto loader = make_loader();
  const OwnedCudaStream consumer(device());
  Memories memories(device());
  Feed feed(loader, {.prefetch = 1, .reuse = true});
  BatchPosition position;
  const auto first = feed.next(position, memories.allocate(), consumer.get());
  ASSERT_TRUE(first);
  const DeviceBuffer large(device(), size_t{256} << 20);
  const PinnedBuffer unused_copy(device(), large.bytes());
  const PinnedBuffer first_copy(device(), loader->batch_bytes());
  const auto queue_copy = [&](const PinnedBuffer& buffer, const void* data) {
    check_cuda(cuda_backend().copy_to_host(0, buffer.data(), data, buffer.bytes(), consumer.get().handle), "copy");
  };
  // Keeps the stream busy for about a tenth of a second.
  for (int i = 0; i < 20; ++i) queue_copy(unused_copy, large.data());
  queue_copy(first_copy, first->memory.get());
  for (int step = 0; step < 3; ++step) {
    position = next_position(*loader, position);
    ASSERT_TRUE(feed.next(position, memories.allocate(), consumer.get()));
  }
  consumer.wait();
  for (const auto& [name, bytes] : expected({})) {
    const auto array = std::ranges::find(loader->arrays(), name, &BatchArray::name);
    EXPECT_EQ(std::memcmp(static_cast<const char*>(first_copy.data()) + array->offset, bytes.data(), bytes.size()), 0)
        << name;
  }
}

// The loader has a copy of the cache. One of its files is then cut within the last episode.
TEST_P(FeedTest, ACutFileFailsOnlyBatchesThatNeedIt) {
  const auto dataset = recording();
  TemporaryFolder folder;
  std::filesystem::copy(dataset->path(), folder.path() + "/cache", std::filesystem::copy_options::recursive);
  const auto copied = Dataset::open(folder.path() + "/cache");
  const LoaderOptions loader_options = options();
  const auto loader = std::make_shared<const Loader>(copied, loader_options);
  const std::string file = folder.path() + "/cache/streams/state/values.npy";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 15 * 3 * sizeof(float) + 5);
  const bool reads_file = GetParam().state == Tier::kMapped;
  const Stream& state = dataset->stream("state");
  // A window that ends later interpolates with the row after it, which is cut.
  const int64_t last_whole = state.time_ns[state.rows - 16];
  with_feeds(loader, {0, 3}, [&](Feed& feed, Memories& memories, int64_t prefetch, bool) {
    int refused = 0;
    BatchPosition position{.seed = 9};
    for (; position.epoch < 2; position = next_position(*loader, position)) {
      const Arrays expected_arrays = expected(position, loader_options);
      const auto take = [&] {
        const auto batch = feed.next(position, memories.allocate(), {});
        EXPECT_EQ(arrays_of(*loader, batch->samples, batch->memory.get()), expected_arrays) << position.samples;
      };
      const auto* const episodes = reinterpret_cast<const int64_t*>(expected_arrays.at("episode_index").data());
      const auto* const times = reinterpret_cast<const int64_t*>(expected_arrays.at("time_ns").data());
      bool needs_cut_rows = false;
      for (int64_t i = 0; reads_file && i < loader->samples_at(position); ++i) {
        needs_cut_rows |= episodes[i] == 2 && times[i] + 10'000 > last_whole;
      }
      if (!needs_cut_rows) {
        take();
        continue;
      }
      ++refused;
      for (int i = 0; i < 2; ++i) expect_refused<FileError>(take, file, "it was cut short");  // also when asked again
    }
    EXPECT_EQ(refused > 0, reads_file);
    EXPECT_LE(memories.living(), most_memories(prefetch));
  });
}

// A batch that any thread drops leaves its memory to a later one. A batch that is held keeps its memory.
TEST_P(FeedTest, TakesTheMemoryOfDroppedBatches) {
  if (device().is_cuda()) GTEST_SKIP() << "the allocator of a CUDA device keeps memory";
  const auto loader = make_loader();
  for (const int64_t prefetch : {0, 1, 3}) {
    Memories memories(device());
    Random random(64);
    std::vector<std::pair<FedBatch, BatchPosition>> held;
    {
      Feed feed(loader, {.prefetch = prefetch});
      BatchPosition position;
      int64_t most_held = 0;
      for (int step = 0; step < 200; ++step, position = next_position(*loader, position)) {
        held.emplace_back(*feed.next(position, memories.allocate(), {}), position);
        most_held = std::max<int64_t>(most_held, std::ssize(held));
        if (held.size() < 4 && !random.one_in(2)) continue;
        const auto dropped = held.begin() + random.below(std::ssize(held));
        const auto& [batch, batch_position] = *dropped;
        ASSERT_EQ(arrays_of(*loader, batch.samples, batch.memory.get()), expected(batch_position)) << step;
        std::thread([&] { held.erase(dropped); }).join();
      }
      EXPECT_LE(memories.allocations(), most_held + prefetch + 1);
      while (held.size() > 1) held.pop_back();
    }
    const auto& [batch, batch_position] = held.front();  // stays valid without the feed
    EXPECT_EQ(arrays_of(*loader, batch.samples, batch.memory.get()), expected(batch_position));
    held.clear();
    EXPECT_EQ(memories.living(), 0);
  }
}

#ifndef __SANITIZE_THREAD__  // ThreadSanitizer does not follow threads that start after a fork.

TEST_P(FeedTest, ParentAndChildGoOnAfterAFork) {
  if (device().is_cuda()) GTEST_SKIP() << "CUDA does not survive a fork";
  const auto loader = make_loader();
  for (const bool reuse : {false, true}) {
    Memories memories(device());
    auto feed = std::make_optional<Feed>(loader, FeedOptions{.prefetch = 2, .reuse = reuse});
    BatchPosition position;
    const auto continues = [&] {
      for (int step = 0; step < 9; ++step, position = next_position(*loader, position)) {
        const auto batch = feed->next(position, memories.allocate(), {});
        if (arrays_of(*loader, batch->samples, batch->memory.get()) != expected(position)) return 1;
      }
      return 0;
    };
    ASSERT_EQ(continues(), 0);
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(in_a_child(continues), 0);
      EXPECT_EQ(continues(), 0);
      EXPECT_EQ(in_a_child([&] {
                  position = {.seed = 3, .epoch = 7, .samples = 20};
                  return continues() + in_a_child(continues);  // also in a child's child
                }),
                0);
      EXPECT_EQ(in_a_child([&] {
                  feed.reset();
                  return memories.living() == 0 ? 0 : 1;
                }),
                0);
    }
    EXPECT_EQ(continues(), 0);
    EXPECT_LE(memories.living(), most_memories(2));
  }
}

#endif

}  // namespace
}  // namespace robocache::test
