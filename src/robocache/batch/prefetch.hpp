// Makes the host's part of coming batches ahead of time, on a thread of its own.
//
//   robocache::Prefetcher ahead(device, 2);
//   for (int64_t step = 0, next = 0; step < steps; ++step) {
//     for (; next < steps && ahead.pending() < ahead.depth(); ++next) {
//       void* const memory = memory_of(next);
//       ahead.submit([&loader, next](void* to, const std::atomic<bool>&) { loader.fill_at(next, to); }, memory, stream);
//     }
//     ahead.take(stream);
//     use(memory_of(step));
//   }
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "robocache/batch/layout.hpp"
#include "robocache/core/device.hpp"

namespace robocache {

// A queue of at most `depth` batches, begun in the order in which they were submitted: by the prefetcher's thread, or
// by take() where that has not come to it yet and batches are made within milliseconds, so `make` may run on two threads
// at once. Otherwise not for several threads.
//
// Without staging `make` writes to the batch's memory itself. With staging it writes to a slot of pinned memory, which
// is copied into the batch on a CUDA stream of the prefetcher's: after what was queued on the batch's stream when it
// was submitted, which may use that memory still, and before what is queued on the taker's stream after take(). A slot
// is written again only when its copies are done.
//
// After a fork the child's prefetcher has a thread of its own and makes anew what was pending.
class Prefetcher {
 public:
  // `memory`: the batch's or a slot's, 64-byte aligned. Where `cancelled` is true nobody wants the batch any more, and
  // it may return early; a parallel_for does. What it throws take() throws.
  using Make = std::function<void(void* memory, const std::atomic<bool>& cancelled)>;

  // Without `copies` there is no staging. Before the first batch nothing is allocated and no thread starts. Throws
  // ArgumentError that names `prefetch` for a depth outside [1, 64].
  Prefetcher(Device device, int64_t depth, size_t staging_bytes = 0, std::vector<StagedCopy> copies = {});
  ~Prefetcher();  // as cancel()
  Prefetcher(Prefetcher&&) noexcept;
  Prefetcher& operator=(Prefetcher&&) = delete;

  int64_t depth() const;
  int64_t pending() const;  // submitted, not taken

  // `memory`, the batch's on the device, must stay until the batch is taken or cancelled. `copies`, where `make` writes
  // them, are this batch's instead of all batches'. Throws ArgumentError where depth() are pending, DeviceError,
  // OutOfMemory.
  void submit(Make make, void* memory, CudaStream stream,
              std::shared_ptr<const std::vector<StagedCopy>> copies = nullptr);

  // Makes the oldest or waits until it is made, takes it off the queue, and lets `stream` wait for its copies. `check`
  // is called every few milliseconds meanwhile (for signals, say); what it throws ends the wait and leaves the batch.
  // Throws what `make` threw, ArgumentError where nothing is pending, DeviceError.
  void take(CudaStream stream, const std::function<void()>& check = {});

  // Drops all that is pending; what has begun sees `cancelled` and is waited for, with its copies.
  void cancel() noexcept;

 private:
  class Worker;
  Worker& worker();  // this process's

  std::unique_ptr<Worker> worker_;
};

}  // namespace robocache
