// Gives a loader's batches one after the other, and makes the next ones ahead of time.
//
//   Feed feed(loader, {.prefetch = 2});
//   for (int64_t epoch = 0; epoch < 10; ++epoch) {
//     for (const Batch& batch : feed.epoch({.seed = 7, .epoch = epoch})) train(batch["observation.state"], batch["action"]);
//   }
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "robocache/batch/loader.hpp"
#include "robocache/batch/work_queue.hpp"
#include "robocache/core/backend.hpp"
#include "robocache/core/device.hpp"
#include "robocache/core/tensor_view.hpp"

namespace robocache {

struct FeedOptions {
  // The number of batches made ahead: on the CPU whole batches, on CUDA the host's part. None is made ahead if this is 0, if a
  // CUDA loader has no host part, or if Loader::is_small(). Above 0 the feed also calls Loader::fetch for the next batch.
  int64_t prefetch = 0;
  // A loop's next batch overwrites its previous one, instead of getting memory of its own.
  bool reuse = false;
};

struct FedBatch {
  std::shared_ptr<void> memory;  // batch_bytes() on the device
  int64_t samples;
  int64_t slot;  // with reuse: the index of the memory
};

// One batch of a range-for over an epoch. It shares its loader and its memory. With reuse the next batch overwrites it.
struct Batch {
  std::shared_ptr<const Loader> loader;
  FedBatch fed;
  BatchPosition position;

  int64_t samples() const { return fed.samples; }

  // Returns an array of the batch: "action", "action_is_pad", "time_ns". Throws ArgumentError that lists the names.
  TensorView operator[](std::string_view name) const;
};

// Keeps the memory of dropped batches for later ones: fresh memory costs a page fault for every 4 KiB, which can take longer
// than filling it. Any thread may drop a batch. There is no lock, since a forked child could find it held.
class SpareMemory {
 public:
  using Memory = std::unique_ptr<std::shared_ptr<void>>;

  explicit SpareMemory(size_t capacity) : slots_(capacity) {}
  ~SpareMemory() {
    while (take()) continue;
  }
  SpareMemory(const SpareMemory&) = delete;
  SpareMemory& operator=(const SpareMemory&) = delete;

  Memory take();             // null if there is none
  void keep(Memory memory);  // frees it instead if `capacity` are kept

 private:
  std::vector<std::atomic<std::shared_ptr<void>*>> slots_;
};

// Use it from one thread at a time. It owns its thread and the memory of batches made ahead; with reuse it owns the memory
// of all batches. It shares the loader. After a fork, parent and child continue independently.
class Feed {
 public:
  class Epoch;

  using Allocate = std::function<std::shared_ptr<void>(size_t bytes)>;

  // Throws ArgumentError that names memory.prefetch.
  Feed(std::shared_ptr<const Loader> loader, FeedOptions options);
  ~Feed();
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;

  // Returns the batch at a position, or none at the epoch's end. Work queued on `stream` afterwards sees the whole batch. A
  // batch whose position follows that of the last call was made ahead. The call begins the next batches, also of the next
  // epoch. It calls `allocate` for memory on the device (on the CPU only if no dropped batch left any), and `check` every 10
  // milliseconds while it waits. With reuse several loops may use this feed, each with a small number `loop`; each keeps its
  // last batch until its next call. Throws what Loader::fill, `allocate` and `check` throw; the feed can continue afterwards.
  std::optional<FedBatch> next(const BatchPosition& position, const Allocate& allocate, CudaStream stream,
                               const std::function<void()>& check = {}, int64_t loop = 0);

  // Returns the batches from a position to the end of its epoch, for a range-for. The feed must outlive them. Each
  // batch lies in a DeviceBuffer. Throws what next() throws.
  Epoch epoch(const BatchPosition& from = {}, CudaStream stream = {});

  // With BadFrame::kPad, the number of frames so far that did not decode and are padding. Frames that a CUDA device
  // decodes count once it has decoded them. Any thread may call this.
  int64_t bad_frames() const { return bad_frames_ + loader_->bad_frames_on_device(); }

  bool reuses() const { return reuse_; }
  std::shared_ptr<void> memory(int64_t slot) const { return memories_.at(static_cast<size_t>(slot)); }  // with reuse

 private:
  // The host's part of a batch, before it is copied into the batch. A batch ahead uses it from begin() until next() returns it.
  struct Staging {
    HostPart part;        // on the CPU only bad_frames
    PinnedBuffer memory;  // on CUDA
    CudaEvent writable;   // after it, earlier work no longer uses the batch's memory
    CudaEvent copied;     // after it, the copies no longer read `memory`
  };

  // A batch that the queue makes ahead.
  struct BatchAhead {
    BatchPosition position;
    FedBatch batch;
    Staging* staging;
  };

  bool is_cuda() const { return loader_->options().device.is_cuda(); }
  // Only with reuse: frees the slot of the loop's last batch; notes the slot of its next one.
  void free_slot(int64_t loop);
  void note_slot(int64_t loop, const FedBatch& batch);
  std::optional<BatchPosition> next_position(const BatchPosition& position) const;
  void fetch_next(const BatchPosition& position) const;
  void end_work() noexcept;  // waits for the work and its copies
  void drop_ahead();
  FedBatch memory_for(const BatchPosition& position, const Allocate& allocate);
  void begin(const BatchPosition& position, const Allocate& allocate, CudaStream stream);

  std::shared_ptr<const Loader> loader_;
  bool reuse_;
  bool fetches_;
  std::deque<BatchAhead> ahead_;                    // one entry for each work in the queue
  std::shared_ptr<SpareMemory> spare_;              // on the CPU, without reuse
  std::vector<std::shared_ptr<void>> memories_;     // with reuse
  std::vector<int64_t> free_slots_;                 // slots of memories_
  std::vector<std::optional<int64_t>> loop_slots_;  // the slot of each loop's batch
  std::atomic<int64_t> bad_frames_{0};              // found by the host
  std::vector<Staging> stagings_;                   // used in turn; empty: no batch is made ahead
  size_t begun_ = 0;                                // number of batches begun so far
  OwnedCudaStream copy_stream_;                     // copies the host's parts to the device
  WorkQueue queue_;                                 // destroyed first: its work uses the members above
};

// The batches of one epoch.
class Feed::Epoch {
 public:
  // An input iterator: it drops its batch when it moves on.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = const Batch*;
    using reference = const Batch&;

    reference operator*() const { return *epoch_->batch_; }
    pointer operator->() const { return &*epoch_->batch_; }
    Iterator& operator++() {
      epoch_->advance();
      return *this;
    }
    void operator++(int) { epoch_->advance(); }
    bool operator==(std::default_sentinel_t) const { return !epoch_->batch_; }

   private:
    friend class Epoch;
    explicit Iterator(Epoch* epoch) : epoch_(epoch) {}
    Epoch* epoch_;
  };

  // Takes the first batch. Call it once.
  Iterator begin() {
    advance();
    return Iterator(this);
  }
  static std::default_sentinel_t end() { return {}; }

 private:
  friend class Feed;
  Epoch(Feed& feed, const BatchPosition& from, CudaStream stream) : feed_(feed), next_(from), stream_(stream) {}
  void advance();

  Feed& feed_;
  BatchPosition next_;
  CudaStream stream_;
  std::optional<Batch> batch_;
};

inline Feed::Epoch Feed::epoch(const BatchPosition& from, CudaStream stream) { return {*this, from, stream}; }

}  // namespace robocache
