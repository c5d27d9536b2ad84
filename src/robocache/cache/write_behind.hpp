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

// Belongs to one Writer, whose calls wait for each other. Blocks wait in the order of their arrival, each until it is
// in its file. A block that cannot be written stays, with all blocks behind it, until a call tries it again.
class WriteBehind {
 public:
  using Bytes = std::vector<std::byte>;

  WriteBehind() = default;

  // Does not write the blocks that still wait.
  ~WriteBehind();
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  // Tries a failed block again, and throws if it fails again.
  void check();

  // Takes the next block of `file` and replaces it by an empty one. Waits while too many blocks wait. If the system has
  // no thread to give, it writes the block itself. If it throws, as check() does, it takes nothing.
  void add(BlockWriter& file, Bytes& block);

  // Waits until no block is waiting. Throws as check() does.
  void settle();

  // Returns the last waiting blocks of `file`, at most `most`, in their order. None of the file's blocks is being
  // written when it returns.
  std::deque<Bytes> withdraw(const BlockWriter& file, size_t most);

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
  std::vector<Bytes> written_;            // buffers to reuse
  const BlockWriter* writing_ = nullptr;  // the file whose block is being written; that block is the first
  std::exception_ptr error_;              // of the first block; no block is written until it is cleared
  uint64_t attempts_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace robocache::cache
