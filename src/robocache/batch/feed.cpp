#include "robocache/batch/feed.hpp"

#include <string>
#include <utility>

#include "robocache/core/arguments.hpp"
#include "robocache/core/error.hpp"

namespace robocache {

TensorView Batch::operator[](std::string_view name) const {
  std::string names;
  for (const BatchArray& array : loader->arrays()) {
    if (array.name == name) return loader->view(array, fed.samples, fed.memory.get());
    names += (names.empty() ? "" : ", ") + array.name;
  }
  refuse("name: expected one of ", names, "; got '", name, "'");
}

void Feed::Epoch::advance() {
  batch_.reset();
  const auto allocate = [device = feed_.loader_->options().device](size_t bytes) -> std::shared_ptr<void> {
    const auto buffer = std::make_shared<DeviceBuffer>(device, bytes);
    return {buffer, buffer->data()};
  };
  auto fed = feed_.next(next_, allocate, stream_);
  if (!fed) return;
  batch_ = {feed_.loader_, std::move(*fed), next_};
  next_ = feed_.loader_->after(next_);
}

SpareMemory::Memory SpareMemory::take() {
  Memory memory;
  for (auto& slot : slots_) {
    memory.reset(slot.exchange(nullptr));
    if (memory) break;
  }
  return memory;
}

void SpareMemory::keep(Memory memory) {
  for (auto& slot : slots_) {
    std::shared_ptr<void>* empty = nullptr;
    if (slot.compare_exchange_strong(empty, memory.get())) return (void)memory.release();
  }
}

Feed::Feed(std::shared_ptr<const Loader> loader, FeedOptions options)
    : loader_(std::move(loader)), reuse_(options.reuse), fetches_(options.prefetch > 0) {
  if (options.prefetch < 0 || options.prefetch > 32) {
    refuse("memory.prefetch: expected from 0 to 32 batches, got ", options.prefetch);
  }
  // The queue's thread reads files even with prefetch 0, so that a wait for them can be interrupted.
  const bool makes_ahead = is_cuda() ? loader_->host_bytes() > 0 : options.prefetch > 0 && !loader_->is_small();
  if (makes_ahead) stagings_ = std::vector<Staging>(static_cast<size_t>(options.prefetch + 1));
  // Only on the CPU, because a CUDA allocator itself keeps freed memory for later batches.
  if (!reuse_ && !is_cuda()) spare_ = std::make_shared<SpareMemory>(stagings_.size() + 1);
}

Feed::~Feed() { end_work(); }

void Feed::end_work() noexcept {
  queue_.cancel();
  try {
    copy_stream_.wait();
  } catch (const DeviceError&) {
    // The next use of the device reports it.
  }
}

FedBatch Feed::memory_for(const BatchPosition& position, const Allocate& allocate) {
  const int64_t samples = loader_->samples_at(position);
  if (spare_) {
    SpareMemory::Memory memory = spare_->take();
    if (!memory) memory = std::make_unique<std::shared_ptr<void>>(allocate(loader_->batch_bytes()));
    void* const start = memory->get();
    auto keep = [memory = memory.release(), spare = spare_](void*) { spare->keep(SpareMemory::Memory(memory)); };
    return {{start, std::move(keep)}, samples, 0};
  }
  if (!reuse_) return {allocate(loader_->batch_bytes()), samples, 0};
  if (free_slots_.empty()) {
    memories_.push_back(allocate(loader_->batch_bytes()));
    free_slots_.push_back(static_cast<int64_t>(memories_.size()) - 1);
  }
  const int64_t slot = free_slots_.back();
  free_slots_.pop_back();
  return {memories_[static_cast<size_t>(slot)], samples, slot};
}

void Feed::begin(const BatchPosition& position, const Allocate& allocate, CudaStream stream) {
  Staging& staging = stagings_[begun_ % stagings_.size()];
  ahead_.push_back({position, memory_for(position, allocate), &staging});
  ++begun_;
  void* const memory = ahead_.back().batch.memory.get();
  if (!is_cuda()) {
    return queue_.submit([this, position, memory, &staging](const std::atomic<bool>& cancelled) {
      if (!cancelled) staging.part.bad_frames = loader_->fill(position, memory, {});
    });
  }
  const Device device = loader_->options().device;
  if (staging.memory.data() == nullptr) {
    if (copy_stream_.get().handle == nullptr) copy_stream_ = OwnedCudaStream(device);
    staging.memory = PinnedBuffer(device, loader_->host_bytes());
    staging.writable = CudaEvent(device);
    staging.copied = CudaEvent(device);
  }
  staging.writable.record(stream);
  queue_.submit([this, position, memory, &staging](const std::atomic<bool>& cancelled) {
    if (cancelled) return;
    staging.copied.wait();
    staging.part = loader_->fill_host(position, staging.memory.data());
    if (cancelled) return;
    staging.writable.make_wait(copy_stream_.get());
    loader_->copy_host_part(staging.part, staging.memory.data(), memory, copy_stream_.get());
    staging.copied.record(copy_stream_.get());
  });
}

// Returns the position of the next batch, which may be in the next epoch.
std::optional<BatchPosition> Feed::next_position(const BatchPosition& position) const {
  const BatchPosition next = loader_->after(position);
  if (loader_->samples_at(next) > 0) return next;
  if (position.epoch == INT64_MAX) return {};
  return BatchPosition{position.seed, position.epoch + 1, 0, position.weights};
}

void Feed::fetch_next(const BatchPosition& position) const {
  if (!fetches_) return;
  if (const auto next = next_position(position)) loader_->fetch(*next);
}

void Feed::drop_ahead() {
  end_work();
  if (reuse_) {
    for (const BatchAhead& dropped : ahead_) free_slots_.push_back(dropped.batch.slot);
  }
  ahead_.clear();
}

void Feed::free_slot(int64_t loop) {
  if (!reuse_) return;
  if (loop < 0 || loop > 1'000'000) refuse("loop: expected a small number, got ", loop);
  const auto loop_index = static_cast<size_t>(loop);
  if (loop_index >= loop_slots_.size()) loop_slots_.resize(loop_index + 1);
  if (loop_slots_[loop_index]) free_slots_.push_back(*loop_slots_[loop_index]);
  loop_slots_[loop_index].reset();
}

void Feed::note_slot(int64_t loop, const FedBatch& batch) {
  if (reuse_) loop_slots_[static_cast<size_t>(loop)] = batch.slot;
}

std::optional<FedBatch> Feed::next(const BatchPosition& position, const Allocate& allocate, CudaStream stream,
                                   const std::function<void()>& check, int64_t loop) {
  if (loader_->samples_at(position) == 0) {
    loader_->check_frames(stream);
    return {};
  }
  if (stagings_.empty()) {
    free_slot(loop);
    FedBatch batch = memory_for(position, allocate);
    note_slot(loop, batch);
    bad_frames_ += loader_->fill(position, batch.memory.get(), stream);
    fetch_next(position);
    return batch;
  }
  try {
    // A forked child has an empty queue.
    if (ahead_.empty() || ahead_.front().position != position || queue_.pending() == 0) {
      drop_ahead();
      begin(position, allocate, stream);
    }
    queue_.take(check);
    const BatchAhead ahead = std::move(ahead_.front());
    ahead_.pop_front();
    const FedBatch& batch = ahead.batch;
    free_slot(loop);
    note_slot(loop, batch);
    if (is_cuda()) {
      ahead.staging->copied.make_wait(stream);
      bad_frames_ += loader_->fill_device(position, ahead.staging->part, batch.memory.get(), stream);
      fetch_next(position);
    } else {
      bad_frames_ += ahead.staging->part.bad_frames;
    }
    std::optional<BatchPosition> next = ahead_.empty() ? position : ahead_.back().position;
    while (ahead_.size() + 1 < stagings_.size() && (next = next_position(*next))) begin(*next, allocate, stream);
    return batch;
  } catch (...) {
    // After an exception of `check` the work stays queued, and the next call gets its batch sooner.
    if (queue_.pending() != std::ssize(ahead_)) drop_ahead();
    throw;
  }
}

}  // namespace robocache
