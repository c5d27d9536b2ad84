// The first look at the numbers of a file that grows, taken some time behind whoever writes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "robocache/cache/statistics.hpp"
#include "robocache/core/dtype.hpp"

namespace robocache::cache {

// Of rows that lie in the file from byte `begin` on. It reads what was written, in steps of some MB. Where it cannot, or all
// followers of the process would hold more than 64 MiB, it looks at nothing: whoever makes the statistics does.
class Follower {
 public:
  Follower(std::string path, int64_t begin, DType dtype, int64_t features);
  ~Follower() { forget(); }
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  // Takes the next step, where the file has it before byte `end`; whether it has one more.
  bool follow(int64_t end) noexcept;

  // The file goes on from byte `end` with others.
  void cut(int64_t end);

  // What was seen of the rows, or null; there is nothing more to follow.
  std::unique_ptr<FirstPass> finish();

 private:
  int64_t end_of_seen() const { return begin_ + (pass_ == nullptr ? 0 : pass_->rows()) * row_bytes_; }
  void step();
  void forget();

  std::string path_;
  int64_t begin_;
  DType dtype_;
  int64_t features_;
  int64_t row_bytes_;
  int64_t step_rows_;
  int64_t memory_ = 0;  // of what all may hold
  bool is_over_ = false;
  std::unique_ptr<FirstPass> pass_;  // none before the first step
  std::vector<std::byte> rows_;
};

}  // namespace robocache::cache
