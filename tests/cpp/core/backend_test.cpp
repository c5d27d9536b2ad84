#include "robocache/core/backend.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <utility>
#include <vector>

#include "robocache/core/error.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/expect_refused.hpp"

namespace robocache {
namespace {

// A process looks for the plugin once, so each of these tests needs its own process.
class BackendDeathTest : public testing::Test {
 protected:
  // Exits with 0 if there is no CUDA and every function reports that as backend.hpp promises.
  [[noreturn]] static void exit_without_cuda(const char* library) {
    setenv("ROBOCACHE_CUDA_LIBRARY", library, 1);
    std::fprintf(stderr, "%s\n", cuda_unavailable_reason().c_str());
    bool as_promised = cuda_device_count() == 0 && !cuda_unavailable_reason().empty();
    const auto call_without_cuda = [&](auto call) {
      try {
        call();
        as_promised = false;
      } catch (const DeviceError& error) {
        as_promised = as_promised && std::strstr(error.what(), cuda_unavailable_reason().c_str()) != nullptr;
      }
    };
    call_without_cuda([] { cuda_backend(); });
    call_without_cuda([] { cuda_symbol("robocache_cuda_resample"); });
    call_without_cuda([] { DeviceBuffer({DeviceType::kCuda, 0}, 16); });
    exit(as_promised ? 0 : 1);
  }

  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(BackendDeathTest, TheReasonNamesThePluginOrTheDriver) {
  for (const auto& [library, reason] : std::initializer_list<std::pair<const char*, const char*>>{
           {"/nonexistent/librobocache_cuda.so", "/nonexistent/librobocache_cuda.so does not exist"},
           {"/proc/self/status", "does not open"},
           {"libm.so.6", "libm.so.6 is no CUDA plugin"},
           {OTHER_PLUGIN,
            "/libother_plugin.so belongs to another build of RoboCache: its interface is 0123456789abcdef, this "
            "library's is " ROBOCACHE_BACKEND_ABI},
           {DRIVERLESS_PLUGIN, "^no NVIDIA driver; install version 580 or later "}}) {
    EXPECT_EXIT(exit_without_cuda(library), testing::ExitedWithCode(0), reason);
  }
}

TEST(Backend, HasATableOrAReason) {
  if (cuda_device_count() == 0) {
    EXPECT_NE(cuda_unavailable_reason(), "");
    GTEST_SKIP() << cuda_unavailable_reason();
  }
  const CudaBackend& backend = cuda_backend();
  EXPECT_EQ(&backend, cuda_backend_or_null());
  CudaDeviceInfo info{};
  check_cuda(backend.device_info(0, &info), "device_info");
  EXPECT_NE(info.name[0], '\0');
  EXPECT_GE(info.compute_major, 8);
  EXPECT_GT(info.multiprocessors, 0);
  EXPECT_LE(info.memory_free_bytes, info.memory_total_bytes);
  test::expect_refused<DeviceError>([] { check_cuda(1, "copying"); }, "copying: ");
  EXPECT_THROW(cuda_symbol("robocache_cuda_nothing_of_this_name"), DeviceError);
  EXPECT_THROW(DeviceBuffer({DeviceType::kCuda, 0}, size_t{1} << 60), OutOfMemory);
  EXPECT_THROW(PinnedBuffer({DeviceType::kCuda, 0}, size_t{1} << 60), OutOfMemory);
  EXPECT_THROW(DeviceBuffer({DeviceType::kCuda, 1000}, 16), DeviceError);
  // The next call does not report the error of a failed call.
  EXPECT_NO_THROW(DeviceBuffer({DeviceType::kCuda, 0}, 16));
}

TEST(DeviceBuffer, OnTheCpuIsAlignedAndFilled) {
  const std::vector<uint8_t> bytes{1, 2, 3, 4, 5, 6, 7};
  for (const size_t size : {size_t{7}, size_t{64}, size_t{1000}}) {
    DeviceBuffer buffer({}, size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    EXPECT_EQ(buffer.bytes(), size);
    EXPECT_EQ(buffer.device(), Device{});
    buffer.fill_from_host(bytes.data(), bytes.size());
    EXPECT_EQ(std::memcmp(buffer.data(), bytes.data(), bytes.size()), 0);
  }
}

TEST(DeviceBuffer, MayBeEmptyOnEveryDevice) {
  for (const Device device : {Device{}, Device{DeviceType::kCuda, 0}}) {
    DeviceBuffer buffer(device, 0);
    EXPECT_EQ(buffer.data(), nullptr);
    buffer.fill_from_host(nullptr, 0);
  }
}

TEST(DeviceBuffer, MovesWithItsMemory) {
  DeviceBuffer first({}, 16);
  void* const memory = first.data();
  DeviceBuffer second(std::move(first));
  EXPECT_EQ(second.data(), memory);
  DeviceBuffer third({}, 8);
  third = std::move(second);
  EXPECT_EQ(third.data(), memory);
  EXPECT_EQ(third.bytes(), 16u);
}

TEST(DeviceBuffer, TooLargeIsOutOfMemory) {
  test::expect_refused<OutOfMemory>([] { DeviceBuffer({}, size_t{1} << 60); },
                                    "allocating 1152921504606846976 bytes of host memory: out of memory");
}

// ---- Pinned memory, streams and events. On the CPU the memory is plain, and streams and events do nothing ----

class Pinned : public test::OnDevice {
 protected:
  static std::vector<int32_t> read(const void* on_device, size_t count) {
    std::vector<int32_t> values(count);
    if (device().is_cuda()) {
      check_cuda(cuda_backend().copy_to_host(0, values.data(), on_device, count * 4, nullptr), "read");
      check_cuda(cuda_backend().synchronize(0, nullptr), "read");
    } else {
      std::memcpy(values.data(), on_device, count * 4);
    }
    return values;
  }
};
ROBOCACHE_ON_EACH_DEVICE(Pinned);

TEST_P(Pinned, MemoryIsReadableByHostAndDevice) {
  for (const size_t count : {size_t{1}, size_t{1000}, size_t{1} << 20}) {
    PinnedBuffer buffer(device(), count * 4);
    EXPECT_EQ(buffer.bytes(), count * 4);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    std::vector<int32_t> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = static_cast<int32_t>(7 * i);
    std::memcpy(buffer.data(), values.data(), count * 4);
    EXPECT_TRUE(read(buffer.on_device(), count) == values);
    void* const memory = buffer.data();
    PinnedBuffer moved(std::move(buffer));
    EXPECT_EQ(moved.data(), memory);
    EXPECT_TRUE(read(moved.on_device(), count) == values);
  }
  const PinnedBuffer empty(device(), 0);
  EXPECT_EQ(empty.data(), nullptr);
  EXPECT_EQ(empty.on_device(), nullptr);
}

TEST_P(Pinned, OrdinaryMemoryCanBeRegistered) {
  std::vector<int32_t> values(100'000, 5);
  {
    HostRegistration registration(device(), values.data(), values.size() * 4);
    EXPECT_EQ(read(registration.on_device(), values.size()), values);
    const HostRegistration moved(std::move(registration));
    values[99'999] = 6;
    EXPECT_EQ(read(moved.on_device(), values.size()), values);
  }
  const HostRegistration again(device(), values.data(), values.size() * 4);  // the memory can be registered again
  EXPECT_EQ(read(again.on_device(), values.size()), values);
}

TEST_P(Pinned, AnEventIsReachedAfterEarlierWork) {
  const OwnedCudaStream stream(device());
  const OwnedCudaStream second_stream(device());
  CudaEvent event(device());
  event.wait();  // returns at once if it was never recorded
  event.make_wait(stream.get());
  stream.wait();
  EXPECT_EQ(stream.get().handle != nullptr, device().is_cuda());
  if (!device().is_cuda()) return;
  constexpr size_t kBytes = size_t{256} << 20;
  const DeviceBuffer on_device(device(), kBytes);
  const PinnedBuffer from(device(), kBytes);
  const PinnedBuffer to(device(), kBytes);
  for (int round = 1; round < 4; ++round) {
    std::memset(from.data(), round, kBytes);
    check_cuda(cuda_backend().copy_from_host(0, on_device.data(), from.data(), kBytes, stream.get().handle), "copy");
    event.record(stream.get());
    event.make_wait(second_stream.get());
    check_cuda(cuda_backend().copy_to_host(0, to.data(), on_device.data(), kBytes, second_stream.get().handle), "copy");
    event.wait();
    second_stream.wait();
    EXPECT_EQ(std::memcmp(to.data(), from.data(), kBytes), 0);
  }
}

}  // namespace
}  // namespace robocache
