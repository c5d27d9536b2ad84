#include "robocache/batch/work_queue.hpp"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "robocache/core/thread_pool.hpp"

namespace robocache {
namespace {

constexpr auto kCheckEvery = std::chrono::milliseconds(10);

// The number of forks between the first process and this one.
std::atomic<uint64_t> forks{0};

void count_forks() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
  (void)registered;
}

}  // namespace

struct WorkQueue::State {
  struct Entry {
    Job job;
    bool done = false;
    std::exception_ptr error = nullptr;
  };

  void run() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      wake.wait(lock, [this] { return stopping || begun < entries.size(); });
      if (stopping) return;
      do_next(lock);
    }
  }

  void do_next(std::unique_lock<std::mutex>& lock) {
    Entry& entry = entries[begun++];  // a deque moves no entry when others come and go
    lock.unlock();
    try {
      const Cancellable cancellable(cancelled);
      entry.job(cancelled);
    } catch (...) {
      entry.error = std::current_exception();
    }
    lock.lock();
    entry.done = true;
    done.notify_one();
  }

  uint64_t forks_before = forks;
  std::mutex mutex;  // guards entries, begun and stopping
  std::condition_variable wake;
  std::condition_variable done;
  std::deque<Entry> entries;  // the oldest first
  size_t begun = 0;           // entries that the thread has begun, done or not
  bool stopping = false;
  std::atomic<bool> cancelled{false};
  std::thread thread;
};

WorkQueue::WorkQueue() {
  count_forks();
  state_ = std::make_unique<State>();
}

WorkQueue::~WorkQueue() {
  replace_state_after_fork();
  cancel();
  if (!state_->thread.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stopping = true;
  }
  state_->wake.notify_one();
  state_->thread.join();
}

// A forked child never touches the state of its parent, not even to free it, since a lock in it may be held.
void WorkQueue::replace_state_after_fork() {
  if (state_->forks_before == forks) return;
  (void)state_.release();
  state_ = std::make_unique<State>();
}

int64_t WorkQueue::pending() const {
  return state_->forks_before == forks ? static_cast<int64_t>(state_->entries.size()) : 0;
}

void WorkQueue::submit(Job job) {
  replace_state_after_fork();
  if (!state_->thread.joinable()) {
    try {
      state_->thread = std::thread([state = state_.get()] { state->run(); });
    } catch (const std::system_error&) {
      // The system gives no thread: take() does the job.
    }
  }
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->entries.push_back({std::move(job)});
  }
  state_->wake.notify_one();
}

void WorkQueue::take(const std::function<void()>& check) {
  if (pending() == 0) throw std::logic_error("WorkQueue::take(): no job is pending");
  State& state = *state_;
  std::unique_lock<std::mutex> lock(state.mutex);
  State::Entry& oldest = state.entries.front();
  if (!state.thread.joinable()) state.do_next(lock);
  while (!state.done.wait_for(lock, kCheckEvery, [&] { return oldest.done; })) {
    lock.unlock();
    if (check) check();
    lock.lock();
  }
  const State::Entry entry = std::move(oldest);
  state.entries.pop_front();
  --state.begun;
  lock.unlock();
  if (entry.error) std::rethrow_exception(entry.error);
}

void WorkQueue::cancel() noexcept {
  if (pending() == 0) return;
  State& state = *state_;
  std::unique_lock<std::mutex> lock(state.mutex);
  state.entries.resize(state.begun);
  state.cancelled = true;
  state.done.wait(lock, [&] { return state.entries.empty() || state.entries.back().done; });
  state.entries.clear();
  state.begun = 0;
  state.cancelled = false;
}

}  // namespace robocache
