// Any allocation may fail: the call throws, leaves nothing half written, and everything works afterwards.
#include <dlfcn.h>
#include <execinfo.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "robocache/cache/dataset.hpp"
#include "robocache/cache/directory_lock.hpp"
#include "robocache/cache/writer.hpp"
#include "robocache/core/error.hpp"
#include "robocache/image/codec.hpp"
#include "robocache/image/decode_jpeg.hpp"
#include "robocache/points/voxelize_sparse/voxelize_sparse.hpp"
#include "tests/cpp/device_array.hpp"
#include "tests/cpp/faults/small_cache.hpp"
#include "tests/cpp/image/picture.hpp"
#include "tests/cpp/temporary_cache.hpp"

namespace {

// The number of allocations, of all threads, before one fails; below 0 none fails.
std::atomic<int64_t> allocations_left{-1};

void* allocated(size_t bytes, size_t alignment) {
  if (allocations_left.load() >= 0 && allocations_left.fetch_sub(1) == 0) return nullptr;
  return std::aligned_alloc(alignment, (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment);
}

void* allocated_or_thrown(size_t bytes, size_t alignment) {
  void* const memory = allocated(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

constexpr size_t kDefault = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

// Not inline: otherwise the compiler would see that `free` takes memory of `new`, and would warn.
[[gnu::noinline]] void* operator new(size_t bytes) { return allocated_or_thrown(bytes, kDefault); }
[[gnu::noinline]] void* operator new[](size_t bytes) { return allocated_or_thrown(bytes, kDefault); }
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocated_or_thrown(bytes, static_cast<size_t>(alignment));
}
[[gnu::noinline]] void* operator new[](size_t bytes, std::align_val_t alignment) {
  return allocated_or_thrown(bytes, static_cast<size_t>(alignment));
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t& /*unused*/) noexcept {
  return allocated(bytes, kDefault);
}
[[gnu::noinline]] void* operator new[](size_t bytes, const std::nothrow_t& /*unused*/) noexcept {
  return allocated(bytes, kDefault);
}
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t alignment,
                                     const std::nothrow_t& /*unused*/) noexcept {
  return allocated(bytes, static_cast<size_t>(alignment));
}
[[gnu::noinline]] void* operator new[](size_t bytes, std::align_val_t alignment,
                                       const std::nothrow_t& /*unused*/) noexcept {
  return allocated(bytes, static_cast<size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t /*unused*/) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, size_t /*unused*/) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t /*unused*/) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::align_val_t /*unused*/) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t /*unused*/, std::align_val_t /*unused*/) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, size_t /*unused*/, std::align_val_t /*unused*/) noexcept {
  std::free(memory);
}

