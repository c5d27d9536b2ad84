#include "robocache/core/thread_pool.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "robocache/core/error.hpp"

namespace robocache {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Waking a sleeping thread takes longer than running a short range, so the caller polls this long before it sleeps.
constexpr auto kPollTime = std::chrono::microseconds(30);

thread_local bool inside_range = false;
thread_local const std::atomic<bool>* cancelled_by = nullptr;

bool is_true(const std::atomic<bool>* flag) { return flag != nullptr && flag->load(std::memory_order_relaxed); }

// Marks this thread as working on a range. Calls inside a range run on this thread alone.
class InsideRange {
 public:
  InsideRange() { inside_range = true; }
  ~InsideRange() { inside_range = previous_; }
  InsideRange(const InsideRange&) = delete;
  InsideRange& operator=(const InsideRange&) = delete;

 private:
  bool previous_ = inside_range;
};

class AllRanges final : public Ranges {
 public:
  AllRanges(int64_t n, int64_t grain) : n_(n), grain_(grain) {}

  bool next(int64_t& begin, int64_t& end) override {
    if (begin_ >= n_ || is_true(cancelled_by)) return false;
    begin = begin_;
    end = begin_ = std::min(n_, begin_ + grain_);
    return true;
  }

  bool are_done() const { return begin_ >= n_; }

 private:
  int64_t n_;
  int64_t grain_;
  int64_t begin_ = 0;
};

void run_alone(int64_t n, int64_t grain, const std::function<void(Ranges&)>& body) {
  const InsideRange inside;
  AllRanges ranges(n, grain);
  body(ranges);
  if (!ranges.are_done()) throw Cancelled();
}

int default_num_threads() {
  if (const char* text = std::getenv("ROBOCACHE_NUM_THREADS")) {
    const int n = std::atoi(text);
    if (n >= 1) return n;
  }
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1U, std::thread::hardware_concurrency());
}

class ThreadPool {
 public:
  explicit ThreadPool(int threads) : threads_(threads) {}

  ~ThreadPool() { stop_workers(); }

  int threads() const { return threads_; }

  void resize(int threads) {
    const std::lock_guard<std::mutex> run_lock(run_mutex_);
    stop_workers();
    threads_ = threads;
  }

