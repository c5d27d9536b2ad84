// Makes the host's part of coming batches ahead of time, on a thread of its own.
//
//   Prefetcher ahead(device, 2, staging_bytes, {{.from = 0, .to = mapped_offset, .bytes = mapped_bytes}});
//   while (ahead.pending() < ahead.depth()) ahead.submit(make_of(next++), memory = ..., stream);
//   ahead.take(stream);   // the oldest: whole for all that is queued on `stream` from now on
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "robocache/core/device.hpp"

namespace robocache {

// Where bytes of a staging slot belong in the batch's memory.
struct StagedCopy {
  int64_t from = 0;  // bytes from the slot's start
  int64_t to = 0;    // bytes from the batch's
  int64_t bytes = 0;
};

// A queue of at most `depth` batches, made one after the other in the order in which they were submitted. One thread at
// a time may call it; `make` is called on another.
//
// Without staging `make` writes to the batch's memory itself. With staging it writes to a slot of pinned memory, which
// is copied into the batch on a CUDA stream of the prefetcher's: after what was queued on the batch's stream when it
// was submitted (the memory may be in use until then), and before what is queued on the taker's after take(). A slot is
// written again only when its copies are done.
//
// After a fork the child's has a thread of its own and makes anew what was pending.
class Prefetcher {
 public:
  // `memory`: the batch's or the slot's, 64-byte aligned. It may return early where `cancelled` becomes true: nobody
  // wants it any more. What it throws take() throws.
  using Make = std::function<void(void* memory, const std::atomic<bool>& cancelled)>;

  // No copies: no staging. Nothing is allocated and no thread starts before the first batch. Throws ArgumentError for a
  // depth outside [1, 64].
  Prefetcher(Device device, int64_t depth, size_t staging_bytes = 0, std::vector<StagedCopy> copies = {});
  ~Prefetcher();  // as cancel()
  Prefetcher(Prefetcher&&) noexcept;

  int64_t depth() const;
  int64_t pending() const;  // submitted, not taken

  // `memory` (on the device, the batch's) must stay until the batch is taken or cancelled. Throws ArgumentError where
  // depth() are pending, DeviceError, OutOfMemory.
  void submit(Make make, void* memory, CudaStream stream);

  // Waits until the oldest is made, takes it off the queue, and makes `stream` wait for its copies. `check`, where
  // there is one, is called now and then while waiting (for signals); what it throws ends the wait, the batch stays.
  // Throws ArgumentError where nothing is pending.
  void take(CudaStream stream, const std::function<void()>& check = {});

  // Drops all that is pending; waits for what has begun, which sees `cancelled`, and for its copies.
  void cancel() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace robocache
