// A thread that writes blocks of files while the caller fills the next ones.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace robocache::cache {

class BlockWriter;

// Of one Writer, whose calls wait for each other. Blocks wait in the order they came, each until it is in its file: one that
// cannot be written stays, with all behind it, until a call tries it again.
class WriteBehind {
 public:
  using Bytes = std::vector<std::byte>;

  WriteBehind() = default;

  // What still waits is not written.
  ~WriteBehind();
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  // Tries again what failed; throws what fails now.
  void check();

  // Takes a block that comes next in `file`, and gives an empty one for it; waits while many wait already. Where the system
  // gives no thread it writes the block itself. Throws as check(), and then takes nothing.
  void add(BlockWriter& file, Bytes& block);

  // Waits until nothing waits any more. Throws as check().
  void settle();

  // Gives back the last waiting blocks of `file`, at most `most`, in their order. None of its blocks is being written when it
  // returns.
  std::deque<Bytes> take_back(const BlockWriter& file, size_t most);

 private:
  struct Block {
    BlockWriter* file;
    Bytes bytes;
  };

  bool start();  // whether the system gave a thread
  void run();
  void write_first(std::unique_lock<std::mutex>& lock);
  void try_again(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;  // guards everything below
  std::condition_variable work_;
  std::condition_variable progress_;
  std::deque<Block> waiting_;
  std::vector<Bytes> written_;            // buffers to use again
  const BlockWriter* writing_ = nullptr;  // the file of the first block, while that is being written
  std::exception_ptr error_;              // of the first block: nothing is written
  uint64_t tried_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace robocache::cache
