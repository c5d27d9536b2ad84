// A loader's batches one after the other, the coming ones made ahead of time.
//
//   Feed feed(loader, {.prefetch = 2});
//   BatchPosition position{.seed = 7};
//   while (const auto batch = feed.next(position, allocate, stream)) {
//     use(loader->view(array, batch->samples, batch->memory.get()));
//     position = loader->after(position);
//   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "robocache/batch/loader.hpp"
#include "robocache/batch/prefetch.hpp"
#include "robocache/core/device.hpp"

namespace robocache {

struct FeedOptions {
  // Batches made ahead: on the CPU whole, on CUDA what the host makes of them. 0, or a CUDA loader without streams in their
  // files: a batch is made when it is asked for. Above 0 Loader::fetch is called for the coming one.
  int64_t prefetch = 0;
  // Whether a batch takes the memory of the one given before it.
  bool reuse = false;
};

struct FedBatch {
  std::shared_ptr<void> memory;  // batch_bytes() on the device
  int64_t samples;
  int64_t slot;  // with reuse: which of the memories, counted from 0
};

// One thread at a time. After a fork parent and child go on independently.
class Feed {
 public:
  using Allocate = std::function<std::shared_ptr<void>(size_t bytes)>;

  // Throws ArgumentError that names prefetch.
  Feed(std::shared_ptr<const Loader> loader, FeedOptions options);

  // The batch at a position, or none at the epoch's end; whole for what is queued on `stream` from now on. Cheap where it is
  // the one after the last: then those behind it are begun too, over the epoch's end into the next. `allocate` is called for
  // memory on the device, `check` now and then while waiting. Throws what Loader::fill throws, and what those two throw.
  std::optional<FedBatch> next(const BatchPosition& position, const Allocate& allocate, CudaStream stream,
                               const std::function<void()>& check = {});

  bool reuses() const { return reuse_; }
  std::shared_ptr<void> memory(int64_t slot) const { return memories_.at(static_cast<size_t>(slot)); }  // with reuse

 private:
  struct Coming {
    BatchPosition position;
    FedBatch batch;
    std::shared_ptr<const Loader::HostPart> host;  // written by who makes it
  };

  std::optional<BatchPosition> behind(const BatchPosition& position) const;
  void fetch_behind(const BatchPosition& position) const;
  void drop();  // what is coming
  FedBatch memory_for(const BatchPosition& position, const Allocate& allocate);
  void begin(const BatchPosition& position, const Allocate& allocate, CudaStream stream);
  void begin_those_behind(const BatchPosition& position, const Allocate& allocate, CudaStream stream);

  std::shared_ptr<const Loader> loader_;
  bool reuse_;
  bool fetches_;
  std::deque<Coming> coming_;
  std::vector<std::shared_ptr<void>> memories_;  // with reuse
  std::vector<int64_t> free_;                    // slots of them
  std::optional<int64_t> given_;                 // the slot of the batch that the caller has
  std::optional<Prefetcher> ahead_;              // destroyed first: it writes to the memories
};

}  // namespace robocache
