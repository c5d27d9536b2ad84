#include "robocache/cache/write_behind.hpp"

#include <system_error>
#include <utility>

#include "robocache/cache/block_writer.hpp"

namespace robocache::cache {
namespace {

// The most blocks that may wait for the disk, and the most empty buffers that are kept.
constexpr size_t kMostWaiting = 32;
constexpr size_t kMostBuffers = 4;

}  // namespace

WriteBehind::~WriteBehind() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  work_.notify_one();
  thread_.join();
}

void WriteBehind::try_again(std::unique_lock<std::mutex>& lock) {
  if (!error_) return;
  error_ = nullptr;
  work_.notify_one();
  progress_.wait(lock, [this, attempts = attempts_] { return attempts_ != attempts; });
  if (error_) std::rethrow_exception(error_);
}

void WriteBehind::check() {
  std::unique_lock<std::mutex> lock(mutex_);
  try_again(lock);
}

void WriteBehind::add(BlockWriter& file, Bytes& block) {
  std::unique_lock<std::mutex> lock(mutex_);
  progress_.wait(lock, [this] { return waiting_.size() < kMostWaiting || error_; });
  try_again(lock);
  if (!thread_.joinable() && !start()) {
    file.write_block(block.data());
    block.clear();
    return;
  }
  Bytes empty_buffer;
  if (!written_.empty()) {
    empty_buffer = std::move(written_.back());
    written_.pop_back();
  }
  waiting_.push_back({&file, std::move(block)});
  block = std::move(empty_buffer);
  work_.notify_one();
}

bool WriteBehind::start() {
  written_.reserve(kMostBuffers);  // the thread must not run out of memory
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

void WriteBehind::settle() {
  std::unique_lock<std::mutex> lock(mutex_);
  do {
    try_again(lock);  // also after a new failure: its attempt may have begun before this call
    progress_.wait(lock, [this] { return waiting_.empty() || error_; });
  } while (error_);
}

std::deque<WriteBehind::Bytes> WriteBehind::withdraw(const BlockWriter& file, size_t most) {
  std::deque<Bytes> blocks;
  std::unique_lock<std::mutex> lock(mutex_);
  progress_.wait(lock, [&] { return writing_ != &file; });
  for (auto block = waiting_.rbegin(); block != waiting_.rend() && blocks.size() < most; ++block) {
    if (block->file == &file) blocks.push_front(std::exchange(block->bytes, {}));
  }
  std::erase_if(waiting_, [](const Block& block) { return block.bytes.empty(); });
  // The remaining blocks may fail for another reason, or not fail.
  error_ = nullptr;
  work_.notify_one();
  return blocks;
}

void WriteBehind::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return stopping_ || (!waiting_.empty() && !error_); });
    if (stopping_) return;
    write_first(lock);
    writing_ = nullptr;
    progress_.notify_all();
  }
}

void WriteBehind::write_first(std::unique_lock<std::mutex>& lock) {
  // Blocks that are added meanwhile may move this one in memory, but not its bytes, and it stays the first.
  BlockWriter* const file = waiting_.front().file;
  const std::byte* const bytes = waiting_.front().bytes.data();
  writing_ = file;
  lock.unlock();
  std::exception_ptr error;
  try {
    file->write_block(bytes);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  error_ = error;
  ++attempts_;
  if (error) return;
  Bytes& buffer = waiting_.front().bytes;
  if (written_.size() < kMostBuffers) {
    buffer.clear();
    written_.push_back(std::move(buffer));
  }
  waiting_.pop_front();
}

}  // namespace robocache::cache
