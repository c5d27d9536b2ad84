// One thread that does work ahead of time, in the order of submission.
//
//   robocache::WorkQueue queue;
//   queue.submit([&](const std::atomic<bool>& cancelled) { if (!cancelled) fill(first); });
//   queue.submit([&](const std::atomic<bool>& cancelled) { if (!cancelled) fill(second); });
//   queue.take();  // `first` is full
//   queue.take();  // `second` is full
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace robocache {

// One thread at a time may call these functions. The queue owns its thread, which starts with the first work, and each
// work until it is taken or cancelled. Everything that a work refers to belongs to the caller and must live as long.
//
// A forked child does not have the queue's thread. Its queue is empty, and its next work starts a new thread.
class WorkQueue {
 public:
  // `cancelled` becomes true when nobody wants the result. The work may then return early; a parallel_for in it does.
  using Work = std::function<void(const std::atomic<bool>& cancelled)>;

  WorkQueue();   // no thread starts
  ~WorkQueue();  // cancels
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  int64_t pending() const;  // the number of works that were submitted and not taken

  // Never waits for other work.
  void submit(Work work);

  // Waits until the oldest pending work is done, and removes it. Throws what the work threw. Calls `check` every 10 milliseconds
  // while it waits, to look for signals: an exception of `check` ends the wait and leaves the work pending.
  void take(const std::function<void()>& check = {});

  // Removes all work, and waits for work that has begun.
  void cancel() noexcept;

 private:
  struct State;
  void leave_parent();

  std::unique_ptr<State> state_;
};

}  // namespace robocache