  void run(int64_t n, int64_t grain, bool in_order, const std::function<void(Ranges&)>& body) {
    std::unique_lock<std::mutex> run_lock(run_mutex_, std::try_to_lock);
    if (!run_lock.owns_lock() || threads_ == 1) {
      run_alone(n, grain, body);
      return;
    }
    start_workers();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = {n, grain, &body, cancelled_by};
      divide(in_order);
      open_ = true;
      ++generation_;
      posted_.store(generation_, std::memory_order_release);
    }
    wake_.notify_all();
    work(0);
    for (const auto until = SteadyClock::now() + kPollTime; busy_.load() > 0 && SteadyClock::now() < until;) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    std::unique_lock<std::mutex> lock(mutex_);
    // Workers that have not woken up yet are not waited for, because no range is left for them.
    open_ = false;
    done_.wait(lock, [this] { return busy_ == 0; });
    // The pool keeps no reference to the exception; the caller owns it.
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    if (is_true(cancelled_by)) throw Cancelled();
  }

 private:
  struct Job {
    int64_t n = 0;
    int64_t grain = 1;
    const std::function<void(Ranges&)>* body = nullptr;
    const std::atomic<bool>* cancelled = nullptr;
  };

  // A part of [0, n), whose ranges begin in order. It has a cache line of its own.
  struct alignas(64) Part {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  // Makes one part if ranges must begin in order, else one for each thread. A thread that gets the same part in every
  // call finds the part's data in its core's cache.
  void divide(bool in_order) {
    const int64_t count = in_order ? 1 : threads_;
    if (std::ssize(parts_) != count) parts_ = std::vector<Part>(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      Part& part = parts_[static_cast<size_t>(i)];
      part.next.store(job_.n * i / count, std::memory_order_relaxed);
      part.end = job_.n * (i + 1) / count;
    }
  }

  // The ranges of the job that one thread takes: those of its own part, then some of the others' parts.
  struct Share final : Ranges {
    Share(ThreadPool& owner, size_t thread) : pool(owner), first_part(thread) {}

    bool next(int64_t& begin, int64_t& end) override {
      const Job& job = pool.job_;
      for (; finished < pool.parts_.size() && !is_true(job.cancelled); ++finished) {
        Part& part = pool.parts_[(first_part + finished) % pool.parts_.size()];
        const int64_t first = part.next.fetch_add(job.grain, std::memory_order_relaxed);
        if (first >= part.end) continue;
        begin = first;
        end = std::min(part.end, first + job.grain);
        took_one = true;
        return true;
      }
      return false;
    }

    ThreadPool& pool;
    size_t first_part;
    size_t finished = 0;  // parts of which no range is left
    bool took_one = false;
  };

  void work(size_t thread) {
    const InsideRange inside;
    Share share(*this, thread);
    do {
      share.took_one = false;
      try {
        return (*job_.body)(share);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!error_) error_ = std::current_exception();
      }
    } while (share.took_one);  // after an exception the other ranges run; a body that takes none would throw for ever
  }

  // Polls for the next job before the thread sleeps: calls often follow each other within microseconds, and waking a
  // thread can take longer than its share of the work.
  void await_briefly(uint64_t seen) const {
    const auto until = SteadyClock::now() + std::chrono::microseconds(50);
    while (posted_.load(std::memory_order_acquire) == seen && SteadyClock::now() < until) {
      std::this_thread::yield();
    }
  }

  void worker(size_t thread) {
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      lock.unlock();
      await_briefly(seen);
      lock.lock();
      wake_.wait(lock, [&] { return stopping_ || (open_ && generation_ != seen); });
      if (stopping_) return;
      seen = generation_;
      ++busy_;
      lock.unlock();
      work(thread);
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  void start_workers() {
    if (!workers_.empty()) return;
    generation_ = 0;
    posted_.store(0, std::memory_order_relaxed);
    try {
      for (size_t i = 1; i < static_cast<size_t>(threads_); ++i) workers_.emplace_back([this, i] { worker(i); });
    } catch (const std::system_error&) {
      // The system gives no more threads. The threads that started share the work with the caller.
    }
  }

  void stop_workers() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : workers_) thread.join();
    workers_.clear();
    stopping_ = false;
  }

  int threads_;
  std::mutex run_mutex_;  // held by the caller whose job the workers share
  std::mutex mutex_;      // guards everything below
  std::condition_variable wake_;
  std::condition_variable done_;
  std::vector<std::thread> workers_;
  Job job_;
  std::vector<Part> parts_;
  std::atomic<int> busy_{0};  // workers inside the job
  bool open_ = false;         // workers may still join it
  uint64_t generation_ = 0;
  std::atomic<uint64_t> posted_{0};  // generation_, for threads that do not hold the lock
  bool stopping_ = false;
  std::exception_ptr error_;
};

ThreadPool* pool = nullptr;

// A forked child has no workers, and its locks may stay held. It gets a new pool, and the parent's pool is left
// unchanged.
void replace_pool_in_child() { pool = new ThreadPool(pool->threads()); }

ThreadPool& the_pool() {
  static const bool initialised = [] {
    // Never destroyed: a worker may still be waiting when the process runs its exit handlers.
    pool = new ThreadPool(default_num_threads());
    pthread_atfork(nullptr, nullptr, replace_pool_in_child);
    return true;
  }();
  (void)initialised;
  return *pool;
}

void run_ranges(int64_t n, int64_t grain, bool in_order, const std::function<void(Ranges&)>& body) {
  if (n <= 0) return;
  if (inside_range || n <= grain) {
    run_alone(n, grain, body);
    return;
  }
  the_pool().run(n, grain, in_order, body);
}

}  // namespace

Cancellable::Cancellable(const std::atomic<bool>& cancel) : previous_(std::exchange(cancelled_by, &cancel)) {}

Cancellable::~Cancellable() { cancelled_by = previous_; }

int num_threads() { return the_pool().threads(); }

void set_num_threads(int64_t n) {
  if (n < 1 || n > 4096) throw ArgumentError("n: expected 1 to 4096 threads, got ", n);
  the_pool().resize(static_cast<int>(n));
}

void parallel_ranges(int64_t n, int64_t grain, const std::function<void(Ranges&)>& body) {
  run_ranges(n, grain, false, body);
}

void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  run_ranges(n, grain, true, [&](Ranges& ranges) {
    for (int64_t begin = 0, end = 0; ranges.next(begin, end);) body(begin, end);
  });
}

int64_t parallel_first(int64_t n, int64_t grain, const std::function<bool(int64_t)>& condition) {
  std::atomic<int64_t> first = n;
  parallel_for(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < std::min(end, first.load()); ++i) {
      if (!condition(i)) continue;
      // Lowers `first` to i, unless another thread has lowered it further.
      for (int64_t known = first; i < known && !first.compare_exchange_weak(known, i);) continue;
    }
  });
  return first;
}

}  // namespace robocache