namespace robocache::test {
namespace {

// How a child ended.
enum Outcome : int {
  kNoneFailed,       // the body has no allocation of that number
  kThrew,            // an allocation failed, and the body threw
  kWentOn,           // an allocation failed, and the body did without it
  kEnded,            // a library ended the process
  kThrewForNothing,  // the body threw though no allocation failed
  kHarmed,           // `is_whole` was false, or the process was ended otherwise
};

using IsWhole = std::function<bool(Outcome)>;

Outcome with_failure_at(int64_t number, const std::function<void()>& body, const IsWhole& is_whole) {
  bool threw = false;
  allocations_left = number;
  try {
    body();
  } catch (const std::bad_alloc&) {
    threw = true;
  } catch (const Error&) {
    threw = true;
  }
  if (allocations_left.exchange(-1) >= 0) return threw ? kThrewForNothing : kNoneFailed;
  if (!is_whole(threw ? kThrew : kWentOn)) return kHarmed;
  body();  // everything works afterwards
  return threw ? kThrew : kWentOn;
}

// std::filesystem and nlohmann's json end the process if they run out of memory while listing or destroying, because
// libstdc++ then calls std::terminate, whose caller's caller is in another library than this function. An exception that
// leaves a thread is our fault, and so is a std::thread that nobody joined: its destructor calls std::terminate from our
// frame.
void end_process() {
  void* frames[4];  // this function, two of libstdc++ that end a process, and their caller
  Dl_info caller{}, this_function{};
  const bool is_known =
      backtrace(frames, 4) == 4 && dladdr(frames[3], &caller) != 0 && dladdr(frames[0], &this_function) != 0;
  const bool is_library_call = is_known && caller.dli_fbase != this_function.dli_fbase;
  _exit(::gettid() == ::getpid() && is_library_call ? kEnded : kHarmed);
}

// Runs `body` repeatedly in children, each time after `prepare`. The first allocation fails, then the second, until none
// fails. Afterwards `is_whole` must hold and `body` must work. If a library ended the process, `is_whole` must hold.
void fail_each_allocation(
    const std::function<void()>& body, const IsWhole& is_whole = [](Outcome) { return true; },
    const std::function<void()>& prepare = [] {}) {
  body();  // makes what is made once in a process
  int64_t threw = 0, ended = 0;
  for (int64_t number = 0; number < 1'000'000; number += 1 + number / 40) {  // later ones are sampled
    SCOPED_TRACE("allocation " + std::to_string(number));
    prepare();
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);  // a child that hangs must not hang the test
      std::set_terminate(end_process);
      _exit(with_failure_at(number, body, is_whole));
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    const int outcome = WEXITSTATUS(status);
    if (outcome == kNoneFailed) break;
    ASSERT_LT(outcome, kThrewForNothing);
    ASSERT_TRUE(outcome != kEnded || is_whole(kEnded));
    threw += outcome == kThrew ? 1 : 0;
    ended += outcome == kEnded ? 1 : 0;
  }
  EXPECT_GT(threw, 0);
  EXPECT_LT(ended, threw / 4 + 1);  // few calls of the libraries end the process
}

// Whatever allocation fails, `make` throws or returns the same.
template <class Make>
void expect_the_same_or_an_error(const Make& make) {
  const auto expected = make();
  fail_each_allocation([&] {
    if (make() != expected) std::abort();
  });
}

TEST(Allocation, AWriterKeepsTheOldCache) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/cache";
  const auto write_old = [&] { write_small_cache(path, WriteMode::kOverwrite, 1000); };
  const auto write_new = [&] { write_small_cache(path, WriteMode::kOverwrite, 2000); };
  write_small_cache(path, WriteMode::kNew);
  write_old();
  const auto old_cache = contents(path);
  write_new();
  const auto new_cache = contents(path);
  const auto is_whole = [&](Outcome outcome) {
    auto present = contents(path);
    present.erase(cache::kLockFile);  // stays if the process was ended
    return (outcome != kWentOn && present == old_cache) || (outcome != kThrew && present == new_cache);
  };
  fail_each_allocation(write_new, is_whole, write_old);
  write_new();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(Allocation, ADatasetIsOpenedOrNot) {
  const TemporaryFolder folder;
  write_small_cache(folder.path() + "/cache", WriteMode::kNew);
  fail_each_allocation([&] { Dataset::open(folder.path() + "/cache", true)->stream("x"); });
}

TEST(Allocation, ALoaderReturnsAllBatchesOrThrows) {
  const TemporaryFolder folder;
  write_small_cache(folder.path() + "/cache", WriteMode::kNew);
  const auto dataset = Dataset::open(folder.path() + "/cache");
  expect_the_same_or_an_error([&] { return batches_of(dataset); });
}

TEST(Allocation, AnOperationReturnsItsResultOrThrows) {
  std::vector<float> points(3 * 500);
  for (size_t i = 0; i < points.size(); ++i) points[i] = static_cast<float>(i * i % 97);
  const DeviceArray<float> array(points, DType::kFloat32, {500, 3}, Device{});
  const SparseOptions options{.voxel_size = {10, 10, 10}, .order = VoxelOrder::kMorton};
  expect_the_same_or_an_error([&] {
    std::vector<std::vector<std::byte>> memory;
    const auto allocate = [&](DType dtype, std::initializer_list<int64_t> shape) {
      TensorView view = TensorView::contiguous(nullptr, dtype, shape);
      view.data = memory.emplace_back(static_cast<size_t>(view.numel() * dtype_size(dtype))).data();
      return view;
    };
    const SparseVoxels result = voxelize_sparse(array.view(), std::nullopt, options, allocate, CudaStream{});
    const auto* const voxel_of_point = static_cast<const int32_t*>(result.point_to_voxel.data);
    return std::vector<int32_t>(voxel_of_point, voxel_of_point + 500);
  });
}

TEST(Allocation, FramesAreDecodedOrNot) {
  const FrameShape shape{24, 32, 3, DType::kUInt8};
  const std::vector<uint8_t> pixels = picture(shape.height, shape.width, shape.channels);
  const std::vector<uint8_t> file = segment_jpeg(encode_frame(Codec::kJpeg, pixels.data(), shape)).blob;
  std::vector<uint8_t> two_files = file;
  two_files.insert(two_files.end(), file.begin(), file.end());
  const auto bytes = std::ssize(file);
  const DeviceArray<uint8_t> blobs(two_files, DType::kUInt8, {2 * bytes}, Device{});
  const DeviceArray<int64_t> offsets({0, bytes, 2 * bytes}, DType::kInt64, {3}, Device{});
  expect_the_same_or_an_error([&] {
    const DeviceArray<uint8_t> out(std::vector<uint8_t>(2 * pixels.size()), DType::kUInt8, {2, 24, 32, 3}, Device{});
    decode_jpeg(blobs.view(), offsets.view(), out.view(), CudaStream{});
    return out.read();
  });
  expect_the_same_or_an_error([&] { return segment_jpeg(file).blob; });
  expect_the_same_or_an_error([&] { return encode_frame(Codec::kPng, pixels.data(), shape); });
}

}  // namespace
}  // namespace robocache::test
