// One thread that does jobs ahead of time, in the order of submission.
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

// One thread at a time may call these functions. The queue owns every job until it is taken or cancelled, and its
// thread, which starts at the first submit(). Everything that a job refers to belongs to the caller and must live as
// long.
//
// A forked child does not have the queue's thread. There the queue is empty, and the next submit() starts a new thread.
class WorkQueue {
 public:
  // `cancelled` becomes true when nobody wants the result. The job may then return early; a parallel_for in it throws
  // Cancelled.
  using Job = std::function<void(const std::atomic<bool>& cancelled)>;

  WorkQueue();   // no thread starts
  ~WorkQueue();  // cancels
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  int64_t pending() const;  // the number of jobs that were submitted and not taken

  // Never waits for other jobs.
  void submit(Job job);

  // Waits until the oldest pending job is done, and removes it. Throws what the job threw, and std::logic_error if no job
  // is pending. Calls `check` every 10 milliseconds while it waits, to look for signals: an exception of `check` ends the
  // wait and leaves the job pending.
  void take(const std::function<void()>& check = {});

  // Removes all jobs, and waits for a job that has begun.
  void cancel() noexcept;

 private:
  struct State;
  void replace_state_after_fork();

  std::unique_ptr<State> state_;
};

}  // namespace robocache
